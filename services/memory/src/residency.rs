//! Fragments in function memory: which chunk lies on which function.
//!
//! The window counts reads and moves by chunks. A fragment is read, moved and released as a whole, so
//! its chunk 0 stands for all of them there. Its function is the one in the oldest group, so that
//! a fragment is moved before its first chunk is released.
//!
//! Invariants
//! - Two chunks of a fragment are never on one function: chunk `i` is on function `i` of its group.
//! - A fragment is found here only once enough of its chunks were written whole.
//! - Each missing chunk has its function queued for recovery ([`crate::lost`]), or its function was
//!   dropped. A fragment whose chunk has no space there is forgotten.
//! - A fragment is forgotten with the first of its groups that is released.

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
    function::PAGE_BYTES,
    groups::{Groups, Place},
    instance::{ChunkName, HeldChunk, ReserveError, Slot},
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

/// Space for the chunks of a fragment. Dropping it frees the space.
#[derive(Debug)]
pub(crate) struct Slots {
    /// By index; none: the instance is dead. Enough of them live to decode the fragment.
    slots: Vec<Option<Slot>>,
    /// Dropped after the slots.
    places: Vec<Place>,
}

impl Slots {
    /// Writes each unit of the stripe into its chunk. Whether enough instances live.
    pub(crate) fn write(&mut self, stripe: &Stripe, cells: &[u8]) -> bool {
        let cells = cells.chunks_exact(stripe.cell_bytes());
        let start = stripe.in_chunk().start;
        for (slot, cell) in self.slots.iter_mut().zip(cells) {
            // The chunk is recovered with the rest of its function.
            slot.take_if(|slot| slot.write(start, cell).is_err());
        }
        self.slots.iter().flatten().count() >= usize::from(stripe.shape.data)
    }
}

/// The reason why a fragment is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// It was read, and is not in memory.
    Missed,
    /// It is in an old group, and was read again.
    Moved,
}

/// A fragment that is to be loaded. Dropping it ends the load, with or without success.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) fragment: Fragment,
    reason: Reason,
    /// The chunks that did not suffice for the read; none: there were none.
    seen: Weak<Chunks>,
    residency: Arc<Residency>,
}

impl Wanted {
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
    /// not suffice for a read.
    pub(crate) fn miss(self: &Arc<Self>, fragment: Fragment, seen: Option<&Arc<Chunks>>) {
        let seen = seen.map_or_else(Weak::new, Arc::downgrade);
        if let Some(mut wanted) = self.want(fragment, Reason::Missed) {
            wanted.seen = seen;
            // If too many wait, a later read asks again.
            let _ = self.loads.try_send(wanted);
        }
    }

    /// Notes that a read of the fragment begins. It may be moved to the newest group.
    pub(crate) fn accessed(self: &Arc<Self>, chunks: &Chunks) {
        let (fragment, function) = (chunks.fragment, chunks.oldest());
        let accessed = |function| self.groups.accessed(chunk_name(fragment, 0), function);
        if function.map(accessed) == Some(Accessed::Move)
            && let Some(wanted) = self.want(fragment, Reason::Moved)
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
        if let Some(wanted) = self.want(chunks.fragment, Reason::Moved) {
            let _ = self.loads.send(wanted).await;
        }
    }

    /// A fragment that was not read yet, unless memory was full since the start. The load takes the
    /// place of no present one.
    pub(crate) fn want_early(self: &Arc<Self>, fragment: Fragment) -> Option<Wanted> {
        let has_room = self.groups.figures().released == 0;
        has_room.then(|| self.want(fragment, Reason::Missed))?
    }

    /// None: it is being loaded already.
    fn want(self: &Arc<Self>, fragment: Fragment, reason: Reason) -> Option<Wanted> {
        if !self.wanted.lock().insert(fragment.name) {
            if reason == Reason::Moved {
                self.groups.moved(chunk_name(fragment, 0));
            }
            return None;
        }
        Some(Wanted {
            fragment,
            reason,
            seen: Weak::new(),
            residency: Arc::clone(self),
        })
    }

    /// Space for a fragment. None: memory is full, or an instance is dead.
    pub(crate) async fn reserve(&self, fragment: Fragment) -> Option<Slots> {
        let bytes = chunk_pages(fragment);
        for _ in 0..ATTEMPTS_MAX {
            let (places, released) = self.groups.place(fragment.shape.total(), bytes);
            self.forget_groups(&released);
            let (places, count) = (places?, fragment.shape.total() as u64);
            self.meter
                .invoked(Category::Io, count, fragment.stored_bytes());
            match reserve_at(places, fragment).await {
                Ok(slots) => return Some(slots),
                Err(ReserveError::Full) => {}
                Err(ReserveError::Dead) => return None,
            }
        }
        None
    }

    /// Shows the fragment, whose chunks were written whole and are durable. They take the place of
    /// `replaced`, and of no other.
    pub(crate) async fn seal(&self, fragment: Fragment, slots: Slots, replaced: Option<&Chunks>) {
        let Slots { slots, places } = slots;
        let sealed = slots.into_iter().map(async |slot| slot?.seal().await.ok());
        let held = join_all(sealed).await;
        // An instance that dies after this is found by the recovery that its death starts.
        let mut fragments = self.fragments.lock();
        let chunks = Chunks {
            fragment,
            load: self.loads_begun.fetch_add(1, Ordering::Relaxed),
            functions: places.iter().map(Place::function).collect(),
            held: held.into_iter().map(|one| one.filter(is_alive)).collect(),
            resident: replaced.map_or_else(
                || Arc::new(self.meter.resident(fragment.bytes)),
                |replaced| Arc::clone(&replaced.resident),
            ),
            mutant: self.groups.mutant(),
        };
        let present = fragments.get(&fragment.name).map(|chunks| chunks.load);
        let replaces = present.is_none() || present == replaced.map(|chunks| chunks.load);
        let mut missing = Vec::new();
        if replaces && chunks.is_whole() {
            missing = chunks.missing();
            fragments.insert(fragment.name, Arc::new(chunks));
            if fragments.len() <= ROWS_MAX {
                self.changes.came(fragment);
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

    fn remove(&self, fragments: &mut BTreeMap<FragmentName, Arc<Chunks>>, name: FragmentName) {
        if fragments.remove(&name).is_some() {
            self.changes.left(name);
        }
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

async fn reserve_at(mut places: Vec<Place>, fragment: Fragment) -> Result<Slots, ReserveError> {
    let reserved = (0..).zip(&mut places).map(|(index, place)| {
        let name = chunk_name(fragment, index);
        async move { place.reserve(name).await }
    });
    let mut slots = Vec::with_capacity(fragment.shape.total());
    for reserved in join_all(reserved).await {
        match reserved {
            Err(ReserveError::Full) => return Err(ReserveError::Full),
            reserved => slots.push(reserved.ok()),
        }
    }
    if slots.iter().flatten().count() < usize::from(fragment.shape.data) {
        return Err(ReserveError::Dead);
    }
    Ok(Slots { slots, places })
}
