//! Read-atomic and serializable transactions over a store that only keeps what it acknowledged.
//!
//! The protocol on one screen (AFT, sections 3 and 4, with the rules T-1 to T-5 of the design):
//!
//! ```text
//!            begin ──▶ [named: entry in the log + row taken]              what has been heard so far is visible
//!  get ──▶ own writes ──▶ version index ──▶ Algorithm 1 ──▶ value         load: one scan, and a row for each version
//!  put, delete ──▶ write buffer        send ──▶ effect buffer
//!                  └──▶ too large, or too much: entry in the log, then chunks and version items, ahead of the commit
//!  commit ──▶ together: entry in this node's log, version items, outbox row
//!        ──▶ the decision row: one conditional write decides          where the store can: both in one step (`commit/grouped.rs`)
//!        ──▶ index, cache ──▶ wait until durable ──▶ answer, and the effects leave
//! ```
//!
//! - [`calls`] has one module for each call; [`engine`] is their public face. Writes that are too large, or too many
//!   for memory, are spilled before the commit.
//! - [`attempts`] holds the open attempts with their read sets and write buffers. Algorithm 1 of the paper is
//!   `attempts/read_set.rs`.
//! - [`cache`] keeps versions and values in memory. It is a cache of the store: evicting from it never changes an
//!   answer.
//! - [`storage`] holds the layout, the records, every conditional write, and the log of this node.
//! - [`serializable`] orders the commits of sequenced keyspaces in one log. `serializable/sequencer/validation.rs`
//!   does no I/O.
//! - [`cluster`] says who is a node, and until when this one may answer. Nodes announce their commits to each other,
//!   read in the store what they missed, and forward calls to the node that owns an attempt.
//! - [`collection`] keeps the store small: it deletes superseded versions, and rows and slots past their windows.
//! - [`recovery`] starts and ends nodes, and takes over from those that are gone.
//! - [`effects`] are buffered like writes and sent after the commit.
//! - [`packing`] puts large values of many transactions together into one object, where there is an object store.
//!
//! Data before its decision row is invisible; everything after it is repair that any node may do. Whatever may leave
//! something in the store stands in a log first, so taking over from a node means sealing its log.
//!
//! No module here knows a wire, a provider or a thread.

#![allow(rustdoc::private_intra_doc_links)]

mod attempts;
#[doc(hidden)]
pub mod broken;
mod cache;
mod calls;
mod cluster;
mod collection;
pub mod config;
mod context;
pub mod effects;
pub mod engine;
pub mod error;
mod figures;
pub mod model;
mod node;
pub mod packing;
mod recovery;
mod serializable;
pub mod service;
mod serving;
mod storage;

pub use calls::list;
pub use cluster::{membership, peers};
pub use config::Config;
pub use effects::{Destinations, Effect, queue_name};
pub use engine::Engine;
pub use error::{Error, Result};
pub use figures::Figures;
pub use service::{Parts, Service};
pub use storage::{layout, records};
