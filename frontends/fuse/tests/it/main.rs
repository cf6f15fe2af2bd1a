//! The FUSE front end, tested from the outside.

// Mounts are tested in real time, with threads and processes.
#![allow(clippy::disallowed_methods)]

mod drive;
mod fuzz;
mod locks;
mod memory;
mod mounts;
mod negotiation;
mod posix;
mod programs;
mod volume;
mod wire;
