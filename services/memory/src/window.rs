//! The sliding window over function memory: where new chunks go, and when memory is released.
//!
//! ```text
//!   released ◀── degraded (N buckets) ◀── active (M buckets) ◀── latest bucket ◀── new groups
//! ```
//!
//! Functions are added in *groups*, and the groups of one GC interval form a *bucket*. New chunks
//! go to the latest bucket, to its oldest open group first. Each GC interval the window moves on by
//! one bucket. Open groups move to the new latest bucket. A bucket is active for M intervals, then
//! degraded for N, then released. Chunks that are read again are moved to the latest bucket, so
//! that a released bucket holds cold chunks alone.
//!
//! A chunk that was read and is on no function of the window is *cached*: it goes to the cache
//! partition of an open group ([`Window::place_in_cache`]). It uses the space that storage does not
//! take, and makes room for stored chunks and for later cached ones, the least recently used first.
//! A cached chunk that is read again moves like a chunk of an old bucket, and is stored then: only
//! a chunk that stays in use takes storage.
//!
//! The window makes decisions only. Its caller starts and ends instances, and moves chunks.
//!
//! Invariants
//! - No function holds two chunks of one object ([`group`]).
//! - A group is in exactly one bucket. An open group is in the latest one.
//! - A released group holds no chunk that is not persisted, and no request is on its way to it.
//! - Cached chunks never count as storage: they seal no group.
//!
//! From `infinistore.txt`, sections 5.3 and 5.4, figures 4 and 5. Unlike the paper, an open group
//! that was idle for M + N intervals is not carried over. Without PUTs the memory is otherwise
//! never released.

mod compaction;
mod group;

use std::{collections::VecDeque, iter, mem, time::Duration};

use compaction::Compaction;
pub use compaction::{Move, Pace};
use ports::{Entropy, Monotonic};

pub use group::{Cap, FunctionId, GroupId};
use group::{Function, Group, Room, Tested};

use crate::function::{ChunkName, Counts, Partition};

/// How the window grows when no open group takes a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scaling {
    /// By one group.
    Linear,
    /// By as many groups as are open, at least one.
    Doubling,
}

/// The size and the pace of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The functions of a group: the most chunks of an object.
    pub total: u8,
    /// The bounds of a function.
    pub cap: Cap,
    /// The time between two GC steps.
    pub gc_interval: Duration,
    /// The intervals in which a bucket is active (M), at least 1.
    pub active_intervals: u32,
    /// The intervals in which a bucket is degraded (N).
    pub degraded_intervals: u32,
    /// How the window grows.
    pub scaling: Scaling,
    /// The most groups, with those that wait to be released.
    pub groups_max: usize,
    /// The pace of compaction.
    pub pace: Pace,
}

/// The state of a bucket's functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Warmed up often.
    Active,
    /// Warmed up rarely. A read moves the chunk. A function that fails is dropped.
    Degraded,
}

/// A placed chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Its function.
    pub function: FunctionId,
    /// The function's instance, counted from 0.
    pub generation: u32,
    /// Its size.
    pub bytes: u64,
    /// The partition that it counts against.
    pub partition: Partition,
}

/// The groups that a decision added and released. The caller starts and ends their instances.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// New groups.
    pub added: Vec<GroupId>,
    /// Groups that are no longer in the window.
    pub released: Vec<GroupId>,
}

/// The duty of the caller after a read of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accessed {
    /// Nothing. The chunk may be marked.
    Kept,
    /// To move the chunk to the latest bucket, and to call [`Window::moved`].
    Move,
    /// To read the chunk elsewhere: its function is not in the window.
    Gone,
}

/// The duty of the caller after the failure of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// To start another instance.
    Restart,
    /// Nothing: the function is dropped.
    Dropped,
}

/// The reason why a chunk is not placed. Nothing is counted for its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unplaced {
    /// No function is large enough for it.
    #[error("a chunk is larger than a function")]
    TooLarge,
    /// All groups are full or busy, and no further one may be added.
    #[error("function memory is full")]
    Full,
}

