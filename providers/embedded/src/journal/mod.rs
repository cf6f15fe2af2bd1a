//! The journal: every change in order, once, before anybody outside hears of it.
//!
//! It is a row of [`segment`] files holding [`frame`]s, one frame per group commit. The journal [`thread`]
//! is its only writer; it writes a frame only after the one before it was synced. So a whole frame behind a
//! broken one proves that the broken one had been durable: that is damage, and anything else is a tail that
//! a crash tore, which nobody was told about.
//!
//! Invariants
//! - Records carry numbers without a gap, over segments and incarnations.
//! - Zeros are written ahead of small records in steps of [`ZEROED_STEP_BYTES`], in the sync of the record
//!   that reaches them; most syncs then change no metadata, which halves their time on ext4.
//! - After a failed write or sync nothing is appended behind it: the next record goes to a new segment,
//!   whose header names the end of the last durable one.

pub(crate) mod frame;
pub(crate) mod recovery;
pub(crate) mod segment;
pub(crate) mod spare;
pub(crate) mod usage;
pub(crate) mod writer;
