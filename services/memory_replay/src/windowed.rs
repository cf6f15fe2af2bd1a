//! Function memory as the service runs it: the window decides, and a table holds which fragments
//! are in memory.
//!
//! [`Window`] is the service's own code. The table follows `residency.rs` of the service, which
//! needs running instances. A fragment that lost more than its parity stays in the table, so that
//! its last chunks can be counted. The service forgets it. As there, chunk 0 stands for a fragment
//! in the window's marks, and a fragment is forgotten with the first of its groups that is
//! released.
//!
//! A missed fragment is cached: it makes room for what is stored and for what is cached later, the
//! least recently used first.

use std::{collections::BTreeMap, time::Duration};

use memory::{
    function::{ChunkName, Counts, PAGE_BYTES, Partition},
    least_recently_used::LeastRecentlyUsed,
    window::{
        Accessed, Cap, Changes, Failed, FunctionId, GroupId, Options, Pace, Placement, Scaling,
        Unplaced, Window,
    },
};
use ports::Monotonic;

use crate::chance::Chance;

/// The chunks of a fragment.
pub const CHUNKS: u8 = 12;
/// The chunks that are enough to read it.
pub const CHUNKS_MIN: u32 = 10;
/// The bounds of the service: requests on their way to a function, rounds of compaction in a GC
/// interval, and marks.
const REQUESTS_MAX: u32 = 256;
pub(crate) const ROUNDS: u32 = 10;
const MARKS_MAX: usize = 10_000;
/// No workload of interest reaches it: 1.2 million functions.
pub(crate) const GROUPS_MAX: usize = 100_000;

/// A fragment: its object, and its index there.
pub type Fragment = (u32, u32);

/// The pace and the size of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pacing {
    /// The time between two GC steps.
    pub gc_interval: Duration,
    /// M.
    pub active_intervals: u32,
    /// N.
    pub degraded_intervals: u32,
    /// The bytes of a function for stored chunks (HARDCAP).
    pub storage_bytes: u64,
    /// The bytes of a function that these never take, for cached chunks.
    pub cache_bytes: u64,
    /// The most groups.
    pub groups_max: usize,
}

#[derive(Debug)]
struct Resident {
    functions: Vec<FunctionId>,
    /// A bit per chunk.
    present: u16,
    chunk_bytes: u64,
    partition: Partition,
}

/// Function memory with a sliding window.
#[derive(Debug)]
pub struct Windowed {
    window: Window,
    /// What the instances of each group would report; none: the function is dropped.
    groups: BTreeMap<GroupId, Vec<Option<Counts>>>,
    fragments: BTreeMap<Fragment, Resident>,
    cached: LeastRecentlyUsed<Fragment>,
    function_bytes: u64,
    /// Cached fragments that made room.
    pub evicted: u64,
    /// Fragments that moved to the newest bucket.
    pub moved: u64,
    /// Their bytes, with parity.
    pub moved_bytes: u64,
}

fn pages(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(PAGE_BYTES)
}

fn first_chunk((object, index): Fragment) -> ChunkName {
    ChunkName {
        segment: object.into(),
        fragment: index,
        index: 0,
    }
}

fn all_chunks(bytes: u64) -> Vec<(u8, u64)> {
    (0..CHUNKS).map(|index| (index, bytes)).collect()
}

impl Windowed {
    /// Without any function.
    pub fn new(pacing: Pacing) -> Self {
        let gc_interval = pacing.gc_interval;
        let options = Options {
            total: CHUNKS,
            cap: Cap {
                storage_bytes_max: pacing.storage_bytes,
                bytes_max: pacing.storage_bytes + pacing.cache_bytes,
                requests_max: REQUESTS_MAX,
            },
            gc_interval,
            active_intervals: pacing.active_intervals,
            degraded_intervals: pacing.degraded_intervals,
            scaling: Scaling::Linear,
            groups_max: pacing.groups_max,
            pace: Pace {
                round: gc_interval / ROUNDS,
                compaction_max: gc_interval / 2,
                marks_max: MARKS_MAX,
            },
        };
        Self {
            window: Window::new(options, Monotonic::default()),
            groups: BTreeMap::new(),
            fragments: BTreeMap::new(),
            cached: LeastRecentlyUsed::default(),
            function_bytes: pacing.storage_bytes + pacing.cache_bytes,
            evicted: 0,
            moved: 0,
            moved_bytes: 0,
        }
    }

