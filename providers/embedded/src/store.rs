//! The records as everybody sees them: the overlay, over the last checkpoint, beside a cache of clean items.
//!
//! One lock guards it all ([`crate::engine`]), reads of the checkpoint store included: they are local, and a
//! condition and its change must see one state anyway.
//!
//! Invariants
//! - The cache holds an item only as the checkpoint store has it, or as the generation that just left the
//!   overlay had it; the overlay is always asked first.
//! - Room for a change is reserved before the change is made (rule P6): [`Store::reserve`] fails having
//!   changed nothing, and what it let pass always fits the journal.
//! - The last of the room is a reserve, which only those take that were given it ([`Claim`]): a full disk keeps
//!   nobody from what must go on.
//! - `position` is the number of mutations ordered; it moves by one with each.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ports::{
    DurabilityPoint, Error, ErrorKind, Incarnation, Position, Result,
    key_value::{Room, evaluate::Stored},
};
use quick_cache::{Weighter, sync::Cache};

use crate::{
    base::{Base, BaseError, View, ViewRange},
    blocks::Damage,
    durability::Durability,
    journal::{
        frame::{PAYLOAD_BYTES_MAX, frame_bound},
        segment::Spare,
    },
    overlay::{Generation, Known, Overlay, entry_bound},
    record::{Record, RecordKey, StoredItem, Table, memory_bytes},
};

/// Clean items by their key.
pub(crate) type ItemCache = Cache<Bytes, Arc<StoredItem>, ItemWeight>;

/// A cached item weighs what it keeps in memory.
#[derive(Debug, Clone)]
pub(crate) struct ItemWeight;

impl Weighter<Bytes, Arc<StoredItem>> for ItemWeight {
    fn weight(&self, key: &Bytes, item: &Arc<StoredItem>) -> u64 {
        const FIXED: usize = 200;
        (FIXED + key.len() + item.bytes_len()) as u64
    }
}

/// A cache of `bytes`.
pub(crate) fn item_cache(bytes: u64) -> ItemCache {
    const ITEM_BYTES_TYPICAL: u64 = 512;
    Cache::with_weighter((bytes / ITEM_BYTES_TYPICAL) as usize, bytes, ItemWeight)
}

/// How many keys are remembered whose reading has met damage.
const DAMAGED_MAX: usize = 1024;

/// Begins what a walk over records is remembered by; no table has this number.
const WALK: u8 = u8::MAX;

/// How often a refusal for lack of room may ask for an early checkpoint.
const EARLY_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// The records, and what ordering a change needs.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) overlay: Overlay,
    pub(crate) view: Option<View>,
    pub(crate) base: Arc<Base>,
    /// There is a checkpoint, and no view of it: it could not be opened again when reading it had failed.
    pub(crate) is_view_lost: bool,
    /// Encoded keys, and beginnings of walks, whose reading has met damage. They are not read again, since each failure costs opening the
    /// checkpoint store again, and fails a checkpoint that is being made.
    pub(crate) damaged: BTreeMap<Vec<u8>, Damage>,
    pub(crate) cache: Arc<ItemCache>,
    pub(crate) incarnation: u64,
    pub(crate) position: u64,
    /// Room behind the groups already placed in the current segment.
    pub(crate) tail_room: u64,
    /// Room in the spare segment.
    pub(crate) spare_room: u64,
    pub(crate) spare: Arc<Spare>,
    pub(crate) durability: Arc<Durability>,
    /// Whether the journal thread knows that there are changes.
    pub(crate) announced: bool,
    /// What there was room for when a mutation last asked.
    pub(crate) room: Room,
    /// What the last mutation needed if it was refused for lack of room; zero: it was not.
    pub(crate) refused_bytes: u64,
    /// How far the changes that wait for the journal may grow in the room that was reserved.
    pub(crate) reserved_bytes: u64,
    /// Whether what makes the store larger is taken.
    pub(crate) growth: Growth,
    /// The next group goes to another segment, so that a checkpoint can give this one back.
    pub(crate) rotation_wanted: bool,
    /// An early checkpoint would free journal segments.
    pub(crate) checkpoint_wanted: bool,
    pub(crate) early_checkpoint_at: Option<Instant>,
    pub(crate) scratch: Vec<u8>,
}

