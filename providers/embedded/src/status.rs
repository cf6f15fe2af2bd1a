//! The status of a store.

use std::path::PathBuf;

use ports::{DurabilityPoint, Incarnation};

/// A snapshot of the store's figures, for `status` and metrics.
#[derive(Debug, Clone)]
pub struct Status {
    /// Journal bytes that no checkpoint covers yet.
    pub journal_bytes: u64,
    /// Journal segments on disk, the current one included.
    pub segments: usize,
    /// Items and messages changed since the last checkpoint.
    pub overlay_records: usize,
    /// The incarnation of this start, or of the last return to the durable state.
    pub incarnation: Incarnation,
    /// The last mutation ordered.
    pub ordered: DurabilityPoint,
    /// The last mutation known durable.
    pub durable: DurabilityPoint,
    /// Journal syncs since open.
    pub fsyncs: u64,
    /// Checkpoints since open.
    pub checkpoints: u64,
    /// Queue groups that a permanently failed message blocks (rule P1).
    pub blocked_groups: usize,
    /// Why the last checkpoint failed; none if it succeeded.
    pub checkpoint_error: Option<String>,
    /// The last damage met in the checkpoint store, with file and offset. The damaged data is not
    /// served.
    pub damage: Option<String>,
    /// The result of recovery at open.
    pub recovery: RecoveryReport,
    /// Whether the store refuses additions or objects, or refused the last change (rule P6).
    pub is_full: bool,
    /// Whether the store serves.
    pub health: Health,
}

/// Whether the store serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// The store serves.
    Serving,
    /// A write or sync failed, as the text says, and the store is returning to its durable state.
    FallingBack(String),
    /// The store was closed.
    Closed,
}

/// The result of a recovery.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Journal records read.
    pub records: u64,
    /// The torn tail that recovery cut, if there was one.
    pub cut: Option<Cut>,
}

/// A torn tail: bytes after the last whole record that no whole record follows, or bytes that the
/// file lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub file: PathBuf,
    /// Where the last whole record ends.
    pub offset: u64,
    /// The number of bytes cut after `offset`.
    pub bytes: u64,
    /// The number of bytes that the file lacks. No crash shortens a segment, so the missing bytes
    /// may have been acknowledged.
    pub missing: u64,
}