    /// Stores a fragment. Its chunks take the place of those that it had.
    pub fn store(&mut self, fragment: Fragment, chunk_bytes: u64) {
        let placed = self.window.place(&all_chunks(chunk_bytes));
        self.keep(fragment, chunk_bytes, Partition::Storage, placed);
    }

    /// Caches a fragment that was missed.
    pub fn cache(&mut self, fragment: Fragment, chunk_bytes: u64) {
        let placed = self.window.place_in_cache(&all_chunks(chunk_bytes));
        self.keep(fragment, chunk_bytes, Partition::Cache, placed);
    }

    /// Caches a further copy, which has a name of its own. Whether a group that is not busy has
    /// room.
    pub fn copy(
        &mut self,
        copy: Fragment,
        chunk_bytes: u64,
        is_busy: impl Fn(GroupId) -> bool,
    ) -> bool {
        let placed = self.window.place_copies(&all_chunks(chunk_bytes), is_busy);
        let is_placed = placed.0.is_ok();
        self.keep(copy, chunk_bytes, Partition::Cache, placed);
        is_placed
    }

    fn keep(
        &mut self,
        fragment: Fragment,
        chunk_bytes: u64,
        partition: Partition,
        (placed, changes): (Result<Vec<Placement>, Unplaced>, Changes),
    ) {
        for group in changes.added {
            let counts = vec![Some(Counts::default()); CHUNKS.into()];
            self.groups.insert(group, counts);
        }
        self.release(&changes.released);
        self.forget(fragment);
        let Ok(placements) = placed else { return };
        for placement in &placements {
            self.make_room(placement.function, pages(chunk_bytes));
            let bytes = pages(chunk_bytes) as i64;
            let counts = self.count(placement.function, partition, bytes);
            self.window.settled(*placement, counts);
            self.window.persisted(*placement);
        }
        let resident = Resident {
            functions: placements.iter().map(|one| one.function).collect(),
            present: (1 << CHUNKS) - 1,
            chunk_bytes,
            partition,
        };
        self.fragments.insert(fragment, resident);
        if partition == Partition::Cache {
            self.cached.add(fragment, 0, 0);
        }
    }

    /// Evicts cached fragments, the least recently used first, until a function has space.
    fn make_room(&mut self, function: FunctionId, bytes: u64) {
        let index = usize::from(function.index);
        let used = |groups: &BTreeMap<GroupId, Vec<Option<Counts>>>| {
            let counts = groups.get(&function.group).and_then(|of| of[index]);
            counts.map_or(0, |counts| counts.storage_bytes + counts.cache_bytes)
        };
        while used(&self.groups) + bytes > self.function_bytes {
            let is_there = |name: &Fragment| {
                let resident = self.fragments.get(name);
                resident.is_some_and(|resident| resident.functions[index] == function)
            };
            let Some(oldest) = self.cached.oldest().find(is_there) else {
                return;
            };
            self.forget(oldest);
            self.evicted += 1;
        }
    }

    /// Changes the bytes of a function. None: it is gone.
    fn count(&mut self, function: FunctionId, partition: Partition, bytes: i64) -> Option<Counts> {
        let group = self.groups.get_mut(&function.group)?;
        let counts = group[usize::from(function.index)].as_mut()?;
        counts.changes += 1;
        let of = match partition {
            Partition::Storage => &mut counts.storage_bytes,
            Partition::Cache => &mut counts.cache_bytes,
        };
        *of = of.saturating_add_signed(bytes);
        Some(*counts)
    }

    /// Forgets a fragment. Its space is free.
    pub fn forget(&mut self, fragment: Fragment) {
        let Some(gone) = self.fragments.remove(&fragment) else {
            return;
        };
        self.cached.remove(fragment);
        let bytes = pages(gone.chunk_bytes) as i64;
        for (index, function) in gone.functions.into_iter().enumerate() {
            if gone.present & (1 << index) != 0 {
                self.count(function, gone.partition, -bytes);
            }
        }
    }

