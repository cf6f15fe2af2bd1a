//! Fragments in function memory: which chunk lies on which function.
//!
//! The window counts reads and moves by chunks. A fragment is read, moved and released as a whole,
//! so its chunk 0 stands for all of them there. Its function is the one in the oldest group, so
//! that a fragment is moved before its first chunk is released.
//!
//! Invariants
//! - Two chunks of a fragment are never on one function: chunk `i` is on function `i` of its group.
//! - A fragment is found here only once enough of its chunks were written whole.
//! - Each missing chunk has its function queued for recovery ([`crate::lost`]), or its function was
//!   dropped. A fragment whose chunk has no space there is forgotten.
//! - A fragment is forgotten with the first of its groups that is released.
//! - The space of an evicted chunk is used again only after its last reader has ended.
//!
//! A fragment is *cached* if a read missed it: its functions were released, or failed while they
//! were degraded, or memory had no place for it. Cached fragments are evicted, the least recently
//! used first, when a chunk finds no space in an instance. All else is *stored*: what was put, and
//! what was cached or in an old group and was read again. In the paper the function evicts (section
//! 5.4). Here the daemon does, because it reads the shared memory without a call, so that only it
//! knows its readers.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use ports::metering::function_memory::{Category, Counted, FunctionMemoryMeter};
use primitives::Mutant;
use tokio::sync::mpsc;

use crate::{
    broken::Broken,
    fragment::{Fragment, FragmentName, SegmentId, Stripe},
    function::{PAGE_BYTES, Partition},
    groups::{Groups, Place},
    instance::{ChunkName, HeldChunk, ReserveError, Slot},
    least_recently_used::LeastRecentlyUsed,
    resident_changes::{Changes, ROWS_MAX},
    window::{Accessed, FunctionId, GroupId},
};

/// The fragments that wait to be loaded into memory. Further ones stay in the object store until
/// they are read again.
const LOADS_MAX: usize = 64;
/// The attempts to find space for a fragment. Each failure seals a group.
const ATTEMPTS_MAX: usize = 3;

/// The chunks of one fragment in memory.
#[derive(Debug)]
pub(crate) struct Chunks {
    pub(crate) fragment: Fragment,
    pub(crate) partition: Partition,
    /// The number of the load. No other load of any fragment has it.
    load: u64,
    /// By index.
    functions: Vec<FunctionId>,
    /// By index; none: its instance is dead.
    held: Vec<Option<HeldChunk>>,
    /// Its content is counted once, also while it moves.
    resident: Arc<Counted>,
    mutant: Mutant<Broken>,
}

impl Chunks {
    /// Reads a unit with its checksum into `cell`. Whether it is there and intact (M4).
    pub(crate) fn read(&self, stripe: &Stripe, unit: usize, cell: &mut [u8]) -> bool {
        let Some(chunk) = self.held.get(unit).and_then(Option::as_ref) else {
            return false;
        };
        chunk.read(stripe.in_chunk().start, cell).is_ok() && self.is_intact(stripe, unit, cell)
    }

    fn is_intact(&self, stripe: &Stripe, unit: usize, cell: &[u8]) -> bool {
        stripe.is_intact(unit, cell) || self.mutant.breaks(Broken::TrustsUnits)
    }

    /// The content of a unit, if it is there and intact (M4).
    pub(crate) fn unit(&self, stripe: &Stripe, unit: usize) -> Option<Bytes> {
        let chunk = self.held.get(unit)?.as_ref()?;
        let cell = chunk.share(stripe.in_chunk().start, stripe.cell_bytes());
        let cell = cell
            .ok()
            .filter(|cell| self.is_intact(stripe, unit, cell))?;
        Some(cell.slice(..stripe.unit_bytes))
    }

    /// The content of several units in one piece, if all are there and intact.
    pub(crate) fn units(&self, stripe: &Stripe, units: Range<usize>) -> Option<Bytes> {
        if units.len() == 1 {
            return self.unit(stripe, units.start);
        }
        let mut whole = Vec::with_capacity(units.len() * stripe.unit_bytes);
        for unit in units {
            whole.extend_from_slice(&self.unit(stripe, unit)?);
        }
        Some(whole.into())
    }

