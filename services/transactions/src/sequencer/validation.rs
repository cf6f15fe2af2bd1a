//! Optimistic validation: checks a commit's reads against the last writers of the keys.
//!
//! A transaction reads the keyspace as of one slot of the sequencer's log. It may commit if no
//! other transaction has written what it read since then. It then behaves as if all its reads and
//! writes happened at once, in its own slot. Blind writes need no validation. Neither do
//! transactions that write nothing: they took place at their read timestamp.
//!
//! Invariants
//! - No transaction passes that read a key which was written after its read timestamp, or by an
//!   earlier member of its batch. The reverse is not promised: two keys of one hash conflict. A
//!   transaction that read below the oldest known slot is refused as too old, because the writes
//!   there are forgotten.
//! - The remembered writes weigh at most `weight_max` (for a [`Trace`]: their number), besides
//!   those of one slot; the oldest slots go first.
//!
//! Pure: no I/O, no clock. From Kung and Robinson's optimistic concurrency control, backward
//! validation.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::model::Key;

/// A key's hash in the table, the same in every build. Two keys may share one: then their
/// transactions conflict needlessly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Trace(u64);

impl Trace {
    /// The hash of `key`.
    pub(crate) fn of(key: &Key) -> Self {
        let hash = Sha256::new()
            .chain_update(key.keyspace().0.to_be_bytes())
            .chain_update(key.name());
        let hash = hash.finalize();
        Self(u64::from_be_bytes(
            *hash.first_chunk().expect("it has 32 bytes"),
        ))
    }
}

/// The reads of a transaction: the keys, including absent ones, all as of one slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Observed {
    /// The slot.
    pub(crate) at: u64,
    /// The keys.
    pub(crate) keys: Vec<Trace>,
}

/// The result of validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may commit.
    Passes,
    /// Another transaction has written what it read.
    Conflicts,
    /// It read at a slot that is forgotten.
    TooOld,
}

/// A key as the table remembers it.
pub(crate) trait Remembered: Ord + Clone {
    /// Its share of the table's bound.
    fn weight(&self) -> usize;
}

/// The table is bounded by the number of writes.
impl Remembered for Trace {
    fn weight(&self) -> usize {
        1
    }
}

/// Which slot last wrote each key.
#[derive(Debug)]
pub(crate) struct LastWriters<K = Trace> {
    last: BTreeMap<K, u64>,
    /// The writes of each slot, oldest first.
    slots: VecDeque<(u64, Vec<K>)>,
    weight: usize,
    weight_max: usize,
    /// A transaction that read below this slot cannot be validated.
    oldest: u64,
}

impl<K: Remembered> LastWriters<K> {
    /// An empty table; writes up to `oldest` are unknown.
    pub(crate) fn new(oldest: u64, weight_max: usize) -> Self {
        Self {
            last: BTreeMap::new(),
            slots: VecDeque::new(),
            weight: 0,
            weight_max,
            oldest,
        }
    }

    /// A batch of commits for the next slot.
    pub(crate) fn batch(&self) -> Batch<'_, K> {
        Batch {
            before: self,
            written: BTreeSet::new(),
        }
    }

    /// A transaction that read below this slot cannot be validated.
    pub(crate) fn oldest(&self) -> u64 {
        self.oldest
    }

    /// Whether `key` was written after slot `at`, which is not below the oldest.
    pub(crate) fn is_written_since(&self, key: &K, at: u64) -> bool {
        self.last.get(key).is_some_and(|last| *last > at)
    }

    /// The first key, from `from` on and before `is_past`, that was written after slot `at`.
    pub(crate) fn first_written_since(
        &self,
        from: &K,
        is_past: impl Fn(&K) -> bool,
        at: u64,
    ) -> Option<&K> {
        let mut inside = self.last.range(from..).take_while(|(key, _)| !is_past(key));
        inside.find(|(_, last)| **last > at).map(|(key, _)| key)
    }

    /// Notes the written keys of `slot`, which follows all noted before.
    pub(crate) fn note(&mut self, slot: u64, written: BTreeSet<K>) {
        if written.is_empty() {
            return;
        }
        self.last
            .extend(written.iter().map(|key| (key.clone(), slot)));
        self.weight += written.iter().map(K::weight).sum::<usize>();
        self.slots.push_back((slot, written.into_iter().collect()));
        while self.weight > self.weight_max && self.slots.len() > 1 {
            self.forget_slot();
        }
    }

    fn forget_slot(&mut self) {
        let Some((slot, written)) = self.slots.pop_front() else {
            return;
        };
        self.weight -= written.iter().map(K::weight).sum::<usize>();
        for key in written {
            if self.last.get(&key) == Some(&slot) {
                self.last.remove(&key);
            }
        }
        self.oldest = slot;
    }
}

/// The commits of one slot, in their order there.
#[derive(Debug)]
pub(crate) struct Batch<'a, K = Trace> {
    before: &'a LastWriters<K>,
    written: BTreeSet<K>,
}

impl Batch<'_> {
    /// Whether the next commit passes; `observed` is `None` for a blind write.
    pub(crate) fn validate(&self, observed: Option<&Observed>) -> Verdict {
        let Some(Observed { at, keys }) = observed else {
            return Verdict::Passes;
        };
        if !self.knows(*at) {
            return Verdict::TooOld;
        }
        if keys.iter().any(|key| self.is_written_since(key, *at)) {
            Verdict::Conflicts
        } else {
            Verdict::Passes
        }
    }
}

impl<K: Remembered> Batch<'_, K> {
    /// Whether all writes after slot `at` are remembered.
    pub(crate) fn knows(&self, at: u64) -> bool {
        at >= self.before.oldest()
    }

    /// Whether `key` was written after slot `at`, which the table knows.
    pub(crate) fn is_written_since(&self, key: &K, at: u64) -> bool {
        self.written.contains(key) || self.before.is_written_since(key, at)
    }

    /// It commits, and writes these keys.
    pub(crate) fn admit(&mut self, written: impl IntoIterator<Item = K>) {
        self.written.extend(written);
    }

    /// All that the slot writes.
    pub(crate) fn into_written(self) -> BTreeSet<K> {
        self.written
    }
}