    fn release(&mut self, groups: &[GroupId]) {
        if groups.is_empty() {
            return;
        }
        let is_gone = |resident: &Resident| {
            let mut functions = resident.functions.iter();
            functions.any(|function| groups.contains(&function.group))
        };
        let fragments = self.fragments.iter();
        let gone: Vec<_> = fragments
            .filter(|(_, resident)| is_gone(resident))
            .map(|(fragment, _)| *fragment)
            .collect();
        for fragment in gone {
            self.forget(fragment);
        }
        for group in groups {
            self.groups.remove(group);
        }
    }

    /// The chunks of a fragment that are in memory, by the functions that hold them.
    pub fn chunks(&self, fragment: Fragment) -> impl Iterator<Item = FunctionId> {
        let resident = self.fragments.get(&fragment);
        resident.into_iter().flat_map(|one| {
            let is_present = |index: &usize| one.present & (1 << index) != 0;
            (0..one.functions.len())
                .filter(is_present)
                .map(|index| one.functions[index])
        })
    }

    /// Notes a read of a fragment that is whole. It may move at once.
    pub fn accessed(&mut self, fragment: Fragment, now: Monotonic) {
        let Some(oldest) = self.chunks(fragment).min() else {
            return;
        };
        let partition = if self.cached.touch(fragment) {
            Partition::Cache
        } else {
            Partition::Storage
        };
        let chunk = first_chunk(fragment);
        let accessed = self.window.accessed_in(partition, chunk, oldest, now);
        if accessed == Accessed::Move {
            self.move_to_newest(fragment);
        }
    }

    fn move_to_newest(&mut self, fragment: Fragment) {
        if let Some(chunk_bytes) = self.fragments.get(&fragment).map(|one| one.chunk_bytes) {
            self.store(fragment, chunk_bytes);
            self.moved += 1;
            self.moved_bytes += chunk_bytes * u64::from(CHUNKS);
        }
        self.window.moved(first_chunk(fragment));
    }

    /// Moves the window on, as the service does in each round of compaction.
    pub fn slide(&mut self, now: Monotonic, chance: &Chance) {
        let released = self.window.collect(now).released;
        self.release(&released);
        for one in self.window.compact(now, chance) {
            self.move_to_newest((one.chunk.segment as u32, one.chunk.fragment));
        }
    }

    /// The chunks of a function.
    pub fn chunks_count(&self, function: FunctionId) -> usize {
        let index = usize::from(function.index);
        let is_there =
            |one: &&Resident| one.functions[index] == function && one.present & (1 << index) != 0;
        self.fragments.values().filter(is_there).count()
    }

    /// A function of those that run; none: none runs.
    pub fn any_function(&self, chance: &Chance) -> Option<FunctionId> {
        let functions: Vec<_> = self.functions().collect();
        let at = ports::Entropy::below(chance, functions.len() as u64);
        functions.get(at as usize).copied()
    }

    /// The functions that run.
    pub fn functions(&self) -> impl Iterator<Item = FunctionId> {
        self.groups.iter().flat_map(|(group, counts)| {
            let running = (0..).zip(counts).filter(|(_, counts)| counts.is_some());
            running.map(|(index, _)| FunctionId {
                group: *group,
                index,
            })
        })
    }

    /// The function fails. Its chunks are recovered if it is active, and gone if not.
    pub fn fail(&mut self, function: FunctionId) -> Failed {
        let failed = self.window.failed(function);
        if failed == Failed::Restart {
            // The window learns of the recovered bytes with the next chunk, as in the service.
            return failed;
        }
        if let Some(group) = self.groups.get_mut(&function.group) {
            group[usize::from(function.index)] = None;
        }
        let index = usize::from(function.index);
        for resident in self.fragments.values_mut() {
            if resident.functions[index] == function {
                resident.present &= !(1 << index);
            }
        }
        failed
    }

    /// The numbers of active and of degraded functions that run.
    pub fn functions_by_phase(&self) -> (usize, usize) {
        let (active, _) = self.window.groups_by_phase();
        let active = active * usize::from(CHUNKS);
        let running = self.functions().count();
        (active.min(running), running.saturating_sub(active))
    }
}
