//! The protocol of volumes, tested from the outside.

// Peers, restarts and graces are tested over real sockets, in real time.
#![allow(clippy::disallowed_methods)]

mod conformance;
mod drive;
mod fuzz;
mod leases;
mod locks;
mod peers;
mod restarts;
mod wire;
mod world;
