//! Function groups: which function takes a chunk, and the counts of each function.
//!
//! A group has as many functions as an object has chunks at most. Chunk `i` of an object only ever
//! goes to function `i` of some group. No function therefore holds two chunks of one object,
//! however often a chunk is placed again.
//!
//! A chunk counts against its function from the moment it is placed, in the same step as the test.
//! Concurrent PUTs can therefore not exceed the cap together.
//!
//! A cached chunk counts against the whole memory of its function, never against the storage
//! partition. It is evicted when a stored chunk needs its space.

use crate::function::{Counts, Partition};

/// The number of a group. Groups are numbered in the order in which they were added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

/// A function: a place for one instance at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId {
    /// Its group.
    pub group: GroupId,
    /// Its index in the group, which is the index of all its chunks.
    pub index: u8,
}

/// The bounds of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cap {
    /// The bytes of the storage partition that seal its group (HARDCAP).
    pub storage_bytes_max: u64,
    /// The bytes of both partitions. The cache takes what storage leaves free, and the rest above
    /// HARDCAP.
    pub bytes_max: u64,
    /// The requests on their way to it.
    pub requests_max: u32,
}

/// The outcome of a test of one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tested {
    /// The chunk is placed, and counted.
    Placed,
    /// The memory of the function is full: its group is now sealed.
    Sealed,
    /// The function has too many requests, or the group is sealed.
    Busy,
}

/// The space that a test of the cache counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// Free space.
    Free,
    /// Free space, and that of cached chunks, which can be evicted.
    Evictable,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Function {
    /// The bytes that the instance reported last.
    reported: Counts,
    /// The bytes of placed chunks without a reply.
    placed_bytes: u64,
    /// The same in the cache partition.
    placed_cache_bytes: u64,
    /// The bytes of chunks that are being recovered.
    expected_bytes: u64,
    /// The placed chunks without a reply.
    requests: u32,
    /// The chunks that are not persisted yet.
    unpersisted: u64,
    /// Grows with each instance, so that late replies of an earlier one count for nothing.
    generation: u32,
    is_dropped: bool,
}

impl Function {
    pub(super) fn used_bytes(&self) -> u64 {
        self.reported.storage_bytes + self.placed_bytes + self.expected_bytes
    }

    fn cache_bytes(&self) -> u64 {
        self.reported.cache_bytes + self.placed_cache_bytes
    }

    #[cfg(test)]
    pub(super) fn reported_changes(&self) -> u64 {
        self.reported.changes
    }

    /// Whether it holds nothing that must stay: its instance can end.
    pub(super) fn is_releasable(&self) -> bool {
        self.requests == 0 && self.unpersisted == 0
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.is_dropped
    }

    /// Takes back a placed chunk that no instance has. The PUT goes on elsewhere.
    pub(super) fn unplace(&mut self, bytes: u64, partition: Partition) {
        self.settle(bytes, partition, None);
        self.persisted();
    }

    /// Notes the reply to a placed chunk. A late reply never replaces newer counts.
    pub(super) fn settle(&mut self, bytes: u64, partition: Partition, counts: Option<Counts>) {
        let placed = match partition {
            Partition::Storage => &mut self.placed_bytes,
            Partition::Cache => &mut self.placed_cache_bytes,
        };
        *placed = placed.saturating_sub(bytes);
        self.requests = self.requests.saturating_sub(1);
        if let Some(counts) = counts {
            self.report(counts);
        }
    }

    fn report(&mut self, counts: Counts) {
        if counts.changes >= self.reported.changes {
            self.reported = counts;
        }
    }

    /// Counts chunks before they are recovered.
    pub(super) fn expect(&mut self, bytes: u64) {
        self.expected_bytes += bytes;
    }

    /// Notes that expected chunks have arrived, or never will.
    pub(super) fn returned(&mut self, bytes: u64, counts: Counts) {
        self.expected_bytes = self.expected_bytes.saturating_sub(bytes);
        self.report(counts);
    }

    pub(super) fn persisted(&mut self) {
        self.unpersisted = self.unpersisted.saturating_sub(1);
    }

    /// Forgets what the dead instance held.
    pub(super) fn fail(&mut self, is_dropped: bool) {
        *self = Self {
            generation: self.generation + 1,
            is_dropped,
            ..Self::default()
        };
    }
}

/// A function group.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) id: GroupId,
    pub(super) functions: Vec<Function>,
    pub(super) is_open: bool,
    /// The GC intervals that began since a chunk was last placed in it or read from it.
    pub(super) idle_intervals: u32,
}

impl Group {
    pub(super) fn new(id: GroupId, total: u8) -> Self {
        Self {
            id,
            functions: vec![Function::default(); usize::from(total)],
            is_open: true,
            idle_intervals: 0,
        }
    }

    /// Places a chunk of `bytes` bytes in function `index`, if that can take it.
    pub(super) fn test_and_place(&mut self, index: u8, bytes: u64, cap: &Cap) -> Tested {
        let function = &mut self.functions[usize::from(index)];
        if !self.is_open || function.is_dropped || function.requests >= cap.requests_max {
            return Tested::Busy;
        }
        let used = function.used_bytes().saturating_add(bytes);
        if used > cap.storage_bytes_max {
            self.is_open = false;
            return Tested::Sealed;
        }
        function.placed_bytes += bytes;
        function.requests += 1;
        function.unpersisted += 1;
        self.idle_intervals = 0;
        Tested::Placed
    }

    /// Whether each chunk has `room` in the cache partition of its function.
    pub(super) fn can_cache(&self, chunks: &[(u8, u64)], cap: &Cap, room: Room) -> bool {
        let fits = |&(index, bytes): &(u8, u64)| {
            let Some(function) = self.functions.get(usize::from(index)) else {
                return false;
            };
            let cached = match room {
                Room::Free => function.cache_bytes(),
                Room::Evictable => 0,
            };
            let used = function.used_bytes().saturating_add(cached);
            !function.is_dropped
                && function.requests < cap.requests_max
                && used.saturating_add(bytes) <= cap.bytes_max
        };
        self.is_open && chunks.iter().all(fits)
    }

    /// Places chunks in the cache partition.
    pub(super) fn cache(&mut self, chunks: &[(u8, u64)]) {
        for &(index, bytes) in chunks {
            let function = &mut self.functions[usize::from(index)];
            function.placed_cache_bytes += bytes;
            function.requests += 1;
            function.unpersisted += 1;
        }
        self.idle_intervals = 0;
    }

    pub(super) fn is_releasable(&self) -> bool {
        self.functions.iter().all(Function::is_releasable)
    }
}