    /// The same chunks, with another one at `index`.
    fn with(&self, index: usize, chunk: Option<HeldChunk>) -> Self {
        let mut held = self.held.clone();
        held[index] = chunk;
        Self {
            fragment: self.fragment,
            partition: self.partition,
            load: self.load,
            functions: self.functions.clone(),
            held,
            resident: Arc::clone(&self.resident),
            mutant: self.mutant,
        }
    }

    fn is_missing(&self, index: usize) -> bool {
        !self.held[index].as_ref().is_some_and(is_alive)
    }

    /// The functions whose chunks are missing.
    fn missing(&self) -> Vec<FunctionId> {
        let functions = self.functions.iter().enumerate();
        let missing = functions.filter(|(index, _)| self.is_missing(*index));
        missing.map(|(_, function)| *function).collect()
    }

    /// Whether enough instances live to decode the fragment.
    fn is_whole(&self) -> bool {
        let live = self.held.iter().flatten().filter(|chunk| is_alive(chunk));
        live.count() >= usize::from(self.fragment.shape.data)
    }

    /// The bytes of a chunk that count as storage.
    pub(crate) fn storage_pages(&self) -> u64 {
        match self.partition {
            Partition::Storage => chunk_pages(self.fragment),
            Partition::Cache => 0,
        }
    }

    pub(crate) fn replaced(&self) -> Replaced {
        Replaced {
            load: self.load,
            resident: Arc::clone(&self.resident),
        }
    }

    /// The name of its chunk `index`.
    pub(crate) fn name(&self, index: usize) -> ChunkName {
        chunk_name(self.fragment, index)
    }

    /// The function of a present chunk in the oldest group.
    pub(crate) fn oldest(&self) -> Option<FunctionId> {
        let held = self.functions.iter().zip(&self.held);
        let present = held.filter(|(_, chunk)| chunk.is_some());
        present.map(|(function, _)| *function).min()
    }

    fn is_in(&self, groups: &[GroupId]) -> bool {
        let mut functions = self.functions.iter();
        functions.any(|function| groups.contains(&function.group))
    }
}

/// Chunks that others take the place of.
#[derive(Debug)]
pub(crate) struct Replaced {
    load: u64,
    resident: Arc<Counted>,
}

/// Space for the chunks of a fragment. Dropping it frees the space.
#[derive(Debug)]
pub(crate) struct Slots {
    partition: Partition,
    /// By index; none: the instance is dead. Enough of them live to decode the fragment.
    reserved: Vec<Option<Slot>>,
    /// Dropped after the slots.
    places: Vec<Place>,
}

impl Slots {
    /// Writes each unit of the stripe into its chunk. Whether enough instances live.
    pub(crate) fn write(&mut self, stripe: &Stripe, cells: &[u8]) -> bool {
        let cells = cells.chunks_exact(stripe.cell_bytes());
        let start = stripe.in_chunk().start;
        for (slot, cell) in self.reserved.iter_mut().zip(cells) {
            // The chunk is recovered with the rest of its function.
            slot.take_if(|slot| slot.write(start, cell).is_err());
        }
        self.reserved.iter().flatten().count() >= usize::from(stripe.shape.data)
    }
}

/// The reason why a fragment is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// It was read, and is not in memory.
    Missed,
    /// It was in memory before the start.
    Resumed,
    /// It is in an old group, and was read again.
    Moved,
}

/// A fragment that is to be loaded. Dropping it ends the load, with or without success.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) fragment: Fragment,
    pub(crate) partition: Partition,
    reason: Reason,
    /// The chunks that did not suffice for the read; none: there were none.
    seen: Weak<Chunks>,
    residency: Arc<Residency>,
}

impl Wanted {
    /// Whether cached fragments make room for it. At a start, the newest ones come first.
    pub(crate) fn evicts(&self) -> bool {
        self.reason != Reason::Resumed
    }

