//! T1, T4, T5, T6: reads return committed values, acknowledged commits remain and are seen, and an
//! id takes effect once.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use transactions::model::{Attempt, Key, TransactionId, Version};

use super::{
    history::{Answer, Execution, ReadResult, Writer},
    stored_state::{StoredState, is_deletion},
    workload::Tag,
};

/// T1: values read whose writers did not commit.
pub fn dirty(histories: &[Execution], stored_state: &StoredState) -> Vec<String> {
    let mut violations = Vec::new();
    for (execution, key, tag) in tagged(histories) {
        if !stored_state.is_committed(&tag.writer) {
            let reader = &execution.writer;
            violations.push(format!(
                "{reader:?} read {key:?} of {:?}, which did not commit",
                tag.writer
            ));
        }
    }
    violations
}

/// T1: values read that no attempt wrote to that key: damaged, of another key, or without a writer.
pub fn foreign(histories: &[Execution]) -> Vec<String> {
    let written: BTreeMap<&Writer, &Execution> = histories
        .iter()
        .map(|execution| (&execution.writer, execution))
        .collect();
    let mut violations = Vec::new();
    for execution in histories {
        for (key, shown, _) in execution.reads() {
            let ReadResult::Value(value) = shown else {
                continue;
            };
            let writer = Tag::of(value).and_then(|tag| written.get(&tag.writer).copied());
            // A value that its writer overwrote before the commit is foreign too.
            if writer.is_none_or(|writer| writer.writes().get(key) != Some(&Some(value))) {
                violations.push(format!(
                    "{:?} read {key:?} with a value that no attempt wrote",
                    execution.writer
                ));
            }
        }
    }
    violations
}

/// T4, T5: commits that were acknowledged or have a row, and are incomplete at the end: without a
/// row, with a missing or another value, or with a node that returns an older value.
pub fn lost(histories: &[Execution], stored_state: &StoredState) -> Vec<String> {
    let mut violations = Vec::new();
    for execution in histories {
        let writer = &execution.writer;
        let Some(writes) = stored_state.committed(writer) else {
            // Without writes there may be no row.
            if execution.answer() == Some(Answer::Committed) && !execution.writes().is_empty() {
                violations.push(format!(
                    "{writer:?} was acknowledged, but its row does not say so"
                ));
            }
            continue;
        };
        let named: BTreeMap<&Key, bool> = writes
            .iter()
            .map(|write| (&write.key, is_deletion(write)))
            .collect();
        let planned = execution.writes();
        let version = stored_state.order().committed[writer];
        if named
            != planned
                .iter()
                .map(|(key, value)| (*key, value.is_none()))
                .collect()
        {
            violations.push(format!(
                "{writer:?} committed {named:?}, which is not what it wrote"
            ));
        }
        for (key, value) in planned {
            let item = stored_state.versions.get(&(key.clone(), writer.attempt));
            let is_right = match item {
                Some(item) => item.value.as_ref() == value,
                // It was collected, or is a deletion that all nodes know.
                None => value.is_none() || stored_state.is_superseded(key, version),
            };
            if !is_right {
                violations.push(format!(
                    "{writer:?} committed, and what it wrote to {key:?} is not there"
                ));
            }
        }
    }
    violations.extend(not_shown(stored_state, &stored_state.shown));
    violations
}

/// T5: keys for which a node does not return the value of the newest commit at the end.
pub fn not_shown(stored_state: &StoredState, shown: &BTreeMap<Key, Option<Bytes>>) -> Vec<String> {
    let order = stored_state.order();
    let mut newest: BTreeMap<&Key, (&Writer, bool)> = BTreeMap::new();
    let mut by_version: Vec<_> = order.committed.iter().collect();
    by_version.sort_by_key(|(_, version)| **version);
    for (writer, _) in by_version {
        for write in stored_state.committed(writer).into_iter().flatten() {
            newest.insert(&write.key, (writer, is_deletion(write)));
        }
    }
    let mut violations = Vec::new();
    for (key, shown) in shown {
        let shown = shown
            .as_ref()
            .map(|value| Tag::of(value).map(|tag| tag.writer));
        let is_right = match (newest.get(key), &shown) {
            (None | Some((_, true)), None) => true,
            (Some((writer, false)), Some(Some(shown))) => *writer == shown,
            _ => false,
        };
        if !is_right {
            let newest = newest.get(key);
            violations.push(format!(
                "{key:?} is shown as {shown:?} in the end, where {newest:?} is newest"
            ));
        }
    }
    violations
}

/// T4: attempts that were told that they had not committed, but have.
pub fn refused_and_committed(histories: &[Execution], stored_state: &StoredState) -> Vec<String> {
    let refused = histories
        .iter()
        .filter(|execution| matches!(execution.answer(), Some(Answer::Refused | Answer::Conflict)));
    let committed = refused.filter(|execution| stored_state.is_committed(&execution.writer));
    committed
        .map(|execution| format!("{:?} was refused, but committed", execution.writer))
        .collect()
}

/// T4: ids of which two attempts took effect, by their rows, their clients' answers, or reads by
/// others.
pub fn doubled(histories: &[Execution], stored_state: &StoredState) -> Vec<String> {
    let committed = stored_state.order().committed;
    let tags = tagged(histories);
    let told = histories
        .iter()
        .filter(|execution| execution.answer() == Some(Answer::Committed));
    let mut effective: BTreeMap<&TransactionId, BTreeSet<Attempt>> = BTreeMap::new();
    let writers = committed
        .keys()
        .chain(tags.iter().map(|(_, _, tag)| &tag.writer));
    for Writer { id, attempt } in writers.chain(told.map(|execution| &execution.writer)) {
        effective.entry(id).or_default().insert(*attempt);
    }
    let doubled = effective.iter().filter(|(_, attempts)| attempts.len() > 1);
    doubled
        .map(|(id, attempts)| format!("{id:?} took effect as {attempts:?}"))
        .collect()
}

