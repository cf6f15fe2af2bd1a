//! Limits, delays, and the protocol.

use std::time::Duration;

use ports::{Error, KeyValue, Result, key_value::KeyValueLimits};
use primitives::Mutant;

use crate::broken::Broken;

/// When a write returns, and how many far writes are under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Once it is ordered near. Many far writes are under way, in the order of each lane.
    #[default]
    External,
    /// Once it is ordered near. One far write of one record is under way, as in the paper.
    Serial,
    /// Once it is durable far.
    Sync,
}

/// The limits of one shard. At each limit callers wait; no write is lost.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// When writes return.
    pub mode: Mode,
    /// Writers wait while this many bytes are not yet durable far.
    pub pending_bytes_max: usize,
    /// Writers wait while the oldest pending write is older than this.
    pub pending_age_max: Duration,
    /// How long a write waits to share a batch with others, while no barrier waits.
    pub linger: Duration,
    /// A lane with this many pending bytes does not wait for more.
    pub linger_bytes_max: usize,
    /// The most bytes of one batch, unless a single record is larger.
    pub batch_bytes_max: usize,
    /// The most batches of one lane that are under way.
    pub lane_batches_max: usize,
    /// The most batches of all lanes that are under way.
    pub window_batches_max: usize,
    /// The most bytes of all lanes that are under way.
    pub window_bytes_max: usize,
    /// The most lanes at a time; see [`Synchrony::lane`](crate::Synchrony::lane).
    pub lanes_max: usize,
    /// Clean items are evicted while the near store holds more bytes than this.
    pub near_bytes_max: usize,
    /// How long a renewal holds, and how long a successor waits without seeing one.
    pub lease: Duration,
    /// Whether other processes use the near store, too: one of them may own the shard, and be
    /// alive.
    pub near_is_shared: bool,
    /// The epoch of an instance in this process that has ended: an opening does not wait for its
    /// lease.
    pub ended_epoch: Option<u64>,
    /// The longest pause between two attempts to reach the far store.
    pub backoff_max: Duration,
    /// A rule that is broken, in tests.
    #[doc(hidden)]
    pub mutant: Mutant<Broken>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::External,
            pending_bytes_max: 64 * 1_024 * 1_024,
            pending_age_max: Duration::from_mins(10),
            linger: Duration::from_millis(1),
            linger_bytes_max: 64 * 1_024,
            batch_bytes_max: 256 * 1_024,
            lane_batches_max: 4,
            window_batches_max: 64,
            window_bytes_max: 8 * 1_024 * 1_024,
            lanes_max: 4_096,
            near_bytes_max: 1_024 * 1_024 * 1_024,
            lease: Duration::from_secs(10),
            near_is_shared: false,
            ended_epoch: None,
            backoff_max: Duration::from_secs(5),
            mutant: Mutant::NONE,
        }
    }
}

/// The most bytes that an item's version, remembered operations and encoding add to its attributes.
const ITEM_RESERVE_BYTES: usize = 8 * 1_024;
/// The byte of the kind, and the length of the partition.
const KEY_RESERVE_BYTES: usize = 3;
/// Items of a far batch beside users' items: owner row and cursor.
pub(crate) const FAR_ITEMS_RESERVE: usize = 2;
/// Items of a near write beside three for each key: owner row and record.
const NEAR_ITEMS_RESERVE: usize = 2;
/// Operations that an item remembers.
const OPERATIONS_REMEMBERED: usize = 64;
/// The most items of a page: each takes a second near read.
const PAGE_ITEMS_MAX: usize = 250;

/// The limits of both stores together, so that no write accepted near is refused far (E8).
pub(crate) fn limits_of(near: &dyn KeyValue, far: &dyn KeyValue) -> Result<KeyValueLimits> {
    let (near, far) = (near.limits(), far.limits());
    let near_items = near.transact_items_max.saturating_sub(NEAR_ITEMS_RESERVE) / 3;
    let far_items = far.transact_items_max.saturating_sub(FAR_ITEMS_RESERVE);
    let key_bytes = near.key_bytes_max.min(far.key_bytes_max);
    let item_bytes = near.item_bytes_max.min(far.item_bytes_max);
    // A batch needs one item and its cursor at least.
    if near_items.min(far_items) < 2 || item_bytes < 2 * ITEM_RESERVE_BYTES || key_bytes < 64 {
        return Err(Error::invalid(
            "pair two stores of which one takes too little at a time",
        ));
    }
    let items = near_items.min(far_items);
    Ok(KeyValueLimits {
        key_bytes_max: (key_bytes - KEY_RESERVE_BYTES) / 2,
        item_bytes_max: item_bytes - ITEM_RESERVE_BYTES,
        transact_items_max: items,
        transact_across_partitions: true,
        page_items_max: near
            .page_items_max
            .min(far.page_items_max)
            .min(PAGE_ITEMS_MAX),
        page_is_snapshot: near.page_is_snapshot,
        operations_remembered: OPERATIONS_REMEMBERED,
        operation_retention_ms: u64::MAX,
        tells_room: false,
    })
}
