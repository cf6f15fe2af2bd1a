use proptest::prelude::*;

use super::*;

const PAGES: u64 = 64;

fn name(index: u8) -> ChunkName {
    ChunkName {
        segment: 1,
        fragment: 0,
        index,
    }
}

fn offset(outcome: &Outcome) -> Option<u64> {
    match outcome {
        Outcome::Reserved { offset } => Some(*offset),
        _ => None,
    }
}

impl Memory {
    fn take(&mut self, id: u64, pages: u64, partition: Partition) -> Outcome {
        self.reserve(ChunkId(id), name(0), pages * PAGE_BYTES, partition)
    }

    /// Checks the invariants, and the counts against the table.
    fn check(&self) {
        let chunks = self.chunks.values();
        let taken = chunks.map(|chunk| (chunk.offset, chunk.bytes, false));
        let free = self
            .free
            .iter()
            .map(|(offset, bytes)| (*offset, *bytes, true));
        let mut ranges: Vec<_> = taken.chain(free).collect();
        ranges.sort_unstable();
        let (mut end, mut was_free) = (0, false);
        for (offset, bytes, is_free) in ranges {
            assert_eq!(offset, end, "a gap or an overlap");
            assert!(bytes > 0, "an empty range");
            assert!(!(is_free && was_free), "two free ranges touch at {offset}");
            (end, was_free) = (offset + bytes, is_free);
        }
        assert_eq!(end, self.counts.capacity_bytes);
        let of = |partition| {
            let chunks = self.chunks.values();
            chunks
                .filter(|chunk| chunk.partition == partition)
                .map(|chunk| chunk.bytes)
                .sum::<u64>()
        };
        assert_eq!(self.counts.storage_bytes, of(Partition::Storage));
        assert_eq!(self.counts.cache_bytes, of(Partition::Cache));
        assert_eq!(self.counts.chunks, self.chunks.len() as u64);
    }
}

#[test]
fn a_region_is_used_in_whole_pages() {
    assert_eq!(Memory::new(PAGE_BYTES - 1).counts().capacity_bytes, 0);
    let mut memory = Memory::new(3 * PAGE_BYTES + 5);
    assert_eq!(memory.counts().capacity_bytes, 3 * PAGE_BYTES);
    let one = memory.reserve(ChunkId(1), name(1), 1, Partition::Storage);
    let two = memory.reserve(ChunkId(2), name(2), PAGE_BYTES + 1, Partition::Storage);
    assert_eq!((offset(&one), offset(&two)), (Some(0), Some(PAGE_BYTES)));
    assert_eq!(memory.name(ChunkId(2)), Some(name(2)));
    assert_eq!(memory.counts().storage_bytes, 3 * PAGE_BYTES);
    memory.check();
}

#[test]
fn free_space_is_joined_and_used_again() {
    let mut memory = Memory::new(4 * PAGE_BYTES);
    for id in 0..4 {
        memory.take(id, 1, Partition::Storage);
    }
    assert_eq!(memory.take(9, 1, Partition::Storage), Outcome::Full);
    for id in [1, 3, 2] {
        memory.remove(ChunkId(id));
        memory.check();
    }
    assert_eq!(
        offset(&memory.take(5, 3, Partition::Storage)),
        Some(PAGE_BYTES)
    );
    memory.check();
}

#[test]
fn a_refused_reservation_changes_nothing() {
    let mut memory = Memory::new(4 * PAGE_BYTES);
    memory.take(1, 1, Partition::Cache);
    memory.seal(ChunkId(1));
    memory.take(2, 1, Partition::Storage);
    let before = memory.counts();
    for bytes in [4 * PAGE_BYTES, u64::MAX, u64::MAX - PAGE_BYTES] {
        let outcome = memory.reserve(ChunkId(3), name(3), bytes, Partition::Storage);
        assert_eq!(outcome, Outcome::Full);
    }
    // An id is used once.
    assert_eq!(memory.take(2, 1, Partition::Storage), Outcome::Unknown);
    assert_eq!(memory.counts(), before);
    memory.check();
}

/// Section 5.4: the partitions are counted apart, and neither takes the space of the other.
#[test]
fn chunks_of_both_partitions_share_the_free_space_and_are_counted_apart() {
    let mut memory = Memory::new(4 * PAGE_BYTES);
    memory.take(1, 3, Partition::Cache);
    assert_eq!(memory.take(2, 2, Partition::Storage), Outcome::Full);
    assert_eq!(
        offset(&memory.take(3, 1, Partition::Storage)),
        Some(3 * PAGE_BYTES)
    );
    let counts = memory.counts();
    assert_eq!(
        (counts.storage_bytes, counts.cache_bytes),
        (PAGE_BYTES, 3 * PAGE_BYTES)
    );
    memory.remove(ChunkId(1));
    assert_eq!(offset(&memory.take(2, 3, Partition::Storage)), Some(0));
    memory.check();
}

#[derive(Debug, Clone)]
enum Step {
    Reserve(u64, u64, bool),
    Seal(u64),
    Remove(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let id = || 0..24_u64;
    let step = prop_oneof![
        4 => (id(), 0..PAGES * PAGE_BYTES / 3, any::<bool>()).prop_map(|(id, bytes, cache)| Step::Reserve(id, bytes, cache)),
        3 => id().prop_map(Step::Seal),
        2 => id().prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// No two chunks overlap, counts are exact, and free space is used again.
    #[test]
    fn the_invariants_hold_after_each_step(steps in steps()) {
        let mut memory = Memory::new(PAGES * PAGE_BYTES);
        for step in steps {
            match step {
                Step::Reserve(id, bytes, is_cache) => {
                    let partition = if is_cache { Partition::Cache } else { Partition::Storage };
                    let before = memory.counts();
                    let is_known = memory.chunks.contains_key(&ChunkId(id));
                    match memory.reserve(ChunkId(id), name(0), bytes, partition) {
                        Outcome::Reserved { offset } => prop_assert!(offset + bytes <= PAGES * PAGE_BYTES),
                        Outcome::Full => prop_assert!(before == memory.counts() && memory.free.values().all(|free| *free < bytes)),
                        outcome => prop_assert!(is_known, "{outcome:?}"),
                    }
                }
                Step::Seal(id) => drop(memory.seal(ChunkId(id))),
                Step::Remove(id) => memory.remove(ChunkId(id)),
            }
            memory.check();
        }
        for id in 0..24 {
            memory.remove(ChunkId(id));
        }
        prop_assert!(offset(&memory.take(99, PAGES, Partition::Storage)) == Some(0), "all space is one range again");
    }
}
