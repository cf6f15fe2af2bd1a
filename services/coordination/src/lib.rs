//! ZooKeeper's tree, sessions and watches, made of functions on the ports.
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
//! - [`gateway`] and [`client`] are the client library; [`tail`] keeps their view of the log; [`read`] reads
//!   the user store without any function.
//! - [`writer`], [`distributor`], [`watch`] and [`heartbeat`] are the four functions. Each may die between any
//!   two steps; whoever comes next finishes or undoes by what the rows say.
//! - [`judge`] says whose session is over; where several processes share a store, [`member`]s judge each other.
//! - [`silence`] is what heartbeats know, [`temporary`] what travels beside the queue and who removes it.
//! - [`basis`] is what each of them rests on where the store may lose what is not durable yet.
//! - [`session`] and [`node`] hold every conditional write to the system store, [`user_store`] every one to
//!   the user stores, [`tree`] the rules of the tree without any I/O.
//!
//! Nothing here knows a wire, a provider or a thread. The promises are numbered on the service's page,
//! `docs/coordination.md`.

mod backlog;
#[doc(hidden)]
pub mod broken;
pub mod client;
pub mod config;
pub mod dependency;
pub mod distributor;
pub mod error;
pub mod gateway;
pub mod heartbeat;
pub mod member;
pub mod model;
pub mod path;
pub mod queue_names;
pub mod records;
pub mod service;
pub mod storage;
pub mod tail;
#[cfg(test)]
mod test_fixture;
pub mod watch;
pub mod writer;

pub use client::Client;
pub use config::Config;
pub use error::{ConnectError, Ended, Error};
pub use gateway::Gateway;
pub use member::Member;
pub use service::{Parts, Region, Service};
