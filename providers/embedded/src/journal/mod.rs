//! The journal: every change in order, written once, before a caller learns that it is durable.
//!
//! It is a sequence of [`segment`] files of [`frame`]s, with one frame per group commit. The
//! journal thread ([`crate::engine`]) is its only writer, through a [`writer`]. It writes a frame
//! only after the frame before it was synced. A whole header after a broken frame therefore
//! proves that the broken one had been durable, and that is damage. Any other broken end is a tail that a
//! crash tore. No caller was told of its changes.
//!
//! Invariants
//! - Records are numbered without a gap across segments and incarnations.
//! - Zeros are written ahead of small records in steps of 256 KiB, in the sync of the record that
//!   reaches them. Most syncs then change no metadata, which halves their time on ext4. Segments
//!   that a checkpoint covers are used again for the same reason. Frames go around the page cache
//!   where the file system allows it ([`direct`]).
//! - After a failed write or sync, nothing is appended to that segment. The next record goes to a
//!   new segment, whose header names the end of the last durable record.

pub(crate) mod direct;
pub(crate) mod frame;
pub(crate) mod recovery;
pub(crate) mod segment;
pub(crate) mod spare;
mod tail;
pub(crate) mod usage;
pub(crate) mod writer;