/// T4, T8: version items that hold what another attempt wrote.
pub fn mixed(stored_state: &StoredState) -> Vec<String> {
    let mut violations = Vec::new();
    for ((key, attempt), item) in &stored_state.versions {
        let tag = item.value.as_ref().and_then(Tag::of);
        if tag.is_some_and(|tag| tag.writer.attempt != *attempt || tag.writer.id != item.id) {
            violations.push(format!(
                "{key:?} holds the value of another attempt under {attempt}"
            ));
        }
    }
    violations
}

/// T5, T-1: stale reads of a transaction that began at least `within` after a commit of that key
/// was acknowledged. The value it read had been acknowledged before that commit was requested. Only
/// real time counts: versions in the wrong order are no excuse.
///
/// With several nodes, one that has not learned of a newer version may be `blind` for this long.
/// Its commits in that time may be superseded from the start, by their versions.
pub fn not_seen_in_time(
    histories: &[Execution],
    stored_state: &StoredState,
    within: Duration,
    blind: Duration,
) -> Vec<String> {
    let writers = Writers::of(histories, stored_state);
    let mut violations = Vec::new();
    for execution in histories {
        for (key, shown, _) in execution.reads() {
            let shown_writer = match shown {
                ReadResult::Value(value) => Tag::of(value).map(|tag| tag.writer),
                ReadResult::Absent => None,
                ReadResult::NoValidVersion => continue,
            };
            for missed in writers.acknowledged(key, execution.begun.asked, within) {
                let is_as_new = |other: &&Written<'_>| {
                    let is_shown = match &shown_writer {
                        Some(shown) => other.writer == shown,
                        None => other.deletes,
                    };
                    let is_blind = other.version > missed.version
                        && other.acknowledged.saturating_add(blind) > missed.begun;
                    is_shown
                        && (other.writer == missed.writer
                            || other.acknowledged > missed.asked
                            || !blind.is_zero() && is_blind)
                };
                if !writers.of_key(key).any(|other| is_as_new(&other)) {
                    let (reader, missed) = (&execution.writer, missed.writer);
                    violations.push(format!(
                        "{reader:?} read {shown_writer:?} of {key:?}, not {missed:?}"
                    ));
                }
            }
        }
    }
    violations
}

/// T6: reads that found no valid version of a key that had one when their transaction began. If the
/// key had been deleted by then, its deletion may have been collected.
pub fn no_valid_version(
    histories: &[Execution],
    stored_state: &StoredState,
    within: Duration,
) -> Vec<String> {
    let writers = Writers::of(histories, stored_state);
    let mut violations = Vec::new();
    for execution in histories {
        for (key, shown, span) in execution.reads() {
            if *shown != ReadResult::NoValidVersion {
                continue;
            }
            let known = writers.acknowledged(key, execution.begun.asked, within);
            let newest = known.max_by_key(|written| written.version);
            let is_gone = |newest: &Written<'_>| {
                newest.deletes
                    || writers.of_key(key).any(|other| {
                        other.deletes
                            && other.version > newest.version
                            && other.asked < span.answered
                    })
            };
            if newest.is_some_and(|newest| !is_gone(newest)) {
                violations.push(format!(
                    "{:?} found no valid version of {key:?}",
                    execution.writer
                ));
            }
        }
    }
    violations
}

/// A committed write of a key.
struct Written<'history> {
    writer: &'history Writer,
    version: Version,
    deletes: bool,
    begun: Duration,
    asked: Duration,
    /// The largest duration if its client received no acknowledgement.
    acknowledged: Duration,
}

/// The committed writes of each key.
struct Writers<'history>(BTreeMap<&'history Key, Vec<Written<'history>>>);

impl<'history> Writers<'history> {
    fn of(histories: &'history [Execution], stored_state: &StoredState) -> Self {
        let mut writers: BTreeMap<&Key, Vec<Written<'_>>> = BTreeMap::new();
        let order = stored_state.order().committed;
        for execution in histories {
            let Some(commit) = execution.commit else {
                continue;
            };
            let Some(version) = order.get(&execution.writer).copied() else {
                continue;
            };
            for (key, value) in execution.writes() {
                writers.entry(key).or_default().push(Written {
                    writer: &execution.writer,
                    version,
                    deletes: value.is_none(),
                    begun: execution.begun.asked,
                    asked: commit.span.asked,
                    acknowledged: execution.acknowledged().unwrap_or(Duration::MAX),
                });
            }
        }
        Self(writers)
    }

    fn of_key(&self, key: &Key) -> impl Iterator<Item = &Written<'history>> {
        self.0.get(key).into_iter().flatten()
    }

    /// The writes that had been acknowledged for `within` at `now`.
    fn acknowledged(
        &self,
        key: &Key,
        now: Duration,
        within: Duration,
    ) -> impl Iterator<Item = &Written<'history>> {
        self.of_key(key).filter(move |written| {
            written
                .acknowledged
                .checked_add(within)
                .is_some_and(|seen| seen <= now)
        })
    }
}

/// Every read of another attempt's value, with the value's tag.
fn tagged(histories: &[Execution]) -> Vec<(&Execution, &Key, Tag)> {
    let reads = histories.iter().flat_map(|execution| {
        execution
            .reads()
            .filter_map(move |(key, shown, _)| match shown {
                ReadResult::Value(value) => Some((execution, key, Tag::of(value)?)),
                _ => None,
            })
    });
    reads.collect()
}