    /// Whether the load takes the place of the chunks that are `present` now.
    pub(crate) fn is_for(&self, present: &Chunks) -> bool {
        self.reason == Reason::Moved
            || !present.is_whole()
            || std::ptr::eq(self.seen.as_ptr(), present)
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.residency.wanted.lock().remove(&self.fragment.name);
        self.residency.groups.moved(chunk_name(self.fragment, 0));
    }
}

/// The fragments in memory.
#[derive(Debug)]
pub(crate) struct Residency {
    groups: Arc<Groups>,
    pub(crate) meter: Arc<FunctionMemoryMeter>,
    fragments: Mutex<BTreeMap<FragmentName, Arc<Chunks>>>,
    /// Those of them that are cached. It is locked after `fragments`.
    cached: Mutex<LeastRecentlyUsed<FragmentName>>,
    /// One eviction at a time: a reservation that finds no space waits for the space that another
    /// frees.
    evicting: tokio::sync::Mutex<()>,
    /// The fragments that are being loaded, or wait for it.
    wanted: Mutex<BTreeSet<FragmentName>>,
    loads: mpsc::Sender<Wanted>,
    loads_begun: AtomicU64,
    pub(crate) changes: Arc<Changes>,
}

impl Residency {
    /// With the fragments that are to be loaded ([`Self::miss`]).
    pub(crate) fn new(
        groups: Arc<Groups>,
        meter: Arc<FunctionMemoryMeter>,
    ) -> (Arc<Self>, mpsc::Receiver<Wanted>) {
        let (loads, wanted) = mpsc::channel(LOADS_MAX);
        let residency = Self {
            groups,
            meter,
            fragments: Mutex::default(),
            cached: Mutex::default(),
            evicting: tokio::sync::Mutex::default(),
            wanted: Mutex::default(),
            loads,
            loads_begun: AtomicU64::new(0),
            changes: Arc::default(),
        };
        (Arc::new(residency), wanted)
    }

    /// The chunks of a fragment, if it is in memory.
    pub(crate) fn chunks(&self, name: FragmentName) -> Option<Arc<Chunks>> {
        self.fragments.lock().get(&name).cloned()
    }

    /// Asks for a fragment to be loaded into memory, because the chunks that were `seen` there did
    /// not suffice for a read. It is cached, unless those were stored.
    pub(crate) fn miss(self: &Arc<Self>, fragment: Fragment, seen: Option<&Arc<Chunks>>) {
        let partition = seen.map_or(Partition::Cache, |seen| seen.partition);
        let partition = if self.groups.mutant().breaks(Broken::CachesAsStorage) {
            Partition::Storage
        } else {
            partition
        };
        if let Some(mut wanted) = self.want(fragment, partition, Reason::Missed) {
            wanted.seen = seen.map_or_else(Weak::new, Arc::downgrade);
            // If too many wait, a later read asks again.
            let _ = self.loads.try_send(wanted);
        }
    }

    /// Notes that a read of the fragment begins. It may be moved to the newest group.
    pub(crate) fn accessed(self: &Arc<Self>, chunks: &Chunks) {
        let (fragment, function) = (chunks.fragment, chunks.oldest());
        if chunks.partition == Partition::Cache {
            self.cached.lock().touch(fragment.name);
        }
        let accessed = |function| {
            let chunk = chunk_name(fragment, 0);
            self.groups.accessed(chunks.partition, chunk, function)
        };
        if function.map(accessed) == Some(Accessed::Move)
            && let Some(wanted) = self.want(fragment, Partition::Storage, Reason::Moved)
        {
            let _ = self.loads.try_send(wanted);
        }
    }

    /// Moves the fragment of a marked chunk. Waits while too many are on their way.
    pub(crate) async fn move_marked(self: &Arc<Self>, chunk: ChunkName) {
        let name = FragmentName {
            segment: SegmentId(chunk.segment),
            index: chunk.fragment,
        };
        let Some(chunks) = self.chunks(name) else {
            self.groups.moved(chunk);
            return;
        };
        if let Some(wanted) = self.want(chunks.fragment, Partition::Storage, Reason::Moved) {
            let _ = self.loads.send(wanted).await;
        }
    }

