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
//! - At most `writes_max` writes are remembered, besides those of one slot; the oldest slots go
//!   first.
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

/// Which slot last wrote each key.
#[derive(Debug)]
pub(crate) struct LastWriters {
    last: BTreeMap<Trace, u64>,
    /// The writes of each slot, oldest first.
    slots: VecDeque<(u64, Vec<Trace>)>,
    writes: usize,
    writes_max: usize,
    /// A transaction that read below this slot cannot be validated.
    oldest: u64,
}

impl LastWriters {
    /// An empty table; writes up to `oldest` are unknown.
    pub(crate) fn new(oldest: u64, writes_max: usize) -> Self {
        Self {
            last: BTreeMap::new(),
            slots: VecDeque::new(),
            writes: 0,
            writes_max,
            oldest,
        }
    }

    /// A batch of commits for the next slot.
    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch {
            before: self,
            written: BTreeSet::new(),
        }
    }

    /// Notes the written keys of `slot`, which follows all noted before.
    pub(crate) fn note(&mut self, slot: u64, written: BTreeSet<Trace>) {
        self.last.extend(written.iter().map(|key| (*key, slot)));
        self.writes += written.len();
        self.slots.push_back((slot, written.into_iter().collect()));
        while self.writes > self.writes_max && self.slots.len() > 1 {
            self.forget_slot();
        }
    }

    fn forget_slot(&mut self) {
        let Some((slot, written)) = self.slots.pop_front() else {
            return;
        };
        self.writes -= written.len();
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
pub(crate) struct Batch<'a> {
    before: &'a LastWriters,
    written: BTreeSet<Trace>,
}

impl Batch<'_> {
    /// Whether the next commit passes; `observed` is `None` for a blind write.
    pub(crate) fn validate(&self, observed: Option<&Observed>) -> Verdict {
        let Some(Observed { at, keys }) = observed else {
            return Verdict::Passes;
        };
        if *at < self.before.oldest {
            return Verdict::TooOld;
        }
        let is_written_since = |key: &Trace| {
            self.written.contains(key) || self.before.last.get(key).is_some_and(|last| last > at)
        };
        if keys.iter().any(is_written_since) {
            Verdict::Conflicts
        } else {
            Verdict::Passes
        }
    }

    /// It commits, and writes these keys.
    pub(crate) fn admit(&mut self, written: impl IntoIterator<Item = Trace>) {
        self.written.extend(written);
    }

    /// All that the slot writes.
    pub(crate) fn into_written(self) -> BTreeSet<Trace> {
        self.written
    }
}
