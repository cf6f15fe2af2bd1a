//! Read-atomic and serializable transactions over a store that only keeps what it acknowledged.
//!
//! The protocol on one screen (AFT, sections 3 and 4, with the rules T-1 to T-5 of the design):
//!
//! ```text
//!            begin ──▶ [client id: log entry + row]               reads the applied frontier of this moment
//!  get ──▶ own writes ──▶ version index ──▶ Algorithm 1 ──▶ value    a load: one scan, and a row per version
//!  put, delete ──▶ write buffer        send ──▶ effect buffer
//!                  └──▶ too large or too much: log entry, then chunks and version items, before the commit
//!  commit ──▶ together: entry in this node's log, version items, outbox row
//!        ──▶ the decision row: one conditional write decides      one step with the above where the store
//!                                                                 can (`commit/grouped.rs`)
//!        ──▶ index, cache ──▶ wait until durable ──▶ answer, and the effects are sent
//! ```
//!
//! The parts, from the top. Each owns its state and its lock, and knows only those below it:
//!
//! - [`engine`] is the public API. It composes the parts.
//! - [`recovery`] starts and ends nodes, and takes over from dead ones.
//! - [`calls`] has one module for each call of the API, and answers other nodes.
//! - [`collection`] keeps the store small: it deletes superseded versions and expired rows and
//!   slots, and sweeps.
//! - [`loader`] reads committed versions and values, from memory or from the store.
//! - [`sequencing`] orders the commits of sequenced keyspaces through the [`sequencer`]'s log.
//! - [`serializable`] is the engine under files: volumes with one log each. It stands beside the
//!   parts above, and shares the validation of the [`sequencer`].
//! - [`packing`] puts large values of many transactions into one object, and compacts those
//!   [`packs`].
//! - [`idempotency_keys`] keeps the outcomes of client ids for days.
//! - [`cluster`] knows the other nodes: membership, lease, announcements, probes, messages.
//! - [`attempts`] holds the open attempts with their read sets and write buffers. Algorithm 1 of
//!   the paper is `attempts/read_set.rs`.
//! - [`effects`] are buffered like writes and sent after the commit.
//! - [`cache`] keeps versions and values in memory. It is a cache of the store: evicting from it
//!   never changes an answer.
//! - [`node`] is one start of a node; [`serving`] holds the node that serves now.
//! - [`storage`] holds the layout, the records, every conditional write, and the log of this node.
//!
//! Data without its decision row is invisible. Everything after the row is repair that any node may
//! do. Each step that may leave data in the store is logged first, so a successor takes over from a
//! node by sealing its log.
//!
//! No module here knows a wire format, a provider or a thread.

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
mod idempotency_keys;
mod loader;
pub mod model;
mod node;
pub mod packing;
mod packs;
mod recovery;
mod sequencer;
mod sequencing;
pub mod serializable;
pub mod service;
mod serving;
mod storage;

pub use calls::{conditional::Expected, list, open};
pub use cluster::membership;
pub use config::Config;
pub use effects::{Destinations, Effect, queue_name};
pub use engine::{Engine, Parts};
pub use error::{Error, Result};
pub use figures::Figures;
pub use service::Service;
pub use storage::{layout, records};

/// How nodes reach each other.
pub mod peers {
    pub use crate::calls::volumes_leader::VolumesLeader;
    pub use crate::cluster::{
        messages::{VOLUMES_HEAD_BYTES, messages_of_a_stranger, not_here},
        peers::{CALL_MAX, MESSAGE_BYTES_MAX, NoAnswer, Peers, message_bytes_max, more_time_for},
    };
}