    /// A fragment that was not read yet, unless memory was full since the start. The load takes the
    /// place of no present one.
    pub(crate) fn want_early(
        self: &Arc<Self>,
        fragment: Fragment,
        partition: Partition,
    ) -> Option<Wanted> {
        let has_room = self.groups.figures().released == 0;
        has_room.then(|| self.want(fragment, partition, Reason::Resumed))?
    }

    /// None: it is being loaded already.
    fn want(
        self: &Arc<Self>,
        fragment: Fragment,
        partition: Partition,
        reason: Reason,
    ) -> Option<Wanted> {
        if !self.wanted.lock().insert(fragment.name) {
            if reason == Reason::Moved {
                self.groups.moved(chunk_name(fragment, 0));
            }
            return None;
        }
        Some(Wanted {
            fragment,
            partition,
            reason,
            seen: Weak::new(),
            residency: Arc::clone(self),
        })
    }

    /// Space for a fragment that is put. None: memory is full, or an instance is dead.
    pub(crate) async fn reserve(&self, fragment: Fragment) -> Option<Slots> {
        self.reserve_in(Partition::Storage, fragment, true).await
    }

    /// Space for a fragment that is loaded.
    pub(crate) async fn reserve_for(&self, wanted: &Wanted) -> Option<Slots> {
        let (fragment, partition) = (wanted.fragment, wanted.partition);
        self.reserve_in(partition, fragment, wanted.evicts()).await
    }

    async fn reserve_in(
        &self,
        partition: Partition,
        fragment: Fragment,
        evicts: bool,
    ) -> Option<Slots> {
        let (bytes, total) = (chunk_pages(fragment), fragment.shape.total());
        for _ in 0..ATTEMPTS_MAX {
            let (places, released) = self.groups.place(total, bytes, partition);
            self.forget_groups(&released);
            let mut reserving = Reserving::new(fragment, partition, places?);
            let (io, bytes) = (Category::Io, fragment.stored_bytes());
            self.meter.invoked(io, total as u64, bytes);
            let mut full = reserving.reserve().await;
            if !full.is_empty() && evicts {
                full = self.evict_for(&mut reserving).await;
            }
            match (full.first(), partition) {
                (None, _) => return reserving.slots(),
                (Some(_), Partition::Cache) => return None,
                (Some(full), Partition::Storage) => self.groups.seal(full.group),
            }
        }
        None
    }

    /// Evicts cached fragments until all chunks have space. Returns the functions that are full all
    /// the same.
    async fn evict_for(&self, reserving: &mut Reserving) -> Vec<FunctionId> {
        let _turn = self.evicting.lock().await;
        loop {
            let full = reserving.reserve().await;
            if full.is_empty() || !self.evict(&full, chunk_pages(reserving.fragment)).await {
                return full;
            }
        }
    }

    /// Evicts the least recently used fragments on the functions, with chunks of at least `bytes`
    /// bytes together. Whether there were any. The space of those that are being read is free
    /// later.
    pub(crate) async fn evict(&self, functions: &[FunctionId], bytes: u64) -> bool {
        let mut evicted = Vec::new();
        {
            let mut fragments = self.fragments.lock();
            let mut names: Vec<_> = self.cached.lock().oldest().collect();
            if self.groups.mutant().breaks(Broken::EvictsNewestFirst) {
                names.reverse();
            }
            let mut rest = bytes;
            for name in names {
                let is_there = |chunks: &Arc<Chunks>| {
                    let mut on = chunks.functions.iter();
                    on.any(|function| functions.contains(function))
                };
                if rest > 0 && fragments.get(&name).is_some_and(is_there) {
                    let gone = self.remove(&mut fragments, name);
                    rest =
                        rest.saturating_sub(gone.as_ref().map_or(0, |it| chunk_pages(it.fragment)));
                    evicted.extend(gone);
                }
            }
        }
        let is_any = !evicted.is_empty();
        let unread = evicted.into_iter().filter_map(Arc::into_inner);
        let chunks = unread.flat_map(|chunks| chunks.held).flatten();
        join_all(chunks.map(HeldChunk::removed)).await;
        is_any
    }

