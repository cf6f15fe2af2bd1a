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
//! - [`begin`], [`read`], [`write`], [`commit`], [`ending`] and [`outcome`] are the calls, step by step; [`engine`] is
//!   their public face. [`resolve`] finishes what earlier starts left. [`effects`] are gathered like writes and leave
//!   through the [`outbox`].
//! - [`keyspace`]s that serializable transactions use are ordered by the [`sequencer`], for all who write there: the row hands
//!   the decision over to its log (`commit/sequenced.rs`), and [`snapshot`]s are read at its slots. `sequencer/validation.rs`
//!   does no I/O.
//! - [`listing`] shows plain state key by key, merged from the buckets that versions are spread over.
//! - [`spill`] writes values ahead of their commit: large ones, and what memory has no room for.
//! - [`pack`] gathers values that go out as one object, where there is an object store; its compactor moves what is live.
//! - [`housekeeping`] keeps the store small behind them: [`collector`] follows what is superseded, [`retention`] what is past
//!   its window, [`names`] what is kept for days, [`sweep`] what a death left that no log names: nothing, after a node that
//!   could [`leave`] in order.
//! - [`store`] holds every conditional write, [`registry`] the rows of nodes, [`node_log`] the one log of this one.
//! - [`membership`] says who is a node, and until when this one may answer; [`presence`] tells other services.
//! - [`recent`] knows what was committed here lately, so that collecting it need not read it back.
//! - [`read_set`], [`index`], [`heard`], [`hybrid_clock`], [`slot_ages`], [`layout`], [`records`] and [`write_buffer`] do no
//!   I/O.
//!
//! Data before its decision row is invisible; everything after it is repair that anybody may do. Whatever may leave
//! something in the store stands in a log first, so that to take over from a node is to seal its log. The index is a cache
//! of the store: evicting from it never changes an answer.
//!
//! - Several nodes may share a store: who is one says [`membership`], and [`peers`] is the way between them. Each tells the
//!   others what has committed there ([`broadcast`]), reads in the store what it was not told ([`follower`]), and takes any call
//!   ([`forward`]), looking meanwhile whether its node lives ([`looks`]); a start beside others is a [`join`], and what one leaves
//!   that is gone is the [`fault_manager`]'s. What has
//!   been heard everywhere is what all may collect below (`collector/shared.rs`).
//!
//! Nothing here knows a wire, a provider or a thread.

#![allow(rustdoc::private_intra_doc_links)]

mod begin;
mod broadcast;
#[doc(hidden)]
pub mod broken;
mod collector;
mod commit;
pub mod config;
pub mod data_cache;
pub mod effects;
mod ending;
pub mod engine;
pub mod error;
mod fault_manager;
mod figures;
mod follower;
mod forward;
mod gathering;
pub mod heard;
mod housekeeping;
pub mod hybrid_clock;
pub mod index;
mod join;
mod keyspace;
pub mod layout;
mod leave;
pub mod listing;
mod looks;
pub mod membership;
pub mod model;
mod names;
mod node;
mod node_log;
mod open;
mod outbox;
mod outcome;
pub mod pack;
pub mod peers;
mod plain;
mod presence;
mod read;
pub mod read_set;
mod recent;
pub mod records;
mod registry;
mod resolve;
mod retention;
mod sequencer;
pub mod service;
mod slot_ages;
mod snapshot;
mod spill;
mod store;
mod superseded;
mod sweep;
mod transaction;
pub mod transaction_id;
mod write;
pub mod write_buffer;

pub use config::Config;
pub use effects::{Destinations, Effect, queue_name};
pub use engine::Engine;
pub use error::{Error, Result};
pub use figures::Figures;
pub use service::{Parts, Service};
