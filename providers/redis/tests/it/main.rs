//! Integration tests of the redis provider against real servers that they start.

#![allow(
    clippy::disallowed_methods,
    reason = "these tests run on real threads, in real time"
)]

mod cluster;
mod contract;
mod crash_losses;
mod dead_letters;
mod failover;
mod fixture;
mod opening;
mod permissions;
mod proxy;
mod server;
mod several_processes;
mod unknown_outcomes;
