//! The recent commits of this node, so that their records need not be read back from the store.
//!
//! The collector follows the own log through it, and loads learn from it which versions are
//! committed. It is bounded by bytes: the oldest commits are evicted, and are then read from the
//! store, as for every other log.
//!
//! Invariants
//! - From [`RecentCommits::complete_from`] on, the commits of every slot whose entries are all
//!   decided are here: a commit is noted before its slot is marked as decided.
//! - Only decided commits are here, each with the point of its decision.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    model::{Attempt, NodeId},
    storage::records::CommitRecord,
};

/// The overhead of a record here.
const ENTRY_BYTES: usize = 128;

/// Commits of this node, by the slot of its log that announced them, and by attempt.
#[derive(Debug)]
pub(crate) struct RecentCommits {
    bytes_max: usize,
    bytes: usize,
    complete_from: u64,
    slots: BTreeMap<(u64, Attempt), Arc<CommitRecord>>,
    attempts: BTreeMap<Attempt, Arc<CommitRecord>>,
}

impl RecentCommits {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let (slots, attempts) = (BTreeMap::new(), BTreeMap::new());
        Self {
            bytes_max,
            bytes: 0,
            complete_from: 0,
            slots,
            attempts,
        }
    }

    /// Another node serves: forgets everything, and is complete for all that the new node will
    /// commit.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.bytes_max);
    }

    /// Notes a decided commit of this node, announced in `slot` of its log, before that slot is
    /// marked as decided.
    pub(crate) fn note(&mut self, slot: u64, record: &Arc<CommitRecord>) {
        self.slots
            .insert((slot, record.attempt), Arc::clone(record));
        self.attempts.insert(record.attempt, Arc::clone(record));
        self.bytes += record.bytes_len() + ENTRY_BYTES;
        while self.bytes > self.bytes_max
            && let Some(((slot, attempt), record)) = self.slots.pop_first()
        {
            self.attempts.remove(&attempt);
            self.bytes -= record.bytes_len() + ENTRY_BYTES;
            self.complete_from = self.complete_from.max(slot + 1);
        }
    }

    pub(crate) fn get(&self, attempt: Attempt) -> Option<&Arc<CommitRecord>> {
        self.attempts.get(&attempt)
    }

    pub(crate) fn complete_from(&self) -> u64 {
        self.complete_from
    }

    /// The commits of whole slots with their slots, and the last of these slots. It starts at
    /// `first`, which is not below [`RecentCommits::complete_from`], and ends at `through` at the
    /// latest. It ends after the slot in which `bytes_max` is reached.
    pub(crate) fn commits(
        &self,
        first: u64,
        through: u64,
        bytes_max: usize,
    ) -> (Vec<(u64, Arc<CommitRecord>)>, u64) {
        let (mut commits, mut bytes, mut last) = (Vec::new(), 0, first);
        let least = Attempt {
            node: NodeId(0),
            sequence: 0,
        };
        for ((slot, _), record) in self.slots.range((first, least)..(through + 1, least)) {
            if *slot != last && bytes >= bytes_max {
                return (commits, slot - 1);
            }
            last = *slot;
            bytes += record.bytes_len();
            commits.push((*slot, Arc::clone(record)));
        }
        (commits, through)
    }
}

#[cfg(test)]
mod tests {
    use ports::DurabilityPoint;

    use super::*;
    use crate::{
        model::{Key, Position, TransactionId, Version},
        storage::records::{Place, Write},
    };

    fn record(slot: u64, sequence: u64) -> Arc<CommitRecord> {
        let node = NodeId(1);
        let key = Key::new(format!("k{sequence}")).expect("short");
        Arc::new(CommitRecord {
            id: TransactionId::new("t").expect("a name"),
            attempt: Attempt { node, sequence },
            version: Version::default(),
            position: Position { log: node, slot },
            writes: vec![Write {
                key,
                write: 1,
                place: Place::Gone,
            }],
            parts: 0,
            point: DurabilityPoint::DURABLE,
        })
    }

    /// The keys that the slots from `first` on wrote, within the bytes of `records`, and the last
    /// of these slots.
    fn names(recent: &RecentCommits, first: u64, through: u64, records: usize) -> (String, u64) {
        let bytes_max = records * record(1, 1).bytes_len();
        let (commits, last) = recent.commits(first, through, bytes_max);
        let names = commits.iter().map(|(_, record)| {
            String::from_utf8(record.writes[0].key.name().to_vec()).expect("text")
        });
        (names.collect::<Vec<_>>().join(" "), last)
    }

    #[test]
    fn whole_slots_are_walked_and_what_was_dropped_is_said() {
        let one = record(1, 1).bytes_len() + ENTRY_BYTES;
        let mut recent = RecentCommits::new(4 * one);
        // Decided in any order; slots 3 and 5 have no commits.
        for (slot, sequence) in [(2, 2), (1, 1), (4, 4), (2, 3)] {
            recent.note(slot, &record(slot, sequence));
        }
        let expected = |keys: &str, last| (keys.to_owned(), last);
        assert_eq!(names(&recent, 1, 5, 9), expected("k1 k2 k3 k4", 5));
        assert_eq!(names(&recent, 1, 5, 2), expected("k1 k2 k3", 3));
        assert_eq!(names(&recent, 2, 2, 1), expected("k2 k3", 2));
        assert_eq!(names(&recent, 3, 3, 1), expected("", 3));
        assert_eq!(recent.complete_from(), 0);
        assert!(
            recent
                .get(Attempt {
                    node: NodeId(1),
                    sequence: 1
                })
                .is_some()
        );
        recent.note(6, &record(6, 5));
        assert!(
            recent
                .get(Attempt {
                    node: NodeId(1),
                    sequence: 1
                })
                .is_none()
        );
        assert_eq!(recent.complete_from(), 2);
        assert_eq!(names(&recent, 2, 6, 9), expected("k2 k3 k4 k5", 6));
        recent.note(6, &record(6, 6));
        assert_eq!(recent.complete_from(), 3, "half of slot 2 is gone");
        recent.clear();
        assert_eq!(names(&recent, 1, 1, 9), expected("", 1));
    }
}
