//! What the store says about itself.

use std::path::PathBuf;

use ports::{DurabilityPoint, Incarnation};

/// A picture of the store, for `status` and metrics.
#[derive(Debug, Clone)]
pub struct Status {
    /// Journal bytes written and not yet folded into the checkpoint store.
    pub journal_bytes: u64,
    /// Journal segments on disk, the current one included.
    pub segments: usize,
    /// Items and messages changed since the last checkpoint.
    pub overlay_records: usize,
    /// This start.
    pub incarnation: Incarnation,
    /// The last mutation ordered.
    pub ordered: DurabilityPoint,
    /// The last mutation known durable.
    pub durable: DurabilityPoint,
    /// Journal syncs since open.
    pub fsyncs: u64,
    /// Checkpoints since open.
    pub checkpoints: u64,
    /// Groups of queues that a message blocks which failed for good (rule P1).
    pub blocked_groups: usize,
    /// Why the last checkpoint failed, if it did.
    pub checkpoint_error: Option<String>,
    /// The damage to the checkpoint store that was met last, by file and place: what lies there is not served.
    pub damage: Option<String>,
    /// What recovery found at open.
    pub recovery: RecoveryReport,
    /// Whether there is room for mutations.
    pub room: Capacity,
    /// Whether it serves.
    pub health: Health,
}

/// Whether mutations and objects find room (rule P6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capacity {
    /// There is: bytes of journal allocated and free.
    Free {
        /// How many.
        bytes: u64,
    },
    /// The last mutation or object was refused, or only the reserve is left.
    Refusing,
}

/// Whether the store serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Serving,
    /// A write or sync failed; it is going back to its durable state. With what failed.
    FallingBack(String),
    /// It was closed.
    Closed,
}

/// What recovery found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Journal records read.
    pub records: u64,
    /// The torn tail that was cut, if there was one.
    pub cut: Option<Cut>,
}

/// A torn tail: bytes after the last whole record, with no whole record behind them; or one that is not there at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The segment.
    pub file: PathBuf,
    /// Where the last whole record ends.
    pub offset: u64,
    /// How many bytes were there behind it.
    pub bytes: u64,
    /// How many the file lacks. No crash makes it shorter: what was in them was perhaps acknowledged.
    pub missing: u64,
}
