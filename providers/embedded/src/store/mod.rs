//! The records in their present state: the overlay over the last checkpoint, with a cache of clean
//! items.
//!
//! One lock ([`crate::engine`]) guards everything, including reads of the checkpoint store. Those
//! reads are local, and a condition and its change must see one state anyway.
//!
//! Invariants
//! - The cache holds an item as the checkpoint store has it, or as the generation that just left
//!   the overlay had it. A lookup always asks the overlay first.
//! - Room for a change is reserved before the change is made (rule P6). A failed [`Store::reserve`]
//!   changed nothing, and a change that it accepted always fits the journal.
//! - The last of the room is a reserve ([`UseReserve`]), so that a full disk does not stop changes
//!   that must go on. Changes that only remove have a part of it for themselves.
//! - `position` counts the ordered mutations, and each adds one.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use bytes::Bytes;
use ports::{
    DurabilityPoint, Error, ErrorKind, Incarnation, Position, Receipt, Result,
    key_value::{Version, evaluate::Stored},
};
use quick_cache::{Weighter, sync::Cache};

use crate::{
    checkpoint_store::{CheckpointStore, Damage, StoreError, View},
    durability::Durability,
    journal::spare::Spare,
    records::{
        Record, RecordKey, StoredItem, Table,
        overlay::{Generation, Known, Overlay},
    },
};

mod room;
mod walk;

pub(crate) use self::room::UseReserve;

/// Items as in the checkpoint store, by key.
pub(crate) type ItemCache = Cache<Bytes, StoredItem, ItemWeight>;

/// Weighs a cached item by its memory.
#[derive(Debug, Clone)]
pub(crate) struct ItemWeight;

impl Weighter<Bytes, StoredItem> for ItemWeight {
    fn weight(&self, key: &Bytes, item: &StoredItem) -> u64 {
        const FIXED: usize = 200;
        (FIXED + key.len() + item.bytes_len()) as u64
    }
}

const ITEM_BYTES_TYPICAL: u64 = 512;

/// A cache bounded by `bytes`.
fn item_cache(bytes: u64) -> ItemCache {
    Cache::with_weighter((bytes / ITEM_BYTES_TYPICAL) as usize, bytes, ItemWeight)
}

/// How many damaged keys are remembered. Beyond that, the smallest key is forgotten.
const DAMAGED_MAX: usize = 1024;

/// The records, and the state needed to order a change.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) overlay: Overlay,
    pub(crate) view: Option<View>,
    pub(crate) below: Arc<CheckpointStore>,
    /// Whether the view of an existing checkpoint is lost: a read failed, and the checkpoint store
    /// could not be opened again.
    pub(crate) is_view_lost: bool,
    /// Encoded keys, and starts of walks, whose read met damage. They are not read again: each
    /// failure forces the checkpoint store to be opened again, and fails a running checkpoint.
    pub(crate) damaged: BTreeMap<Vec<u8>, Damage>,
    pub(crate) cache: Arc<ItemCache>,
    pub(crate) incarnation: u64,
    pub(crate) position: u64,
    /// Room in the current segment after the groups already placed there.
    pub(crate) tail_room: u64,
    /// Room in the spare segment.
    pub(crate) spare_room: u64,
    pub(crate) spare: Arc<Spare>,
    pub(crate) durability: Arc<Durability>,
    /// Whether the journal thread knows of the changes.
    pub(crate) announced: bool,
    /// The bytes that the last mutation needed if it was refused for lack of room; zero otherwise.
    pub(crate) refused_bytes: u64,
    /// How many bytes of reserved room the pending changes may take.
    pub(crate) reserved_bytes: u64,
    /// Why changes that add to the store are refused, although the journal may have room.
    pub(crate) growth_refused: Option<&'static str>,
    /// Whether the next group must go to another segment, so that a checkpoint can free the current
    /// one.
    pub(crate) rotation_wanted: bool,
    /// Whether an early checkpoint would free journal segments.
    pub(crate) checkpoint_wanted: bool,
    /// Whether the next checkpoint is made because the store is at rest.
    pub(crate) is_at_rest: bool,
    pub(crate) early_checkpoint_at: Option<Instant>,
    pub(crate) scratch: Vec<u8>,
}

