//! ZooKeeper's tree, sessions and watches, implemented as functions on the ports.
//!
//! The protocol on one screen (FaaSKeeper, section 3.3, with the rules C-1 to C-6 of the design):
//!
//! ```text
//! client ──submit──▶ request queue ──▶ writer ──▶ distributor queue ──▶ distributor ──▶ log, user store
//!    ▲                (a group per      lock        (one group)           order, number      │
//!    │                 session)         validate                          apply, settle      │ wake
//!    │                                  decide: one write to the                             ▼
//!    └───── replies, events, in order ◀── session's row ◀────────────────────── tail ◀── watch function
//! ```
//!
//! - [`gateway`] and [`client`] are the client library. `tail` follows the log for the clients of
//!   one process, and `client::read` reads the user store without any function.
//! - `writer`, `distributor`, `heartbeat` and the watch function, which wakes the `tail`, are the
//!   four functions. Each may die between any two steps. Its successor reads from the rows what to
//!   finish or undo.
//! - `watches` holds the watches of the process's clients. The `tail` fires them.
//! - `heartbeat::expired_znodes` asks the writer to remove containers and TTL znodes that are due.
//! - `quota` is the text of quotas. The distributor counts, and the writer enforces limits.
//! - `heartbeat::failure_detector` decides which sessions have expired. Processes that share a
//!   store check each other with it ([`member`]).
//! - `storage` holds every conditional write: to the rows of sessions and znodes in the system
//!   store, and to the user store. `dependency` tracks the state that each write depends on,
//!   because a store may lose state that is not durable yet.
//! - `writer::tree` has the rules of the tree without any I/O.
//!
//! This crate knows no wire format, provider or thread. `docs/coordination.md` lists its numbered
//! promises.

#[doc(hidden)]
pub mod access;
mod backlog;
#[doc(hidden)]
pub mod broken;
pub mod client;
pub mod config;
#[doc(hidden)]
pub mod dependency;
mod distributor;
mod environment;
pub mod error;
pub mod gateway;
mod heartbeat;
pub mod member;
pub mod model;
#[doc(hidden)]
pub mod path;
pub mod queue_names;
#[doc(hidden)]
pub mod quota;
#[doc(hidden)]
pub mod records;
pub mod service;
#[doc(hidden)]
pub mod storage;
mod tail;
#[cfg(test)]
mod tests;
mod watches;
mod writer;

pub use client::Client;
pub use config::Config;
pub use environment::Parts;
pub use error::{ConnectError, Ended, Error};
pub use gateway::Gateway;
pub use member::Member;
pub use service::Service;