    /// Shows the fragment, whose chunks were written whole and are durable. They take the place of
    /// `replaced`, and of no other.
    pub(crate) async fn seal(&self, fragment: Fragment, slots: Slots, replaced: Option<Replaced>) {
        let Slots {
            partition,
            reserved,
            places,
        } = slots;
        let sealed = reserved
            .into_iter()
            .map(async |slot| slot?.seal().await.ok());
        let held = join_all(sealed).await;
        // An instance that dies after this is found by the recovery that its death starts.
        let mut fragments = self.fragments.lock();
        let replaced_load = replaced.as_ref().map(|replaced| replaced.load);
        let chunks = Chunks {
            fragment,
            partition,
            load: self.loads_begun.fetch_add(1, Ordering::Relaxed),
            functions: places.iter().map(Place::function).collect(),
            held: held.into_iter().map(|one| one.filter(is_alive)).collect(),
            resident: replaced.map_or_else(
                || Arc::new(self.meter.resident(fragment.bytes)),
                |replaced| replaced.resident,
            ),
            mutant: self.groups.mutant(),
        };
        let present = fragments.get(&fragment.name).map(|chunks| chunks.load);
        let replaces = present.is_none() || present == replaced_load;
        let mut missing = Vec::new();
        if replaces && chunks.is_whole() {
            missing = chunks.missing();
            fragments.insert(fragment.name, Arc::new(chunks));
            let mut cached = self.cached.lock();
            match partition {
                Partition::Storage => cached.remove(fragment.name),
                Partition::Cache => drop(cached.add(fragment.name, 0, 0)),
            }
            drop(cached);
            if fragments.len() <= ROWS_MAX {
                self.changes.came(fragment, partition);
            }
        }
        drop(fragments);
        // The groups may be released from now on, and are forgotten then.
        drop(places);
        if self.breaks(Broken::ForgetsMissingChunks) {
            return;
        }
        for function in missing {
            self.groups.lost.add(function);
        }
    }

    /// Puts a chunk of `lost` in the place of one whose instance has died.
    pub(crate) fn put_back(&self, lost: &Chunks, index: usize, chunk: HeldChunk) {
        let mut fragments = self.fragments.lock();
        if let Some(chunks) = fragments.get_mut(&lost.fragment.name)
            && chunks.load == lost.load
            // The recovery after the next death finds only what is missing.
            && is_alive(&chunk)
        {
            *chunks = Arc::new(chunks.with(index, Some(chunk)));
        }
    }

    /// The fragments that miss their chunk on a function. Chunks of a dead instance are dropped.
    pub(crate) fn lost(&self, function: FunctionId) -> Vec<Arc<Chunks>> {
        let (mut lost, index) = (Vec::new(), usize::from(function.index));
        for chunks in self.fragments.lock().values_mut() {
            if chunks.functions.get(index) == Some(&function) && chunks.is_missing(index) {
                if chunks.held[index].is_some() {
                    *chunks = Arc::new(chunks.with(index, None));
                }
                lost.push(Arc::clone(chunks));
            }
        }
        lost
    }

    /// Forgets those of the fragments that have too few chunks. They are loaded again when they are
    /// read.
    pub(crate) fn forget_incomplete(&self, lost: &[Arc<Chunks>]) {
        let mut fragments = self.fragments.lock();
        for one in lost {
            let name = one.fragment.name;
            if fragments
                .get(&name)
                .is_some_and(|chunks| !chunks.is_whole())
            {
                self.remove(&mut fragments, name);
            }
        }
    }

    /// Forgets a fragment, unless it was loaded again.
    pub(crate) fn forget_load(&self, chunks: &Chunks) {
        let (mut fragments, name) = (self.fragments.lock(), chunks.fragment.name);
        let present = fragments.get(&name);
        if present.is_some_and(|present| present.load == chunks.load) {
            self.remove(&mut fragments, name);
        }
    }

