//! The table of an instance's chunks, and the free space of its region.
//!
//! Space is given out in whole pages, first fit. Neighbouring free ranges are joined. A chunk of
//! either partition takes free space only. The daemon evicts cached chunks, because it reads the
//! region without a call: only it knows which of them are being read.
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

    /// Reserves `bytes` bytes for a chunk.
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
        let Some(offset) = self.take_first_fit(bytes) else {
            return Outcome::Full;
        };
        self.changed(partition, bytes as i64);
        let chunk = Chunk {
            name,
            offset,
            bytes,
            partition,
        };
        self.chunks.insert(id, chunk);
        Outcome::Reserved { offset }
    }

    /// Notes that a chunk is whole.
    pub fn seal(&mut self, id: ChunkId) -> Outcome {
        if !self.chunks.contains_key(&id) {
            return Outcome::Unknown;
        }
        self.counts.changes += 1;
        Outcome::Done
    }

    /// Removes a chunk in any state. An unknown one is ignored.
    pub fn remove(&mut self, id: ChunkId) {
        if let Some(chunk) = self.chunks.remove(&id) {
            self.changed(chunk.partition, -(chunk.bytes as i64));
            self.give_back(chunk.offset, chunk.bytes);
        }
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
