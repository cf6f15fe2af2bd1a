//! What the store is opened with.

use std::{path::PathBuf, sync::Arc};

use ports::queue::QueueLimits;

use crate::storage::{DiskStorage, Storage};

/// What this provider cannot exceed, unless its configuration says otherwise.
pub(crate) const QUEUE_LIMITS: QueueLimits = QueueLimits {
    message_bytes_max: 4 << 20,
    batch_messages_max: 256,
    dead_letters_max: 10_000,
    deduplication_window_ms: 5 * 60 * 1000,
    shares_journal: true,
};

/// Where the store lives and how much room it takes. All sizes are bytes.
#[derive(Debug, Clone)]
pub struct Config {
    /// The data directory; made if it is not there.
    pub data_dir: PathBuf,
    /// How much disk a journal segment is given at once; one more is kept allocated as a reserve.
    pub journal_segment_bytes: u64,
    /// How much journal may gather before it is folded into the checkpoint store. Bounds recovery, and memory by
    /// the number of records that fit: each takes about 600 bytes there beside its key and value.
    pub checkpoint_bytes: u64,
    /// The most memory for items read from the checkpoint store, and as much again for its pages.
    pub cache_bytes: u64,
    /// The file operations; tests put faulty ones here.
    #[doc(hidden)]
    pub storage: Arc<dyn Storage>,
    /// What the queues cannot exceed; a test that waits for the deduplication window shortens it here.
    #[doc(hidden)]
    pub queue_limits: QueueLimits,
    /// Breaks D1 and O1 on purpose, so that the power-loss test can show that it would notice.
    #[doc(hidden)]
    pub acknowledge_before_sync: bool,
    /// Serves blocks of the checkpoint store unchecked, so that the tests of damage can show that they would notice.
    #[doc(hidden)]
    pub skip_block_checksums: bool,
}

impl Config {
    /// The smallest segment: a header, and records worth having.
    const JOURNAL_SEGMENT_BYTES_MIN: u64 = 16 << 10;

    /// The defaults in `data_dir`.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            ..Self::default()
        }
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.journal_segment_bytes
            .max(Self::JOURNAL_SEGMENT_BYTES_MIN)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("landfast-data"),
            journal_segment_bytes: 64 << 20,
            checkpoint_bytes: 256 << 20,
            cache_bytes: 16 << 20,
            storage: Arc::new(DiskStorage),
            queue_limits: QUEUE_LIMITS,
            acknowledge_before_sync: false,
            skip_block_checksums: false,
        }
    }
}
