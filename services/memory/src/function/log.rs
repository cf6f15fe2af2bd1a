//! The insertion log of an instance: a hash over all changes of its chunks, in their order.
//!
//! Each insertion and each removal is a *term*. The hash of a term covers the hash of the term
//! before it. Every reply carries the latest [`Record`], and every request carries the latest
//! record that the daemon has received. Requests are on their way in numbers, so the daemon's
//! record may be some terms old. An instance whose log does not contain it has lost chunks, or has
//! others than the daemon believes. It refuses the request, and the daemon replaces it.
//!
//! From `infinistore.txt`, section 5.5.1. The published code does not compare the first term. Here
//! all are compared, the empty log too.

use std::collections::VecDeque;

use sha2::{Digest as _, Sha256};

use super::protocol::{ChunkId, ChunkName, Record};

/// The latest terms whose hashes an instance keeps. More than the requests that are on their way.
const RECENT_TERMS: usize = 256;

/// The insertion log.
#[derive(Debug, Default)]
pub(super) struct Log {
    record: Record,
    /// The hashes of the terms before the latest, the newest last.
    earlier: VecDeque<[u8; 32]>,
}

impl Log {
    /// The latest state.
    pub(super) fn record(&self) -> Record {
        self.record
    }

    /// Appends the insertion of a chunk.
    pub(super) fn insert(&mut self, id: ChunkId, name: ChunkName) {
        self.record.insertions += 1;
        let place = [u64::from(name.fragment), u64::from(name.index), id.0];
        let place = place.into_iter().flat_map(u64::to_le_bytes);
        self.append(b'+', name.segment.to_le_bytes().into_iter().chain(place));
    }

    /// Appends the removal of chunks.
    pub(super) fn remove(&mut self, ids: &[ChunkId]) {
        self.append(b'-', ids.iter().flat_map(|id| id.0.to_le_bytes()));
    }

    fn append(&mut self, operation: u8, operands: impl Iterator<Item = u8>) {
        let Record {
            term,
            insertions,
            hash,
        } = &mut self.record;
        *term += 1;
        let operands: Vec<u8> = operands.collect();
        let next = Sha256::new()
            .chain_update(term.to_le_bytes())
            .chain_update(insertions.to_le_bytes())
            .chain_update([operation])
            .chain_update(operands)
            .chain_update(*hash);
        self.earlier.push_back(*hash);
        *hash = next.finalize().into();
        if self.earlier.len() > RECENT_TERMS {
            self.earlier.pop_front();
        }
    }

    /// Whether `record` is a recent state of this log.
    pub(super) fn contains(&self, record: Record) -> bool {
        let age = self.record.term.checked_sub(record.term);
        let hash = match age {
            Some(0) => Some(&self.record.hash),
            Some(age) => {
                let from_end = self.earlier.len().checked_sub(age as usize);
                from_end.and_then(|at| self.earlier.get(at))
            }
            None => None,
        };
        hash == Some(&record.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inserted(log: &mut Log, segment: u128) -> Record {
        let name = ChunkName {
            segment,
            fragment: 0,
            index: 1,
        };
        log.insert(ChunkId(segment as u64), name);
        log.record()
    }

    /// Section 5.5.1.
    #[test]
    fn a_log_contains_its_recent_states_and_those_of_no_other_log() {
        let (mut log, mut fork) = (Log::default(), Log::default());
        assert!(log.contains(Record::default()), "the empty log");
        let first = inserted(&mut log, 1);
        let other = inserted(&mut fork, 2);
        assert_eq!((first.term, other.term), (1, 1));
        assert!(!log.contains(other) && !fork.contains(first));
        log.remove(&[ChunkId(1)]);
        inserted(&mut fork, 3);
        assert!(log.contains(first) && log.contains(Record::default()));
        assert!(!log.contains(fork.record()));
        assert_eq!(log.record().insertions, 1);
        assert_ne!(
            inserted(&mut log, 3).hash,
            inserted(&mut fork, 3).hash,
            "the same changes after different ones"
        );
        assert!(!Log::default().contains(first), "an instance that lost all");
    }

    #[test]
    fn states_older_than_the_recent_ones_are_not_kept() {
        let mut log = Log::default();
        let first = inserted(&mut log, 0);
        for segment in 0..RECENT_TERMS as u128 {
            assert!(log.contains(first));
            inserted(&mut log, segment);
        }
        assert!(log.contains(first));
        inserted(&mut log, 1);
        assert!(!log.contains(first));
        assert_eq!(log.earlier.len(), RECENT_TERMS);
    }
}