#[derive(Debug, Default)]
struct Bucket {
    /// In the order in which they were added.
    groups: Vec<Group>,
}

/// A window.
#[derive(Debug)]
pub struct Window {
    options: Options,
    /// The latest is the last one.
    buckets: VecDeque<Bucket>,
    /// Groups that left the window and still hold what must stay.
    leaving: Vec<Group>,
    /// Groups that were released, and whose instances have not ended.
    lingering_count: usize,
    compaction: Compaction,
    groups_added: u64,
    next_gc: Monotonic,
}

impl Window {
    /// An empty window.
    pub fn new(options: Options, now: Monotonic) -> Self {
        Self {
            options,
            buckets: VecDeque::from([Bucket::default()]),
            leaving: Vec::new(),
            lingering_count: 0,
            compaction: Compaction::default(),
            groups_added: 0,
            next_gc: now + options.gc_interval,
        }
    }

    /// Places the chunks of an object, given by their indices and sizes: all or none (figure 5).
    pub fn place(&mut self, chunks: &[(u8, u64)]) -> (Result<Vec<Placement>, Unplaced>, Changes) {
        let (mut placed, mut changes) = (Vec::with_capacity(chunks.len()), Changes::default());
        for &(index, bytes) in chunks {
            match self.place_chunk(index, bytes, &mut changes) {
                Ok(placement) => placed.push(placement),
                Err(why) => {
                    for placement in placed {
                        self.with(placement, |function| {
                            function.unplace(placement.bytes, placement.partition);
                        });
                    }
                    return (Err(why), changes);
                }
            }
        }
        (Ok(placed), changes)
    }

    fn place_chunk(
        &mut self,
        index: u8,
        bytes: u64,
        changes: &mut Changes,
    ) -> Result<Placement, Unplaced> {
        let cap = self.options.cap;
        if index >= self.options.total || bytes > cap.storage_bytes_max || cap.requests_max == 0 {
            return Err(Unplaced::TooLarge);
        }
        // The number of the group that the function pointer is in.
        let mut at = 0;
        loop {
            let groups = &mut self.latest().groups;
            if at >= groups.len() {
                self.scale_out(changes)?;
                // An early release may have moved the groups that were tested.
                at = 0;
                continue;
            }
            let group = &mut groups[at];
            if group.test_and_place(index, bytes, &cap) == Tested::Placed {
                return Ok(placement(group, index, bytes, Partition::Storage));
            }
            at += 1;
        }
    }

    /// Places chunks that were read and are on no function in the cache partition of one open group
    /// of the latest bucket: all or none. A group with free space comes first, then one whose
    /// cached chunks make room. The caller evicts them. If there is neither, the window grows as
    /// for a PUT.
    pub fn place_in_cache(
        &mut self,
        chunks: &[(u8, u64)],
    ) -> (Result<Vec<Placement>, Unplaced>, Changes) {
        self.cache(chunks, &|_| false)
    }

    /// The same for further copies of chunks whose functions have all the requests that they take
    /// (section 5.3.3). The groups that are busy take none, and no group is released for them.
    pub fn place_copies(
        &mut self,
        chunks: &[(u8, u64)],
        is_busy: impl Fn(GroupId) -> bool,
    ) -> (Result<Vec<Placement>, Unplaced>, Changes) {
        let is_full = self.groups_count() >= self.options.groups_max;
        if is_full && self.cache_group(chunks, &is_busy).is_none() {
            return (Err(Unplaced::Full), Changes::default());
        }
        self.cache(chunks, &is_busy)
    }