/// Whether a change may take the last of the room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It leaves the reserve.
    Ordinary,
    /// It may use the reserve.
    Reserve,
}

impl Claim {
    /// The claim of a change. Who frees as much as the journal takes for it gets out of a full store by it, and may use the
    /// reserve: a reserve spent on it has made room.
    pub(crate) fn freeing(
        self,
        Freed {
            takes,
            earlier,
            left,
        }: Freed,
    ) -> Self {
        if earlier > 0 && takes <= earlier.saturating_sub(left) {
            Self::Reserve
        } else {
            self
        }
    }
}

/// What a change makes of the items that it changes, in bytes. Their keys and the operations that they remember count, too, and
/// so does the cursor of a lane.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Freed {
    /// What the journal takes for them, at most.
    takes: u64,
    /// What they took before it, at least.
    earlier: u64,
    /// What they take after it, at most.
    left: u64,
}

impl Freed {
    /// Counts the change of `earlier` to `record`. Of a deletion the key alone counts: what it is remembered by goes in time.
    pub(crate) fn count(&mut self, key: &RecordKey, earlier: &Stored, record: Option<&Record>) {
        if let Some(item) = &earlier.item {
            self.earlier +=
                (entry_bound(key, None) + item.bytes_len() + memory_bytes(earlier)) as u64;
        }
        let left = record
            .filter(|record| matches!(record, Record::Item(item) if item.stored.item.is_some()));
        let bytes = entry_bound(key, left) as u64;
        self.takes += bytes;
        self.left += if left.is_some() { bytes } else { 0 };
    }

    /// Counts that a lane's cursor moves, which takes as much as before, or was not there.
    pub(crate) fn count_cursor(&mut self, lane: &RecordKey, cursor: &Record, is_new: bool) {
        let bytes = entry_bound(lane, Some(cursor)) as u64;
        self.takes += bytes;
        self.left += if is_new { bytes } else { 0 };
    }
}

/// Whether what makes the store larger is taken, as far as the checkpoint store knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// It is.
    Taken,
    /// The last checkpoint found no room, or took what the next one needs to take in deletions.
    NoRoom,
    /// Checkpoints fail, and the journal has grown as long as it may without one.
    NoCheckpoints,
}

/// A record, and whether a deletion of it would have something to delete.
#[derive(Debug)]
pub(crate) struct Found<T> {
    pub(crate) value: Option<T>,
    pub(crate) below: bool,
}

impl Store {
    /// Where the store stands (rule P4).
    pub(crate) fn point(&self) -> DurabilityPoint {
        DurabilityPoint {
            incarnation: Incarnation(self.incarnation),
            position: Position(self.position),
        }
    }

    /// Orders the changes just made as one mutation. Room was reserved for it: at least for a record that says how far it went.
    pub(crate) fn order(&mut self) -> DurabilityPoint {
        debug_assert!(
            self.overlay.pending_bytes() <= self.reserved_bytes,
            "more was changed than room reserved for"
        );
        self.position += 1;
        self.announce();
        self.point()
    }

    /// Tells the journal thread of changes, once per group.
    pub(crate) fn announce(&mut self) {
        if !self.announced {
            self.announced = true;
            self.durability.changed();
        }
    }

    /// Whether what was there at `basis` is still there (D4). Costs nothing where it is of this incarnation.
    pub(crate) fn check_basis(&self, basis: DurabilityPoint) -> Result<()> {
        if basis == DurabilityPoint::DURABLE || basis.incarnation.0 == self.incarnation {
            return Ok(());
        }
        match self.durability.judge(basis) {
            Some(Err(error)) if error.kind() == ErrorKind::Lost => Err(error),
            _ => Ok(()),
        }
    }