/// The state of an item that does not exist.
static NOTHING: Stored = Stored {
    item: None,
    version: Version(0),
    memory: None,
};

impl Store {
    /// The store of an incarnation that begins at `point`, with no room reserved in the journal yet.
    pub(crate) fn new(
        overlay: Overlay,
        view: Option<View>,
        point: DurabilityPoint,
        below: Arc<CheckpointStore>,
        spare: Arc<Spare>,
        durability: Arc<Durability>,
        cache_bytes: u64,
    ) -> Self {
        spare.set_has_room(true);
        Self {
            overlay,
            view,
            below,
            is_view_lost: false,
            damaged: BTreeMap::new(),
            cache: Arc::new(item_cache(cache_bytes)),
            incarnation: point.incarnation.0,
            position: point.position.0,
            tail_room: 0,
            spare_room: 0,
            spare,
            durability,
            announced: false,
            growth_refused: None,
            refused_bytes: 0,
            reserved_bytes: 0,
            checkpoint_wanted: false,
            is_at_rest: false,
            rotation_wanted: false,
            early_checkpoint_at: None,
            scratch: Vec::new(),
        }
    }

    /// The last ordered point (rule P4).
    pub(crate) fn point(&self) -> DurabilityPoint {
        DurabilityPoint {
            incarnation: Incarnation(self.incarnation),
            position: Position(self.position),
        }
    }

    /// A receipt for the last ordered point.
    pub(crate) fn receipt(&self) -> Receipt {
        Receipt {
            point: self.point(),
        }
    }

    /// Orders the latest changes as one mutation. The caller has reserved room, at least for a
    /// record that only holds the new end position.
    pub(crate) fn order(&mut self) -> DurabilityPoint {
        debug_assert!(
            self.overlay.pending_bytes() <= self.reserved_bytes,
            "the changes exceed the reserved room"
        );
        self.position += 1;
        self.announce();
        self.point()
    }

    /// Tells the journal thread of changes, once per group.
    pub(crate) fn announce(&mut self) {
        if !self.announced {
            self.announced = true;
            self.durability.note_change();
        }
    }

    /// Checks that the state at `basis` was not lost (D4). Costs nothing for a point of this
    /// incarnation.
    pub(crate) fn check_dependency(&self, basis: DurabilityPoint) -> Result<()> {
        if basis == DurabilityPoint::DURABLE || basis.incarnation.0 == self.incarnation {
            return Ok(());
        }
        match self.durability.outcome(basis) {
            Some(Err(error)) if error.kind() == ErrorKind::Lost => Err(error),
            _ => Ok(()),
        }
    }

    /// The record under `key`.
    pub(crate) fn record(&mut self, key: &RecordKey) -> Result<Option<Record>> {
        match self.overlay.get(key) {
            Known::Present(record) => return Ok(Some(record.clone())),
            Known::Deleted => return Ok(None),
            Known::Nothing => {}
        }
        let mut encoded = std::mem::take(&mut self.scratch);
        encoded.clear();
        key.write(&mut encoded);
        let read = self.read_below(&encoded, |view| view.get(&encoded));
        self.scratch = encoded;
        let read = read.map_err(|error| unreadable(key, error))?.flatten();
        let decode = |bytes| Record::decode(key.table, bytes).ok_or_else(|| undecodable(key));
        read.map(decode).transpose()
    }

    /// Calls `on` with the item under `key`, with its operation memory. A deleted item past its
    /// retention counts as never created. Also returns whether a lower level may hold it, so that a
    /// deletion must be written.
    pub(crate) fn with_item<T>(
        &mut self,
        key: &RecordKey,
        on: impl FnOnce(&Stored) -> T,
    ) -> Result<(T, bool)> {
        let clean;
        let found = match self.overlay.get(key) {
            Known::Present(Record::Item(item)) => Some(item),
            Known::Present(_) => return Err(undecodable(key)),
            Known::Deleted => None,
            Known::Nothing => {
                clean = self.clean_item(key)?;
                clean.as_ref()
            }
        };
        let is_there =
            |item: &&StoredItem| item.stored.item.is_some() || !item.is_expired(now_ms());
        let stored = found.filter(is_there).map_or(&NOTHING, |item| &item.stored);
        Ok((on(stored), found.is_some()))
    }

