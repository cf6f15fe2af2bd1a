//! Health, metrics, status and the console over HTTP.
//!
//! One listener, read-only routes, no request body. What is shown comes from a [`Snapshot`], which the
//! program fills in: this crate names no store and no service, so it can be tested with a plain value.
//!
//! Invariants
//! - On loopback a request is answered only if its `Host` names this machine, and never if its `Origin` is
//!   another site: a web page that the user happens to visit cannot drive the server.
//! - Every refusal is a problem document (RFC 9457) whose `type` is one of the names in [`problem`].
//! - A connection holds a bounded number of bytes, for a bounded time; there is a bounded number of them.
//!
//! Reading order: [`status`] (what is shown), [`server`] (bind, run, stop), then what every request passes:
//! the bounded connection, the guard, the routes.

// Why: a front end is where real time enters; the deadline of a connection is tokio's.
#![allow(clippy::disallowed_methods)]

mod connection;
mod guard;
mod metrics;
pub mod problem;
mod routes;
pub mod server;
pub mod status;

pub use server::{Config, Server, bind};
pub use status::{Snapshot, Status};
