//! The ZooKeeper wire protocol in front of the coordination service.
//!
//! Existing ZooKeeper clients speak jute over TCP: frames of an `int32` length and a body. One task
//! per connection decodes requests, submits them to its [`coordination::Client`], and writes the
//! outputs in order:
//!
//! ```text
//! socket -> Frames -> jute::request -> Conversation -> Client::submit
//! socket <- one write of many replies <- jute::reply <- Conversation <- Client::pump
//! ```
//!
//! - [`jute`] is the codec: bytes to values and back, no I/O.
//! - [`framing`] splits the byte stream into frames, and recognises peers that do not speak jute.
//! - `authentication` knows who a peer is, also without I/O.
//! - [`conversation`] matches replies to requests, without I/O.
//! - `error_codes` alone knows ZooKeeper's numbers for the service's errors.
//! - [`server`] and the connection module are the thin shell that reads, writes and waits, over TCP
//!   or TLS (`transport`).
//!
//! Invariants
//! - Replies are sent in the order of the requests, and each event before any reply that reflects a
//!   later change.
//! - A peer's memory in this process is bounded by the packet limit, the number and bytes of
//!   requests in flight, the unsent bytes, and the number of connections, in total and per address.
//! - Bytes of a peer lead to a reply, an error code or a closed connection, never to a panic. Bytes
//!   that no client sends are counted, and logged at a bounded rate.
//!
//! The formats are those of Apache ZooKeeper 3.9 (`zookeeper.jute`, `BinaryInputArchive`).

// The front end waits for silent peers in real time, because it is outside the part that a seed
// replays.
#![allow(clippy::disallowed_methods)]

#[doc(hidden)]
pub mod authentication;
pub mod config;
mod connection;
#[doc(hidden)]
pub mod conversation;
mod error_codes;
mod figures;
mod four_letter_words;
#[doc(hidden)]
pub mod framing;
#[doc(hidden)]
pub mod jute;
mod latency;
mod open_connections;
mod peer;
pub mod server;
mod shared;
pub mod statistics;
mod transport;

pub use config::Config;
pub use server::{Server, bind};
pub use statistics::Statistics;
