//! The ZooKeeper wire protocol in front of the coordination service.
//!
//! Clients that nobody here wrote speak jute over TCP: frames of an `int32` length and a body. One task
//! per connection turns bytes into requests, hands them to its [`coordination::Client`] and writes back
//! what comes out, in order:
//!
//! ```text
//! socket -> Frames -> jute::request -> Conversation -> Client::submit
//! socket <- one write of many replies <- jute::reply <- Conversation <- Client::pump
//! ```
//!
//! - [`jute`] is the codec: bytes to values and back, no I/O.
//! - [`framing`] cuts the byte stream into frames and recognises peers that do not speak jute.
//! - [`conversation`] remembers which request each reply answers; no I/O either.
//! - [`error_codes`] alone knows ZooKeeper's numbers for the service's errors.
//! - [`server`] and the connection behind it are the thin shell that reads, writes and waits.
//!
//! Invariants
//! - Replies leave in the order of the requests, events before any reply that reflects a later change.
//! - What a peer can make this process allocate is bounded: by the packet limit, the number of requests
//!   and their bytes in flight, the unsent bytes, and the number of connections, of an address too.
//! - Bytes of a peer end in a reply, an error code or a closed connection; never a panic. What no client sends has a line
//!   in the log, as long as there are not too many of them, and is counted.
//!
//! The formats are those of Apache ZooKeeper 3.9 (`zookeeper.jute`, `BinaryInputArchive`).

// Peers that say nothing are waited for in real time: a front end is outside of what a seed replays.
#![allow(clippy::disallowed_methods)]

pub mod config;
mod connection;
pub mod conversation;
pub mod error_codes;
mod four_letter_words;
pub mod framing;
pub mod jute;
mod open_connections;
mod peer_log;
pub mod server;
pub mod statistics;

pub use config::Config;
pub use server::{Server, bind};
pub use statistics::Statistics;