    fn cache(
        &mut self,
        chunks: &[(u8, u64)],
        is_busy: &dyn Fn(GroupId) -> bool,
    ) -> (Result<Vec<Placement>, Unplaced>, Changes) {
        let (mut changes, options) = (Changes::default(), self.options);
        let is_too_large = |&(index, bytes): &(u8, u64)| {
            index >= options.total || bytes > options.cap.bytes_max || options.cap.requests_max == 0
        };
        if chunks.iter().any(is_too_large) {
            return (Err(Unplaced::TooLarge), changes);
        }
        let mut at = self.cache_group(chunks, is_busy);
        if at.is_none() {
            if let Err(why) = self.scale_out(&mut changes) {
                return (Err(why), changes);
            }
            at = self.cache_group(chunks, is_busy);
        }
        let Some(group) = at.and_then(|at| self.latest().groups.get_mut(at)) else {
            return (Err(Unplaced::Full), changes);
        };
        group.cache(chunks);
        let placed = chunks.iter();
        let placed = placed.map(|&(index, bytes)| placement(group, index, bytes, Partition::Cache));
        (Ok(placed.collect()), changes)
    }

    /// The number of the group in the latest bucket that caches the chunks.
    fn cache_group(
        &mut self,
        chunks: &[(u8, u64)],
        is_busy: &dyn Fn(GroupId) -> bool,
    ) -> Option<usize> {
        let cap = self.options.cap;
        let groups = &self.latest().groups;
        [Room::Free, Room::Evictable].into_iter().find_map(|room| {
            let takes = |group: &Group| group.can_cache(chunks, &cap, room) && !is_busy(group.id);
            groups.iter().position(takes)
        })
    }

    fn latest(&mut self) -> &mut Bucket {
        self.buckets
            .back_mut()
            .expect("a window has a latest bucket")
    }

    /// Adds groups to the latest bucket by the policy, as far as the bound allows.
    fn scale_out(&mut self, changes: &mut Changes) -> Result<(), Unplaced> {
        let groups = self.latest().groups.iter();
        let open_count = groups.filter(|group| group.is_open).count();
        let wanted = match self.options.scaling {
            Scaling::Linear => 1,
            Scaling::Doubling => open_count.max(1),
        };
        if self.groups_count() + self.lingering_count >= self.options.groups_max {
            let released = self.release_early().ok_or(Unplaced::Full)?;
            changes.released.push(released);
        }
        let used = self.groups_count() + self.lingering_count;
        let room = self.options.groups_max.saturating_sub(used);
        for _ in 0..wanted.min(room) {
            let id = GroupId(self.groups_added);
            self.groups_added += 1;
            let group = Group::new(id, self.options.total);
            self.latest().groups.push(group);
            changes.added.push(id);
        }
        Ok(())
    }

    /// Releases the oldest sealed group that may go, in the order of the buckets. Groups that wait
    /// to be released come first, sealed groups of the latest bucket last. Marks keep none.
    fn release_early(&mut self) -> Option<GroupId> {
        let buckets = self.buckets.iter_mut().map(|bucket| &mut bucket.groups);
        for groups in iter::once(&mut self.leaving).chain(buckets) {
            let may_go = |group: &Group| !group.is_open && group.is_releasable();
            if let Some(at) = groups.iter().position(may_go) {
                let released = groups.remove(at).id;
                self.compaction.forget(|from| from.group == released);
                return Some(released);
            }
        }
        None
    }

    /// The groups of the window, with those that wait to be released.
    pub fn groups_count(&self) -> usize {
        let of_buckets = self.buckets.iter().map(|bucket| bucket.groups.len());
        of_buckets.sum::<usize>() + self.leaving.len()
    }

    /// Notes how many released groups still use memory. They count as groups of the window.
    pub fn set_lingering(&mut self, groups_count: usize) {
        self.lingering_count = groups_count;
    }

    /// Notes the end of the request that placed a chunk, with the counts of its reply. None: the
    /// instance does not have the chunk.
    pub fn settled(&mut self, placement: Placement, counts: Option<Counts>) {
        self.with(placement, |function| match counts {
            Some(_) => function.settle(placement.bytes, placement.partition, counts),
            None => function.unplace(placement.bytes, placement.partition),
        });
    }

