//! Which version of a key goes with what was read before: Algorithm 1 of the paper, and what it leaves open.
//!
//! *R is atomic* means: for every record T in R and every key m that T wrote and that is in R, R\[m\] is at least T's
//! version of m, or R\[m\] is absent and T was heard before the attempt began.
//!
//! Invariants
//! - A read set that is atomic stays so with every choice that is recorded.
//! - The choice is the newest version that keeps it atomic, if there is one at all.
//! - A key read as absent is in it, judged by position instead of version: once a deletion is collected, absent no
//!   longer means version zero, and a record that was overwritten by it must stay readable.
//! - What a record of the set wrote is still there, unless a deletion that was heard before the begin was collected with
//!   it: then the key is absent. The index may have lost the rest, and that version always goes with the set.
//!
//! Pure: records in, a choice out. From AFT, section 3.4; the design note 0003 has the proofs, section 6.4.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ports::DurabilityPoint;

use crate::{
    broken::Broken,
    model::{Attempt, Key, Position, Timestamp},
    storage::{frontier::Heard, records::CommitRecord},
};

/// What a key was read as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The version that this record wrote; a deletion is a version, too.
    Version(Arc<CommitRecord>),
    /// There was no version.
    Absent,
}

/// A read that is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Read {
    /// What was chosen.
    pub choice: Choice,
    /// The choice rests on nothing beyond this point.
    pub point: DurabilityPoint,
}

/// What choices are judged by beside versions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    /// What was heard when the attempt began.
    pub begin_heard: &'a Heard,
    /// Up to where logs are retained no longer: deletions announced there may be dropped.
    pub dropped: &'a Heard,
}

impl Seen<'_> {
    /// Whether what was announced at `position` may be gone together with a deletion that superseded it.
    fn is_gone(&self, position: Position) -> bool {
        self.begin_heard.contains(position) && self.dropped.contains(position)
    }

    /// Whether one of `versions` was heard when the attempt began.
    fn has_any(&self, versions: &[Arc<CommitRecord>]) -> bool {
        versions
            .iter()
            .any(|record| self.begin_heard.contains(record.position))
    }
}

/// There are versions, and every one would fracture what was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoValidVersion;

/// What an attempt has read.
#[derive(Debug, Default)]
pub(crate) struct ReadSet {
    reads: BTreeMap<Key, Read>,
    /// The records in it, each once.
    records: BTreeSet<Attempt>,
    /// For each key that a record in it wrote, the highest such version: whatever is read of the key must not be
    /// below it (case 1). Kept, so that a read costs no walk over all reads before it.
    lower: BTreeMap<Key, Arc<CommitRecord>>,
}

impl ReadSet {
    /// What `key` was read as before.
    pub(crate) fn get(&self, key: &Key) -> Option<&Read> {
        self.reads.get(key)
    }

    /// How many keys are in it.
    pub(crate) fn len(&self) -> usize {
        self.reads.len()
    }

    /// The highest timestamp in it that a clock has given.
    pub(crate) fn newest_timed(&self) -> Timestamp {
        let timestamps = self.reads.values().filter_map(|read| match &read.choice {
            Choice::Version(record) => Some(record.version.timed()),
            Choice::Absent => None,
        });
        timestamps.max().unwrap_or_default()
    }

    /// The keys that were read.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.reads.keys()
    }

    /// What `key`, which is not in the set, may be read as: `versions` are all that is known of it, oldest first.
    pub(crate) fn choose(
        &self,
        key: &Key,
        versions: &[Arc<CommitRecord>],
        seen: &Seen<'_>,
        broken: Option<Broken>,
    ) -> Result<Choice, NoValidVersion> {
        let lower = self
            .lower
            .get(key)
            .filter(|_| broken != Some(Broken::SkipsLowerBound));
        let at_least = lower.map(|record| record.version).unwrap_or_default();
        let newest_first = versions
            .iter()
            .rev()
            .take_while(|record| record.version >= at_least);
        for candidate in newest_first {
            let is_valid = broken == Some(Broken::SkipsCowrittenOfCandidate);
            if is_valid || self.admits(candidate, seen.begin_heard, broken) {
                return Ok(Choice::Version(Arc::clone(candidate)));
            }
        }
        match lower {
            // Nothing is left of what the key was when the attempt began, not even a deletion, which is dropped only where its
            // log is retained no longer: it was deleted, and all of that is collected. What came later changes nothing.
            Some(record) if seen.is_gone(record.position) && !seen.has_any(versions) => {
                Ok(Choice::Absent)
            }
            Some(record) => Ok(Choice::Version(Arc::clone(record))),
            None if versions.is_empty() => Ok(Choice::Absent),
            None => Err(NoValidVersion),
        }
    }

    /// Case 2: nothing that was read is older than what `candidate` wrote beside it. The smaller of the two sets is
    /// walked.
    fn admits(
        &self,
        candidate: &CommitRecord,
        begin_heard: &Heard,
        broken: Option<Broken>,
    ) -> bool {
        let admits = |read: &Read| match &read.choice {
            Choice::Version(record) => record.version >= candidate.version,
            Choice::Absent if broken == Some(Broken::AbsenceIsVersionZero) => false,
            Choice::Absent => begin_heard.contains(candidate.position),
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
        self.reads.insert(key, Read { choice, point });
    }

    /// Takes a read back whose version turned out to be gone, before anybody was shown it.
    pub(crate) fn take_back(&mut self, key: &Key) {
        self.reads.remove(key);
        let reads = std::mem::take(self).reads;
        for (key, read) in reads {
            self.record(key, read.choice, read.point);
        }
    }
}
