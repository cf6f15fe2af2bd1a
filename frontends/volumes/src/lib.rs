//! The protocol by which processes of this machine reach the volumes of a server.
//!
//! A mount, `exec` or a preload server is a process of its own. It reaches the server over a Unix
//! socket that only the server's user may open:
//!
//! ```text
//! RemoteVolume ──▶ wire::Request ──▶ frames ──▶ volumes.sock ──▶ frames ──▶ dyn Volumes
//!      ▲  repeats after a reconnect                                            │
//!      └── wire::Answer ◀── frames ◀── one write of many answers ◀─────────────┘
//! ```
//!
//! - [`wire`] is the codec: requests, answers and errors, without I/O.
//! - [`frames`] splits the byte stream into numbered frames.
//! - [`server`] listens, and calls the volumes. A server also takes connections that another front
//!   end accepted: those of other servers of one store.
//! - [`remote`] implements [`Volumes`] and [`VolumeStore`] for client processes.
//!
//! Invariants
//! - A session is named by 128 random bits of its client. It outlives a connection by a few seconds.
//!   Its locks, holds and leases end with it.
//! - Each request has exactly one answer, in any order. A client repeats a request only if that is
//!   safe: commits by their ids, everything else because it is idempotent.
//! - Bytes of a peer lead to an answer, an error or a closed connection, never to a panic. The
//!   memory of a connection is bounded.
//! - Locks of clients survive a restart of the server: for a few seconds afterwards, a server grants
//!   only locks that clients had.
//!
//! [`Volumes`]: transactions::serializable::Volumes
//! [`VolumeStore`]: transactions::serializable::VolumeStore

// Connections wait for peers in real time, outside the part that a seed replays.
#![allow(clippy::disallowed_methods)]

pub mod frames;
pub mod remote;
mod send_buffer;
pub mod server;
mod socket_path;
pub mod wire;

pub use remote::RemoteVolumes;
pub use server::{Server, bind};