    /// The record under `key`.
    pub(crate) fn record(&mut self, key: &RecordKey) -> Result<Found<Record>> {
        match self.overlay.get(key) {
            Known::Present(record) => {
                return Ok(Found {
                    value: Some(record.clone()),
                    below: true,
                });
            }
            Known::Deleted => {
                return Ok(Found {
                    value: None,
                    below: false,
                });
            }
            Known::Nothing => {}
        }
        let mut encoded = std::mem::take(&mut self.scratch);
        encoded.clear();
        key.write(&mut encoded);
        let read = self.read_below(&encoded, |view| view.get(&encoded));
        self.scratch = encoded;
        let Some(bytes) = read.map_err(|error| unreadable(key, error))?.flatten() else {
            return Ok(Found {
                value: None,
                below: false,
            });
        };
        let record = Record::decode(key.table, bytes).ok_or_else(|| undecodable(key))?;
        Ok(Found {
            value: Some(record),
            below: true,
        })
    }

    /// The item under `key`, with its memory. One past its retention counts as never having been.
    pub(crate) fn item(&mut self, key: &RecordKey) -> Result<Found<Arc<StoredItem>>> {
        let found = match self.overlay.get(key) {
            Known::Present(Record::Item(item)) => Found {
                value: Some(Arc::clone(item)),
                below: true,
            },
            Known::Present(_) => return Err(undecodable(key)),
            Known::Deleted => Found {
                value: None,
                below: false,
            },
            Known::Nothing => self.clean_item(key)?,
        };
        match &found.value {
            Some(item) if item.stored.item.is_none() && item.is_expired(now_ms()) => Ok(Found {
                value: None,
                below: found.below,
            }),
            _ => Ok(found),
        }
    }

    fn clean_item(&mut self, key: &RecordKey) -> Result<Found<Arc<StoredItem>>> {
        if self.view.is_none() && !self.is_view_lost {
            return Ok(Found {
                value: None,
                below: false,
            });
        }
        if let Some(item) = self.cache.get(&key.key) {
            return Ok(Found {
                value: Some(item),
                below: true,
            });
        }
        match self.record(key)? {
            Found { value: None, below } => Ok(Found { value: None, below }),
            Found {
                value: Some(Record::Item(item)),
                below,
            } => {
                self.cache.insert(key.key.clone(), Arc::clone(&item));
                Ok(Found {
                    value: Some(item),
                    below,
                })
            }
            Found { .. } => Err(undecodable(key)),
        }
    }

    /// What `read` finds in the last checkpoint, if there is one. `what` is the encoded key it begins at.
    fn read_below<T>(
        &mut self,
        what: &[u8],
        read: impl Fn(&View) -> Result<T, BaseError>,
    ) -> Result<Option<T>, BaseError> {
        if let Some(damage) = self.damaged.get(what) {
            return Err(Box::new(redb::Error::Io(damage.clone().into())));
        }
        let mut is_again = false;
        loop {
            if self.is_view_lost {
                self.open_below()?;
            }
            let Some(view) = &self.view else {
                return Ok(None);
            };
            match read(view) {
                Ok(found) => return Ok(Some(found)),
                // A checkpoint that failed has closed the store to everybody.
                Err(error) if Damage::in_error(&error).is_none() && !is_again => {
                    is_again = true;
                    self.is_view_lost = true;
                }
                Err(error) => {
                    self.failed_below(what, &error);
                    return Err(error);
                }
            }
        }
    }

    /// Reading the last checkpoint at `what` has failed, and redb refuses everything until it is opened again.
    fn failed_below(&mut self, what: &[u8], error: &redb::Error) {
        self.base.note_damage(error);
        if let Some(damage) = Damage::in_error(error) {
            if self.damaged.len() == DAMAGED_MAX {
                self.damaged.pop_first();
            }
            self.damaged.insert(what.to_vec(), damage.clone());
        }
        // Whoever reads next tries again, and hears why it fails.
        let _ = self.open_below();
    }

    fn open_below(&mut self) -> Result<(), BaseError> {
        self.view = None;
        self.is_view_lost = true;
        self.base.reopen()?;
        self.view = self.base.view()?;
        self.is_view_lost = false;
        Ok(())
    }

    /// Sets a record; none deletes it. `below` is what [`Found`] said, or false for a key never used before.
    pub(crate) fn set(&mut self, key: RecordKey, record: Option<Record>, below: bool) {
        self.overlay.set(key, record, below);
    }

