//! Transactions, state, health, metrics and the console over HTTP.
//!
//! One listener. What is shown comes from a [`Snapshot`], which the program fills in; transactions and plain
//! state go to the engine of the transactions service, which the program provides once it runs. Here is only
//! what the wire adds: percent-encoding, headers, bodies, status codes and the names of problems. The nodes of one store
//! reach each other here, too ([`HttpPeers`]).
//!
//! Invariants
//! - An answer leaves only once everything it rests on is durable (rule P4): here, at the edge, somebody waits.
//! - On loopback a request is answered only if its `Host` names this machine, and never if its `Origin` is
//!   another site: a web page that the user happens to visit cannot drive the server.
//! - Every refusal is a problem document (RFC 9457) whose `type` is one of the names in [`problem`].
//! - A connection holds a bounded number of bytes, for a bounded time; there is a bounded number of them, and
//!   all bodies together have one budget.
//!
//! Reading order: [`status`] (what is shown), [`server`] (bind, run, stop), then what every request passes:
//! the bounded connection, the guard, the routes; the routes of transactions and state each have a file, and so have those of
//! functions: deploying them, invoking them as Lambda does, reaching them over HTTP as behind API Gateway.

// Why: a front end is where real time enters; the deadline of a connection is tokio's.
#![allow(clippy::disallowed_methods)]

mod applications;
mod backend;
mod body;
mod connection;
mod effects;
mod ending;
mod gateway;
mod guard;
mod headers;
mod inside;
mod lambda;
mod listing;
mod metrics;
mod peers;
pub mod problem;
mod refusals;
mod routes;
mod segment;
pub mod server;
mod services;
mod state;
pub mod status;
mod steps;
mod transactions;
mod workflows;

pub use inside::Inside;
pub use peers::HttpPeers;
pub use server::{Config, Limits, Server, bind};
pub use services::Services;
pub use status::{Snapshot, Status};