    /// Notes that a settled chunk is durable, or that no object needs it.
    pub fn persisted(&mut self, placement: Placement) {
        self.with(placement, Function::persisted);
    }

    /// Counts stored chunks that a new instance of a function gets back. There is no test of the
    /// cap: the dead instance had them. None: the function is not in the window.
    pub fn expect(&mut self, function: FunctionId, bytes: u64) -> Option<Placement> {
        let (group, _) = self.find(function.group)?;
        group.functions[usize::from(function.index)].expect(bytes);
        Some(placement(group, function.index, bytes, Partition::Storage))
    }

    /// Notes that expected chunks have arrived, or never will.
    pub fn returned(&mut self, placement: Placement, counts: Counts) {
        self.with(placement, |function| {
            function.returned(placement.bytes, counts);
        });
    }

    /// Calls `with` on the function of a placed chunk, if that still has the same instance.
    fn with(&mut self, placement: Placement, with: impl FnOnce(&mut Function)) {
        let index = usize::from(placement.function.index);
        if let Some((group, _)) = self.find(placement.function.group) {
            let function = &mut group.functions[index];
            if function.generation() == placement.generation {
                with(function);
            }
        }
    }

    /// A group, with the age of its bucket in intervals; of a leaving group the age is that of a
    /// released bucket.
    fn find(&mut self, id: GroupId) -> Option<(&mut Group, u32)> {
        let released = self.options.active_intervals + self.options.degraded_intervals;
        let groups = self.buckets.iter_mut().rev().zip(0..);
        groups
            .flat_map(|(bucket, age)| bucket.groups.iter_mut().map(move |group| (group, age)))
            .chain(self.leaving.iter_mut().map(|group| (group, released)))
            .find(|(group, _)| group.id == id)
    }

    fn phase_at(&self, age: u32) -> Phase {
        if age < self.options.active_intervals {
            Phase::Active
        } else {
            Phase::Degraded
        }
    }

    /// The phase of a function; none: it is not in the window.
    pub fn phase(&mut self, function: FunctionId) -> Option<Phase> {
        let (group, age) = self.find(function.group)?;
        let is_there = !group.functions[usize::from(function.index)].is_dropped();
        is_there.then(|| self.phase_at(age))
    }

    /// Notes that a stored chunk was read.
    pub fn accessed(&mut self, chunk: ChunkName, function: FunctionId, now: Monotonic) -> Accessed {
        self.accessed_in(Partition::Storage, chunk, function, now)
    }

    /// Notes that a chunk of either partition was read.
    pub fn accessed_in(
        &mut self,
        partition: Partition,
        chunk: ChunkName,
        function: FunctionId,
        now: Monotonic,
    ) -> Accessed {
        let Some((group, age)) = self.find(function.group) else {
            return Accessed::Gone;
        };
        if group.functions[usize::from(function.index)].is_dropped() {
            return Accessed::Gone;
        }
        group.idle_intervals = 0;
        match self.phase_at(age) {
            // The newest memory is where it would be moved to.
            Phase::Active if age == 0 && partition == Partition::Storage => Accessed::Kept,
            Phase::Active => {
                let pace = self.options.pace;
                self.compaction.mark(chunk, function, now, &pace);
                Accessed::Kept
            }
            Phase::Degraded if self.compaction.begin(chunk) => Accessed::Move,
            Phase::Degraded => Accessed::Kept,
        }
    }

    /// The chunks that are to be moved now. The caller calls [`Self::moved`] for each.
    pub fn compact(&mut self, now: Monotonic, entropy: &dyn Entropy) -> Vec<Move> {
        let pace = self.options.pace;
        let leaving = &self.leaving;
        let is_leaving = |from: FunctionId| leaving.iter().any(|group| group.id == from.group);
        self.compaction.round(now, &pace, entropy, is_leaving)
    }

    /// Notes that the move of a chunk has ended, with or without success.
    pub fn moved(&mut self, chunk: ChunkName) {
        self.compaction.end(chunk);
    }

