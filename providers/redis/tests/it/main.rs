//! Integration tests of the redis provider, against real servers that they start by themselves.

#![allow(
    clippy::disallowed_methods,
    reason = "these tests run on real threads, in real time"
)]

mod cluster;
mod contract;
mod failover;
mod forbidden;
mod letters;
mod lost;
mod opening;
mod proxy;
mod server;
mod several;
mod unknown;
mod world;