    /// Reserves room for records that take `bytes` of journal.
    ///
    /// Errors: `NoRoom`, having asked the disk; `Unavailable` while the journal is too far behind.
    pub(crate) fn reserve(&mut self, bytes: u64, claim: Claim) -> Result<()> {
        self.reserved_bytes = self.overlay.pending_bytes() + bytes;
        let needed = frame_bound(self.reserved_bytes);
        let kept = self.spare.reserve_bytes();
        if self.growth == Growth::Taken && self.leaves(kept, needed) {
            self.find_room(Room::Free);
            return Ok(());
        }
        if needed > PAYLOAD_BYTES_MAX {
            if frame_bound(bytes) > PAYLOAD_BYTES_MAX {
                return Err(Error::invalid(format!("change {bytes} bytes at once")));
            }
            self.durability.force();
            let kind = ErrorKind::Unavailable {
                retry_after_ms: Some(20),
            };
            return Err(Error::new(
                kind,
                "order a change while the journal is behind",
            ));
        }
        if !self.leaves(kept, needed) {
            self.spare_room = self.spare.grow(needed + kept);
        }
        if self.growth == Growth::Taken && self.leaves(kept, needed) {
            self.find_room(Room::Free);
            return Ok(());
        }
        let room = if self.leaves(kept / 2, needed) {
            Room::Scarce
        } else if self.leaves(kept / 8, needed) {
            Room::Critical
        } else {
            Room::Exhausted
        };
        self.find_room(room);
        self.want_early_checkpoint();
        if claim == Claim::Reserve && self.leaves(0, needed) {
            return Ok(());
        }
        self.refused_bytes = bytes;
        let attempted = match self.growth {
            Growth::Taken => format!("journal {bytes} bytes"),
            Growth::NoRoom => {
                format!("take {bytes} bytes more, which no checkpoint would have room for")
            }
            Growth::NoCheckpoints => format!("journal {bytes} bytes more while checkpoints fail"),
        };
        Err(Error::new(ErrorKind::NoRoom, attempted))
    }

    /// What there is room for now, having asked the disk if it was too little. It stays too little until what was
    /// refused would fit, up to the size of the reserve.
    pub(crate) fn ask_for_room(&mut self) -> Room {
        if self.room != Room::Free || self.refused_bytes > 0 {
            let bytes = self.refused_bytes.min(self.spare.reserve_bytes());
            // What is refused here was asked for by nobody.
            let _ = self.reserve(bytes, Claim::Ordinary);
        }
        self.room
    }

    /// Whether a group that takes `needed` leaves `kept` bytes in one piece.
    fn leaves(&self, kept: u64, needed: u64) -> bool {
        let together = needed + kept;
        together <= self.tail_room
            || together <= self.spare_room
            || (needed <= self.tail_room && kept <= self.spare_room)
    }

    /// From now on growth is taken, or is not.
    pub(crate) fn set_growth(&mut self, growth: Growth) {
        self.growth = growth;
        if growth != Growth::Taken {
            self.find_room(self.room.min(Room::Scarce));
        }
    }

    fn find_room(&mut self, room: Room) {
        self.room = room;
        self.spare.note_scarcity(room != Room::Free);
        if room == Room::Free {
            self.refused_bytes = 0;
        }
    }

    fn want_early_checkpoint(&mut self) {
        let now = Instant::now();
        if self
            .early_checkpoint_at
            .is_none_or(|last| now - last > EARLY_CHECKPOINT_INTERVAL)
        {
            self.early_checkpoint_at = Some(now);
            self.checkpoint_wanted = true;
            self.durability.force();
        }
    }

