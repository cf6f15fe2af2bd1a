//! TLS, and HTTP/1.1 connections with bounds in number, time and bytes, for any tower service.
//!
//! A client that sends one byte a minute, or never reads its response, would otherwise hold a
//! connection forever (the "slow loris"). This crate owns the accept loop, the clocks of each
//! connection and the graceful stop. It knows no route, no token and no error format: a front end
//! brings those as a [`tower_service::Service`].
//!
//! Invariants
//! - At most [`Config::connections_max`] connections are served. Up to [`REFUSALS_MAX`] more at a
//!   time are accepted, told so by the front end's refusal, and ended: a health check or a peer
//!   then knows that the server lives. Past those [`serve`] stops accepting, and new connections
//!   wait in the kernel's backlog. If we closed them without a response, a health check would
//!   report the server as dead.
//! - A request's head arrives within [`Timeouts::head`] of its first byte. hyper starts its own
//!   head timer while a kept-alive connection idles, so the clock is in the socket wrapper.
//! - Of a request's body, [`PROGRESS_BYTES`] or the end arrive within [`Timeouts::progress`].
//!   Otherwise reading it fails with [`std::io::ErrorKind::TimedOut`].
//! - A client takes some bytes of its response within [`Timeouts::progress`].
//! - An idle connection lives for [`Timeouts::idle`], or for [`Timeouts::idle_when_full`] while the
//!   listener is at its limit.
//! - No clock runs while the service works on a request. The service bounds its own time. After a
//!   101 response no clock of a read runs at all: the service speaks another protocol.
//! - A connection that ends while its client still sends is not reset under the client's hands:
//!   up to [`LINGER_BYTES_MAX`] are read and dropped for up to [`LINGER_MAX`]. A client that sends
//!   its whole request before it reads therefore still sees why it was refused.
//!
//! Memory: hyper buffers at most about 400 KiB of a request's head, with at most 100 headers, and
//! answers a longer one with a bare 431. It answers bytes that are not HTTP/1.1 with a bare 400.

// Why: real time and sockets enter here, as in a front end.
#![allow(clippy::disallowed_methods)]

mod accepting;
mod body;
mod config;
mod connection;
#[doc(hidden)]
pub mod distinguished_name;
mod exchange;
mod peer_log;
mod places;
mod server;
pub mod signature;
mod socket;
mod stream;
pub mod tls;

pub use accepting::Accepting;
pub use body::{PROGRESS_BYTES, RequestBody};
pub use config::{Config, FilesInMemory, Timeouts};
pub use connection::Peer;
pub use peer_log::{Line, PeerLog};
pub use places::REFUSALS_MAX;
pub use server::serve;
pub use socket::{LINGER_BYTES_MAX, LINGER_MAX};
pub use stream::Stream;
pub use tls::{ClientCertificates, HandshakeError, Tls, TlsFiles};
