//! Volumes: strictly serializable keyspaces with one fenced log each, the engine under files.
//!
//! ```text
//!  snapshot ──▶ get_many, scan at its slot           no call where the log is written
//!  commit(proposal): reads, predicates, writes
//!    ──▶ validated in turn: reads not written since, numbers compared now
//!    ──▶ one slot of the log, which holds the writes: that decides
//!    ──▶ visible at once, rows are written later
//! ```
//!
//! The log is the data. A slot names the version of each key that it writes, so a snapshot is one
//! number. The engine knows keys, numbers and ranges, never inodes: POSIX is a library in the
//! client process. `docs/design/0007-files.md` has the reasons and the failure of each step.
//!
//! - [`model`] has the types. [`volume_store`] is the interface of one volume, and [`volumes`] that
//!   of all volumes of a store.
//! - `contract`, which tests alone compile, is the suite that every volume passes. It has the
//!   reference in memory: the oracle for tests of the engine, and a volume for tests of its users.
//! - [`validate`] decides proposals and drafts the slot that does. [`apply`] computes the changes of
//!   a proposal, and folds changes into values. [`slots`] encodes the slots of the log, and [`rows`]
//!   has the keys and records that slots are installed into. All of them are pure.
//! - [`lock_table`] grants locks, for all implementations. [`lease_table`] has the leases of sessions.
//! - [`volume`] writes the log and the rows of a volume. [`overlay`] holds its uninstalled slots,
//!   [`objects`] keeps large values, [`newest`] caches installed values, and [`snapshots`] the
//!   moments that reads may still name. [`registry`] has the rows that name volumes,
//!   [`open_volumes`] those of one start of the node, and [`deletion`] deletes their data.

pub mod apply;
#[cfg(any(test, feature = "contract"))]
#[doc(hidden)]
pub mod contract;
pub(crate) mod deletion;
mod lease_table;
pub mod lock_table;
pub mod model;
mod newest;
mod objects;
pub(crate) mod open_volumes;
mod overlay;
pub(crate) mod registry;
pub mod rows;
pub mod slots;
mod snapshots;
pub mod validate;
pub(crate) mod volume;
pub mod volume_store;
pub mod volumes;

use primitives::RecordFormat;

#[cfg(any(test, feature = "contract"))]
#[doc(hidden)]
pub use self::contract::{model_volume::ModelVolume, model_volumes::ModelVolumes};
pub use self::{volume_store::VolumeStore, volumes::Volumes};

/// The format of all records of volumes: slots, rows, and parts of stages.
const FORMAT: RecordFormat = RecordFormat::new(1);
