//! The configuration of the store.

use std::{path::PathBuf, sync::Arc};

use ports::queue::QueueLimits;

use crate::storage::{DiskStorage, Storage};

/// The default limits of the queues.
pub(crate) const QUEUE_LIMITS: QueueLimits = QueueLimits {
    message_bytes_max: 4 << 20,
    batch_messages_max: 256,
    dead_letters_max: 10_000,
    deduplication_window_ms: 5 * 60 * 1000,
    shares_journal: true,
};

/// The location and the sizes of the store. All sizes are bytes.
#[derive(Debug, Clone)]
pub struct Config {
    /// The data directory. Opening creates it if it is missing.
    pub data_dir: PathBuf,
    /// The disk space that a journal segment is allocated at once. One more segment stays allocated
    /// as a spare.
    pub journal_segment_bytes: u64,
    /// How much journal accumulates before a checkpoint. This bounds the time of a recovery. It
    /// also bounds memory by the number of records that fit: each takes about 600 bytes beside its
    /// key and value.
    pub checkpoint_bytes: u64,
    /// From this many records since the last checkpoint on, a store at rest makes one, to free
    /// their memory.
    pub records_at_rest_max: usize,
    /// The memory bound for items read from the checkpoint store. The store's pages may take a
    /// quarter as much again: the system caches them too, and items that are read often are kept.
    pub cache_bytes: u64,
    /// The file operations. Tests replace them with faulty ones.
    #[doc(hidden)]
    pub storage: Arc<dyn Storage>,
    /// The limits of the queues. A test of the deduplication window shortens it here.
    #[doc(hidden)]
    pub queue_limits: QueueLimits,
    /// Breaks D1 and O1, so that the power-loss test can prove that it detects this.
    #[doc(hidden)]
    pub acknowledge_before_sync: bool,
    /// Serves blocks of the checkpoint store unchecked, so that the damage tests can prove that
    /// they detect this.
    #[doc(hidden)]
    pub skip_block_checksums: bool,
    /// Deletes objects although a backup reads them, so that its test can prove that it detects
    /// this.
    #[doc(hidden)]
    pub release_deleted_objects: bool,
}

impl Config {
    /// The smallest segment: a header and a useful number of records.
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
            records_at_rest_max: 4 << 10,
            cache_bytes: 16 << 20,
            storage: Arc::new(DiskStorage),
            queue_limits: QUEUE_LIMITS,
            acknowledge_before_sync: false,
            skip_block_checksums: false,
            release_deleted_objects: false,
        }
    }
}
