//! Transactions, state, health, metrics and the console over HTTP.
//!
//! This crate holds only what the network adds: percent-encoding, headers, bodies, status codes and
//! problem names. The program provides the services once they run, and fills in the [`Snapshot`]
//! that status and metrics show. The nodes of one store also reach each other here ([`HttpPeers`]).
//!
//! Invariants
//! - A response is sent only once everything it depends on is durable (rule P4).
//! - On loopback a request must name this machine in `Host`, and its `Origin` must not be another
//!   site. So a web page that the user visits cannot drive the server. The listener of routes
//!   serves functions alone: it checks `Host` against a list, and leaves `Origin` to them.
//! - Every refusal of a route is a problem document (RFC 9457) whose `type` is a name in
//!   `problem.rs`.
//! - The listener bounds connections in number, time and bytes. All bodies share one memory budget.
//!
//! Reading order: [`status`] (the figures), [`server`] (bind, run, stop), then the way of a
//! request: the guard, the router, the routes. `api` has a file for each kind of thing that clients
//! call. `lambda` is the Lambda Invoke API, and `gateway` serves functions over HTTP as API Gateway
//! does, also on a listener of its own (`routes_server`).

// Why: real time enters at a front end; it bounds the time of each call.
#![allow(clippy::disallowed_methods)]

mod api;
mod backend;
mod backups;
mod body;
mod gateway;
mod guard;
mod headers;
mod in_process;
mod lambda;
mod metrics;
mod of_invocation;
mod open_volumes;
mod openapi;
mod peers;
mod problem;
mod request;
mod response;
mod router;
mod routes_server;
mod scope;
mod segment;
pub mod server;
mod services;
pub mod status;
mod volume_peers;
mod volume_transactions;

pub use backend::{Backend, Limits};
pub use backups::Backups;
pub use in_process::InProcessRouter;
pub use of_invocation::OfInvocation;
pub use peers::HttpPeers;
pub use routes_server::{RoutesConfig, RoutesServer, bind_routes};
pub use server::{Config, Server, bind};
pub use services::Services;
pub use status::{Snapshot, Status};
pub use volume_peers::{PeerStream, VolumePeers};