    /// Hands the records from `from` on and before `until` to `visit`, in order, until it answers false.
    pub(crate) fn range(
        &mut self,
        from: &RecordKey,
        until: &RecordKey,
        visit: impl FnMut(RecordKey, Entry<'_>) -> Result<bool>,
    ) -> Result<()> {
        // What is remembered as damaged is the walk, not the record that it would begin with.
        let (mut walk, mut until_bytes) = (vec![WALK], Vec::new());
        from.write(&mut walk);
        until.write(&mut until_bytes);
        let range = self.read_below(&walk, |view| view.range(&walk[1..], &until_bytes));
        let range = range.map_err(|error| unreadable(from, error))?;
        match self.merge(range, from, until, visit) {
            Ok(()) => Ok(()),
            Err(Stopped::Visit(error)) => Err(error),
            Err(Stopped::Below(error)) => {
                self.failed_below(&walk, &error);
                Err(unreadable(from, error))
            }
        }
    }

    fn merge(
        &self,
        range: Option<ViewRange>,
        from: &RecordKey,
        until: &RecordKey,
        mut visit: impl FnMut(RecordKey, Entry<'_>) -> Result<bool>,
    ) -> Result<(), Stopped> {
        let mut below = Below::start(range)?;
        for (key, record) in self.overlay.range(from, until) {
            while let Some((clean_key, clean)) = below.before(key)? {
                if !visit(clean_key, Entry::Clean(clean))? {
                    return Ok(());
                }
            }
            below.skip(key)?;
            if let Some(record) = record
                && !visit(key.clone(), Entry::Changed(record))?
            {
                return Ok(());
            }
        }
        while let Some((clean_key, clean)) = below.take()? {
            if !visit(clean_key, Entry::Clean(clean))? {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Why a walk over records ended early.
enum Stopped {
    /// The checkpoint store could not be read.
    Below(BaseError),
    /// Who was visited had enough.
    Visit(Error),
}

impl From<BaseError> for Stopped {
    fn from(error: BaseError) -> Self {
        Self::Below(error)
    }
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Visit(error)
    }
}

/// A record met by [`Store::range`].
pub(crate) enum Entry<'store> {
    /// From the overlay.
    Changed(&'store Record),
    /// From the checkpoint store, still encoded.
    Clean(Bytes),
}

impl Entry<'_> {
    pub(crate) fn record(self, key: &RecordKey) -> Result<Record> {
        match self {
            Self::Changed(record) => Ok(record.clone()),
            Self::Clean(bytes) => Record::decode(key.table, bytes).ok_or_else(|| undecodable(key)),
        }
    }
}

/// The checkpoint store's side of a merge, one record ahead.
struct Below {
    range: Option<ViewRange>,
    ahead: Option<(RecordKey, Bytes)>,
}

impl Below {
    fn start(range: Option<ViewRange>) -> Result<Self, BaseError> {
        let mut below = Self { range, ahead: None };
        below.take()?;
        Ok(below)
    }

    /// The record ahead; the next one takes its place.
    fn take(&mut self) -> Result<Option<(RecordKey, Bytes)>, BaseError> {
        let next = match &mut self.range {
            None => None,
            Some(range) => range.next()?,
        };
        Ok(std::mem::replace(&mut self.ahead, next))
    }

    fn before(&mut self, key: &RecordKey) -> Result<Option<(RecordKey, Bytes)>, BaseError> {
        if self.ahead.as_ref().is_some_and(|(ahead, _)| ahead < key) {
            self.take()
        } else {
            Ok(None)
        }
    }

    fn skip(&mut self, key: &RecordKey) -> Result<(), BaseError> {
        if self.ahead.as_ref().is_some_and(|(ahead, _)| ahead == key) {
            self.take()?;
        }
        Ok(())
    }
}

fn unreadable(key: &RecordKey, error: BaseError) -> Error {
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

/// The wall clock, for what is kept for a time.
pub(crate) fn now_ms() -> u64 {
    let elapsed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    elapsed.map_or(0, |elapsed| elapsed.as_millis() as u64)
}

/// Brings the cache in line with a generation that the checkpoint store has taken in, before it thaws.
pub(crate) fn refresh_cache(cache: &ItemCache, generation: &Generation) {
    for (key, slot) in generation
        .iter()
        .filter(|(key, _)| key.table == Table::Item)
    {
        match &slot.record {
            Some(Record::Item(item)) => cache.insert(key.key.clone(), Arc::clone(item)),
            _ => {
                cache.remove(&key.key);
            }
        }
    }
}