    /// Notes that the instance of a function is dead. Its requests and chunks no longer count.
    pub fn failed(&mut self, function: FunctionId) -> Failed {
        let active_intervals = self.options.active_intervals;
        let mut outcome = Failed::Dropped;
        if let Some((group, age)) = self.find(function.group) {
            let failed = &mut group.functions[usize::from(function.index)];
            let is_dropped = age >= active_intervals || failed.is_dropped();
            failed.fail(is_dropped);
            if !is_dropped {
                outcome = Failed::Restart;
            }
        }
        self.compaction.forget(|from| from == function);
        outcome
    }

    /// Removes a group whose instances cannot be started. Nothing of it counts any more.
    pub fn abandon(&mut self, id: GroupId) {
        let buckets = self.buckets.iter_mut().map(|bucket| &mut bucket.groups);
        for groups in buckets.chain(iter::once(&mut self.leaving)) {
            groups.retain(|group| group.id != id);
        }
        self.compaction.forget(|from| from.group == id);
    }

    /// Seals a group: the free space of an instance is too scattered for a chunk.
    pub fn seal(&mut self, id: GroupId) {
        if let Some((group, _)) = self.find(id) {
            group.is_open = false;
        }
    }

    /// Drops a function that failed and cannot be restarted.
    pub fn drop_function(&mut self, function: FunctionId) {
        if let Some((group, _)) = self.find(function.group) {
            group.functions[usize::from(function.index)].fail(true);
        }
        self.compaction.forget(|from| from == function);
    }

    /// The numbers of active and of degraded groups. Those that wait to be released are degraded.
    pub fn groups_by_phase(&self) -> (usize, usize) {
        let active = self.options.active_intervals as usize;
        let newest = self.buckets.iter().rev().take(active);
        let active: usize = newest.map(|bucket| bucket.groups.len()).sum();
        (active, self.groups_count() - active)
    }

    /// Moves the window on by the GC intervals that have passed, and releases what may go.
    pub fn collect(&mut self, now: Monotonic) -> Changes {
        // After this many steps the window is empty: an open group is idle for M + N intervals
        // first, and its bucket then ages as long.
        let steps_max = 2 * self.intervals();
        for _ in 0..steps_max {
            if now < self.next_gc {
                break;
            }
            self.next_gc = self.next_gc + self.options.gc_interval;
            self.step();
        }
        if now >= self.next_gc {
            self.next_gc = now + self.options.gc_interval;
        }
        let (released, leaving) = mem::take(&mut self.leaving)
            .into_iter()
            .partition::<Vec<_>, _>(|group| {
                group.is_releasable() && !self.compaction.has_marks_in(group.id)
            });
        self.leaving = leaving;
        Changes {
            added: Vec::new(),
            released: released.into_iter().map(|group| group.id).collect(),
        }
    }

    fn intervals(&self) -> u32 {
        self.options.active_intervals + self.options.degraded_intervals
    }

    /// One GC step.
    fn step(&mut self) {
        let idle_max = self.intervals();
        let latest = self.latest();
        for group in &mut latest.groups {
            group.idle_intervals += 1;
            group.is_open &= group.idle_intervals < idle_max;
        }
        let groups = mem::take(&mut latest.groups).into_iter();
        let (open, sealed) = groups.partition(|group| group.is_open);
        latest.groups = sealed;
        self.buckets.push_back(Bucket { groups: open });
        while self.buckets.len() > idle_max as usize {
            let oldest = self.buckets.pop_front().expect("there are several");
            self.leaving.extend(oldest.groups);
        }
    }
}

fn placement(group: &Group, index: u8, bytes: u64, partition: Partition) -> Placement {
    Placement {
        function: FunctionId {
            group: group.id,
            index,
        },
        generation: group.functions[usize::from(index)].generation(),
        bytes,
        partition,
    }
}

#[cfg(test)]
mod tests;
