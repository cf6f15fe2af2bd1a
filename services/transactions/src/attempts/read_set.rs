//! Chooses the version of a key that is consistent with earlier reads: Algorithm 1 of the paper,
//! and the cases it leaves open.
//!
//! *R is atomic* means: for every record T in R and every key m that T wrote and that is in R,
//! R\[m\] is at least T's version of m, or R\[m\] is absent and T was within the frontier when the
//! attempt began.
//!
//! Invariants
//! - A read set that is atomic stays so with every choice that is recorded.
//! - The choice is the newest version that keeps it atomic, if there is one at all.
//! - A key read as absent is in it, judged by position instead of version. Once a deletion is
//!   collected, absent no longer means version zero, and a record that the deletion overwrote must
//!   stay readable.
//! - The writes of a record in the set still exist, unless a deletion from before the begin was
//!   collected with them: then the key is absent. The index may have evicted them, and that version
//!   always fits the set.
//!
//! Pure: records in, a choice out. From AFT, section 3.4; the design note 0003 has the proofs,
//! section 6.4.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ports::{DurabilityPoint, Read};
use primitives::Mutant;

use crate::{
    broken::Broken,
    model::{Attempt, Key, Position, Timestamp, Version},
    storage::{frontier::Frontier, records::CommitRecord},
};

/// The result of reading a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The version that this record wrote; a deletion is a version, too.
    Version(Arc<CommitRecord>),
    /// There was no version.
    Absent,
}

/// The frontiers that choices depend on, beside versions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    /// The applied frontier when the attempt began.
    pub begin_frontier: &'a Frontier,
    /// The positions up to which logs are no longer retained: deletions announced there may be
    /// dropped.
    pub dropped: &'a Frontier,
}

impl Seen<'_> {
    /// Whether a version announced at `position` may be gone, together with a deletion that
    /// superseded it.
    fn is_gone(&self, position: Position) -> bool {
        self.begin_frontier.contains(position) && self.dropped.contains(position)
    }

    /// Whether one of `versions` was within the frontier when the attempt began.
    fn has_any(&self, versions: &[Arc<CommitRecord>]) -> bool {
        versions
            .iter()
            .any(|record| self.begin_frontier.contains(record.position))
    }
}

/// The value of a key at `slot` of the sequencer's log; `versions` are all that may still be
/// needed, oldest first.
///
/// A serializable transaction reads at the last slot applied when it began, after this node has
/// read the log to its tail. Everything acknowledged before is at or below that slot (T-4). The
/// frontier captured at its begin includes that slot, so the horizon protects the versions it may
/// read until it ends. One that only reads is serialized there: it has nothing to validate.
pub(crate) fn choose_at(versions: &[Arc<CommitRecord>], slot: u64) -> Choice {
    let last = Version::sequenced(slot, u32::MAX);
    let newest = versions.iter().rfind(|record| record.version <= last);
    newest.map_or(Choice::Absent, |record| Choice::Version(Arc::clone(record)))
}

/// There are versions, and every one would fracture what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoValidVersion;

#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    reads: BTreeMap<Key, Read<Choice>>,
    /// The records in it, each once.
    records: BTreeSet<Attempt>,
    /// For each key that a record in the set wrote, the highest such version: no read of the key
    /// may be below it (case 1). Kept so that a read need not walk all earlier reads.
    lower: BTreeMap<Key, Arc<CommitRecord>>,
}

impl ReadSet {
    pub(crate) fn get(&self, key: &Key) -> Option<&Read<Choice>> {
        self.reads.get(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.reads.len()
    }

    /// The highest clock timestamp in the set.
    pub(crate) fn newest_timed(&self) -> Timestamp {
        let timestamps = self.reads.values().filter_map(|read| match &read.value {
            Choice::Version(record) => Some(record.version.timed()),
            Choice::Absent => None,
        });
        timestamps.max().unwrap_or_default()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.reads.keys()
    }

    /// Chooses a version of `key`, which is not in the set; `versions` are all known versions,
    /// oldest first.
    pub(crate) fn choose(
        &self,
        key: &Key,
        versions: &[Arc<CommitRecord>],
        seen: &Seen<'_>,
        mutant: Mutant<Broken>,
    ) -> Result<Choice, NoValidVersion> {
        let lower = self
            .lower
            .get(key)
            .filter(|_| !mutant.breaks(Broken::SkipsLowerBound));
        let at_least = lower.map(|record| record.version).unwrap_or_default();
        let newest_first = versions
            .iter()
            .rev()
            .take_while(|record| record.version >= at_least);
        for candidate in newest_first {
            let is_valid = mutant.breaks(Broken::SkipsCowrittenOfCandidate);
            if is_valid || self.admits(candidate, seen.begin_frontier, mutant) {
                return Ok(Choice::Version(Arc::clone(candidate)));
            }
        }
        match lower {
            // Every version from before the begin is gone, even a deletion, which is dropped only
            // where its log is no longer retained. So the key was deleted, and all of that is
            // collected. Later versions change nothing.
            Some(record) if seen.is_gone(record.position) && !seen.has_any(versions) => {
                Ok(Choice::Absent)
            }
            Some(record) => Ok(Choice::Version(Arc::clone(record))),
            None if versions.is_empty() => Ok(Choice::Absent),
            None => Err(NoValidVersion),
        }
    }

    /// Case 2: no read version is older than what `candidate` wrote beside it. It walks the smaller
    /// of the two sets.
    fn admits(
        &self,
        candidate: &CommitRecord,
        begin_frontier: &Frontier,
        mutant: Mutant<Broken>,
    ) -> bool {
        let admits = |read: &Read<Choice>| match &read.value {
            Choice::Version(record) => record.version >= candidate.version,
            Choice::Absent if mutant.breaks(Broken::AbsenceIsVersionZero) => false,
            Choice::Absent => begin_frontier.contains(candidate.position),
        };
        if candidate.writes.len() <= self.reads.len() {
            candidate
                .writes
                .iter()
                .filter_map(|write| self.reads.get(&write.key))
                .all(admits)
        } else {
            self.reads
                .iter()
                .all(|(key, read)| candidate.write_of(key).is_none() || admits(read))
        }
    }

    /// Records that `key` was read as `choice`.
    pub(crate) fn record(&mut self, key: Key, choice: Choice, point: DurabilityPoint) {
        if let Choice::Version(record) = &choice
            && self.records.insert(record.attempt)
        {
            for write in &record.writes {
                match self.lower.get_mut(&write.key) {
                    Some(lower) if lower.version >= record.version => {}
                    Some(lower) => *lower = Arc::clone(record),
                    None => drop(self.lower.insert(write.key.clone(), Arc::clone(record))),
                }
            }
        }
        self.reads.insert(
            key,
            Read {
                value: choice,
                point,
            },
        );
    }

    /// Removes a read whose version turned out to be gone, before any caller saw it.
    pub(crate) fn take_back(&mut self, key: &Key) {
        self.reads.remove(key);
        let reads = std::mem::take(self).reads;
        for (key, read) in reads {
            self.record(key, read.value, read.point);
        }
    }
}
