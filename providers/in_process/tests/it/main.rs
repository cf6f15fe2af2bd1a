//! Integration tests of functions and clocks, beside real stores.

#![allow(clippy::disallowed_methods, reason = "these tests run on real threads, in real time")]

mod contract;
mod server;
