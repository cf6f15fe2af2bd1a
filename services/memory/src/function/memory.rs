//! The table of an instance's chunks, and the free space of its region.
//!
//! Space is given out in whole pages, first fit. Neighbouring free ranges are joined. Chunks of the
//! cache partition take free space only. They are evicted, least recently used first, when a chunk
//! needs their space. A locked or unsealed chunk is never evicted.
//!
//! Invariants
//! - Chunks and free ranges cover the region without overlap, and no two free ranges touch.
//! - A refused reservation changes nothing.

use std::collections::BTreeMap;

use super::protocol::{ChunkId, ChunkName, Counts, Outcome, Partition};

/// Space is given out in multiples of this, so that a removed chunk's pages hold nothing else.
pub const PAGE_BYTES: u64 = 4096;

#[derive(Debug)]
struct Chunk {
    name: ChunkName,
    offset: u64,
    /// In whole pages.
    bytes: u64,
    partition: Partition,
    is_sealed: bool,
    locks: u32,
    /// The number of the change at its last use.
    used: u64,
}

impl Chunk {
    fn is_evictable(&self) -> bool {
        self.partition == Partition::Cache && self.is_sealed && self.locks == 0
    }
}

/// The memory of an instance.
#[derive(Debug)]
pub struct Memory {
    counts: Counts,
    chunks: BTreeMap<ChunkId, Chunk>,
    /// The sizes of free ranges by their offsets.
    free: BTreeMap<u64, u64>,
}

impl Memory {
    /// The memory of a region with `bytes` bytes, of which whole pages are used.
    pub fn new(bytes: u64) -> Self {
        let capacity_bytes = bytes / PAGE_BYTES * PAGE_BYTES;
        let counts = Counts {
            capacity_bytes,
            ..Counts::default()
        };
        Self {
            counts,
            chunks: BTreeMap::new(),
            free: (capacity_bytes > 0)
                .then_some((0, capacity_bytes))
                .into_iter()
                .collect(),
        }
    }

    /// The present counts.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The name of a chunk.
    pub fn name(&self, id: ChunkId) -> Option<ChunkName> {
        Some(self.chunks.get(&id)?.name)
    }

    /// Reserves `bytes` bytes for a chunk. Chunks of the cache are evicted only if this succeeds.
    pub fn reserve(
        &mut self,
        id: ChunkId,
        name: ChunkName,
        bytes: u64,
        partition: Partition,
    ) -> Outcome {
        if self.chunks.contains_key(&id) {
            return Outcome::Unknown;
        }
        let Some(bytes) = bytes.max(1).checked_next_multiple_of(PAGE_BYTES) else {
            return Outcome::Full;
        };
        let Some(evicted) = self.make_room(bytes) else {
            return Outcome::Full;
        };
        let offset = self.take_first_fit(bytes).expect("there is room now");
        self.changed(partition, bytes as i64);
        let chunk = Chunk {
            name,
            offset,
            bytes,
            partition,
            is_sealed: false,
            locks: 0,
            used: self.counts.changes,
        };
        self.chunks.insert(id, chunk);
        Outcome::Reserved { offset, evicted }
    }

    /// Marks a chunk as whole.
    pub fn seal(&mut self, id: ChunkId) -> Outcome {
        self.with(id, |chunk| {
            chunk.is_sealed = true;
            true
        })
    }

    /// Keeps a sealed chunk from being evicted.
    pub fn lock(&mut self, id: ChunkId) -> Outcome {
        self.with(id, |chunk| {
            chunk.locks += u32::from(chunk.is_sealed);
            chunk.is_sealed
        })
    }

    /// Takes one lock back.
    pub fn unlock(&mut self, id: ChunkId) -> Outcome {
        self.with(id, |chunk| {
            let is_locked = chunk.locks > 0;
            chunk.locks -= u32::from(is_locked);
            is_locked
        })
    }

    /// Removes a chunk in any state. An unknown one is ignored.
    pub fn remove(&mut self, id: ChunkId) {
        if let Some(chunk) = self.chunks.remove(&id) {
            self.changed(chunk.partition, -(chunk.bytes as i64));
            self.give_back(chunk.offset, chunk.bytes);
        }
    }

    /// Uses a chunk. `with` returns whether the call had an effect.
    fn with(&mut self, id: ChunkId, with: impl FnOnce(&mut Chunk) -> bool) -> Outcome {
        let Some(chunk) = self.chunks.get_mut(&id) else {
            return Outcome::Unknown;
        };
        if !with(chunk) {
            return Outcome::Unknown;
        }
        self.counts.changes += 1;
        chunk.used = self.counts.changes;
        Outcome::Done
    }

    /// Counts pages that a chunk takes, or gives back if `bytes` is negative.
    fn changed(&mut self, partition: Partition, bytes: i64) {
        let counts = &mut self.counts;
        counts.changes += 1;
        counts.chunks = counts.chunks.saturating_add_signed(bytes.signum());
        let of = match partition {
            Partition::Storage => &mut counts.storage_bytes,
            Partition::Cache => &mut counts.cache_bytes,
        };
        *of = of.saturating_add_signed(bytes);
    }

    /// Evicts chunks until a free range has `bytes` bytes. Returns the evicted ones; none: that
    /// is impossible, and nothing is evicted.
    fn make_room(&mut self, bytes: u64) -> Option<Vec<ChunkId>> {
        let mut evicted = Vec::new();
        if self.has_fit(bytes) {
            return Some(evicted);
        }
        if !self.would_fit(bytes) {
            return None;
        }
        let candidates = self.chunks.iter().filter(|(_, chunk)| chunk.is_evictable());
        let by_use: BTreeMap<_, _> = candidates.map(|(id, chunk)| (chunk.used, *id)).collect();
        for id in by_use.into_values() {
            self.remove(id);
            evicted.push(id);
            if self.has_fit(bytes) {
                break;
            }
        }
        Some(evicted)
    }

    fn has_fit(&self, bytes: u64) -> bool {
        self.free.values().any(|free| *free >= bytes)
    }

    /// Whether a free range would have `bytes` bytes if all evictable chunks were evicted.
    fn would_fit(&self, bytes: u64) -> bool {
        let mut ranges = self.free.clone();
        let evictable = self.chunks.values().filter(|chunk| chunk.is_evictable());
        ranges.extend(evictable.map(|chunk| (chunk.offset, chunk.bytes)));
        let (mut end, mut length) = (0, 0);
        ranges.into_iter().any(|(offset, bytes_here)| {
            length = bytes_here + if offset == end { length } else { 0 };
            end = offset + bytes_here;
            length >= bytes
        })
    }

    fn take_first_fit(&mut self, bytes: u64) -> Option<u64> {
        let (&offset, &free) = self.free.iter().find(|(_, free)| **free >= bytes)?;
        self.free.remove(&offset);
        if free > bytes {
            self.free.insert(offset + bytes, free - bytes);
        }
        Some(offset)
    }

    /// Frees a range and joins it with its neighbours.
    fn give_back(&mut self, offset: u64, bytes: u64) {
        let (mut from, mut to) = (offset, offset + bytes);
        if let Some((&before, &free)) = self.free.range(..offset).next_back()
            && before + free == offset
        {
            from = before;
        }
        if let Some(after) = self.free.remove(&to) {
            to += after;
        }
        self.free.insert(from, to - from);
    }
}

#[cfg(test)]
mod tests;