    fn remove(
        &self,
        fragments: &mut BTreeMap<FragmentName, Arc<Chunks>>,
        name: FragmentName,
    ) -> Option<Arc<Chunks>> {
        let removed = fragments.remove(&name)?;
        self.cached.lock().remove(name);
        self.changes.left(name);
        Some(removed)
    }

    /// Forgets the fragments with a chunk in released groups.
    pub(crate) fn forget_groups(&self, groups: &[GroupId]) {
        if !groups.is_empty() {
            let mut fragments = self.fragments.lock();
            let in_groups = fragments.values().filter(|chunks| chunks.is_in(groups));
            let names: Vec<_> = in_groups.map(|chunks| chunks.fragment.name).collect();
            for name in names {
                self.remove(&mut fragments, name);
            }
        }
    }

    /// Forgets a segment that is deleted. Its space is free once its last reader has ended.
    pub(crate) fn forget(&self, segment: SegmentId) {
        let name = |index| FragmentName { segment, index };
        let mut fragments = self.fragments.lock();
        let names: Vec<_> = fragments
            .range(name(0)..=name(u32::MAX))
            .map(|(name, _)| *name)
            .collect();
        for name in names {
            self.remove(&mut fragments, name);
        }
    }

    /// Whether this is the mutant without `rule`.
    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        self.groups.mutant().breaks(rule)
    }

    /// The chunks that are missing.
    #[cfg(test)]
    pub(crate) fn missing_count(&self) -> usize {
        let fragments = self.fragments.lock();
        fragments
            .values()
            .map(|chunks| chunks.missing().len())
            .sum()
    }

    /// The number of fragments in memory.
    pub(crate) fn count(&self) -> usize {
        self.fragments.lock().len()
    }

    /// The number of those that are cached.
    pub(crate) fn cached_count(&self) -> usize {
        self.cached.lock().count()
    }
}

/// The pages of one chunk of a fragment. An instance gives out whole pages.
pub(crate) fn chunk_pages(fragment: Fragment) -> u64 {
    fragment.chunk_bytes().next_multiple_of(PAGE_BYTES)
}

fn is_alive(chunk: &HeldChunk) -> bool {
    !chunk.instance().is_dead()
}

fn chunk_name(fragment: Fragment, index: usize) -> ChunkName {
    ChunkName {
        segment: fragment.name.segment.0,
        fragment: fragment.name.index,
        index: index as u8,
    }
}

/// Space for the chunks of a fragment, as far as it is reserved.
struct Reserving {
    fragment: Fragment,
    partition: Partition,
    /// By index; none: the instance is full, or dead.
    slots: Vec<Option<Slot>>,
    places: Vec<Place>,
}

impl Reserving {
    fn new(fragment: Fragment, partition: Partition, places: Vec<Place>) -> Self {
        Self {
            fragment,
            partition,
            slots: places.iter().map(|_| None).collect(),
            places,
        }
    }

    /// Reserves what is missing. Returns the functions that are full.
    async fn reserve(&mut self) -> Vec<FunctionId> {
        let fragment = self.fragment;
        let of = self.slots.iter_mut().zip(&mut self.places).enumerate();
        let missing = of.filter(|(_, (slot, _))| slot.is_none());
        let reserved = missing.map(async |(index, (slot, place))| {
            let reserved = place.reserve(chunk_name(fragment, index)).await;
            let is_full = matches!(reserved, Err(ReserveError::Full));
            *slot = reserved.ok();
            is_full.then(|| place.function())
        });
        join_all(reserved).await.into_iter().flatten().collect()
    }

    /// None: too many instances are dead.
    fn slots(self) -> Option<Slots> {
        let is_enough =
            self.slots.iter().flatten().count() >= usize::from(self.fragment.shape.data);
        is_enough.then_some(Slots {
            partition: self.partition,
            reserved: self.slots,
            places: self.places,
        })
    }
}