    fn clean_item(&mut self, key: &RecordKey) -> Result<Option<StoredItem>> {
        if self.view.is_none() && !self.is_view_lost {
            return Ok(None);
        }
        if let Some(item) = self.cache.get(&key.key) {
            return Ok(Some(item));
        }
        match self.record(key)? {
            None => Ok(None),
            Some(Record::Item(item)) => {
                self.cache.insert(key.key.clone(), item.clone());
                Ok(Some(item))
            }
            Some(_) => Err(undecodable(key)),
        }
    }

    /// Runs `read` on the last checkpoint; none without a checkpoint. `what` is the encoded key at
    /// which the read begins.
    fn read_below<T>(
        &mut self,
        what: &[u8],
        read: impl Fn(&View) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        if let Some(damage) = self.damaged.get(what) {
            return Err(Box::new(redb::Error::Io(damage.clone().into())));
        }
        let mut has_retried = false;
        loop {
            if self.is_view_lost {
                self.open_below()?;
            }
            let Some(view) = &self.view else {
                return Ok(None);
            };
            match read(view) {
                Ok(found) => return Ok(Some(found)),
                // A failed checkpoint closes the store to all readers.
                Err(error) if Damage::in_error(&error).is_none() && !has_retried => {
                    has_retried = true;
                    self.is_view_lost = true;
                }
                Err(error) => {
                    self.failed_below(what, &error);
                    return Err(error);
                }
            }
        }
    }

    /// Handles a failed read of the last checkpoint at `what`, after which redb refuses everything
    /// until it is opened again.
    fn failed_below(&mut self, what: &[u8], error: &redb::Error) {
        self.below.note_damage(error);
        if let Some(damage) = Damage::in_error(error) {
            if self.damaged.len() == DAMAGED_MAX {
                self.damaged.pop_first();
            }
            self.damaged.insert(what.to_vec(), damage.clone());
        }
        // The next read tries again and reports the failure.
        let _ = self.open_below();
    }

    /// Opens the checkpoint store again. If that fails, the next read tries again.
    pub(crate) fn open_below(&mut self) -> Result<(), StoreError> {
        self.view = None;
        self.is_view_lost = true;
        self.below.reopen()?;
        self.view = self.below.view()?;
        self.is_view_lost = false;
        Ok(())
    }
}

fn unreadable(key: &RecordKey, error: StoreError) -> Error {
    let kind = match &*error {
        redb::Error::Corrupted(_) => ErrorKind::Corrupt,
        error if Damage::in_error(error).is_some() => ErrorKind::Corrupt,
        _ => ErrorKind::Unavailable {
            retry_after_ms: Some(100),
        },
    };
    Error::new(kind, format!("read {key:?} from the checkpoint store")).caused_by(error)
}

fn undecodable(key: &RecordKey) -> Error {
    Error::corrupt(format!("decode {key:?}"))
}

/// The wall clock in milliseconds since the epoch, for expiries.
pub(crate) fn now_ms() -> u64 {
    let elapsed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| elapsed.as_millis() as u64)
}

/// Updates the cache from a generation that the checkpoint store now holds, before the overlay
/// drops it. Of a generation beyond the cache nothing is kept: any part would be an arbitrary one,
/// and would keep the allocator from returning the memory between its items. Nothing is kept at
/// rest either, because that checkpoint is made to free the memory.
pub(crate) fn refresh_cache(cache: &ItemCache, generation: &Generation, is_at_rest: bool) {
    let fits = !is_at_rest && generation.len() as u64 * ITEM_BYTES_TYPICAL <= cache.capacity();
    for (key, slot) in generation
        .iter()
        .filter(|(key, _)| key.table == Table::Item)
    {
        match &slot.record {
            Some(Record::Item(item)) if fits => cache.insert(key.key.clone(), item.clone()),
            _ => {
                cache.remove(&key.key);
            }
        }
    }
}
