//! The local server that gives a volume to programs without a mount.
//!
//! A sandbox such as AWS Lambda allows no mounts. There, the dynamic linker loads a library into
//! each program (`frontends/preload/library`), which takes the place of the C library's file calls.
//! It sends the calls below one path to this server:
//!
//! ```text
//! program ─ library ──▶ shared buffer ──▶ Server ──▶ files::Transaction ──▶ VolumeStore
//! ```
//!
//! All processes of one server share its transaction: fork and exec lose nothing.
//!
//! - [`wire`] is the codec of requests and replies, without I/O.
//! - [`shared`] is the memory with the buffers, [`cache`] that with bytes of files.
//! - [`permissions`] has the rules of mode bits.
//! - [`server`] answers requests; `calls` has the meaning of each, `walk` follows paths.
//! - [`environment`] finds the library, and tells it where the server is.

// The server has threads, and this front end is outside the part that a seed replays.
#![allow(clippy::disallowed_methods)]

pub mod cache;
mod calls;
pub mod environment;
pub mod permissions;
pub mod server;
pub mod shared;
mod walk;
pub mod wire;

pub use server::{LostWrite, Options, Server, StartError};
