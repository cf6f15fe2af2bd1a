//! T1, T4, T5, T6: what was read had committed, what was acknowledged stays and is seen, and an id counts once.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use transactions::model::{Attempt, Key, TransactionId, Version};

use super::{
    at_rest::{AtRest, is_deletion},
    history::{Answer, Execution, Shown, Writer},
    workload::Tag,
};

/// T1: values read whose writers did not commit.
pub fn dirty(histories: &[Execution], at_rest: &AtRest) -> Vec<String> {
    let mut violations = Vec::new();
    for (execution, key, tag) in tagged(histories) {
        if !at_rest.is_committed(&tag.writer) {
            let reader = &execution.writer;
            violations.push(format!(
                "{reader:?} read {key:?} of {:?}, which did not commit",
                tag.writer
            ));
        }
    }
    violations
}

/// Values read that nobody wrote to that key: damaged, of another key, or of nobody.
pub fn foreign(histories: &[Execution]) -> Vec<String> {
    let written: BTreeMap<&Writer, &Execution> = histories
        .iter()
        .map(|execution| (&execution.writer, execution))
        .collect();
    let mut violations = Vec::new();
    for execution in histories {
        for (key, shown, _) in execution.reads() {
            let Shown::Value(value) = shown else { continue };
            let writer = Tag::of(value).and_then(|tag| written.get(&tag.writer).copied());
            // A value that was written over before the commit would be as foreign.
            if writer.is_none_or(|writer| writer.writes().get(key) != Some(&Some(value))) {
                violations.push(format!(
                    "{:?} read {key:?} as nobody wrote it",
                    execution.writer
                ));
            }
        }
    }
    violations
}

/// T4, T5: commits that were acknowledged, or that their rows hold, and are not whole at the end: no row, a value
/// missing or another one, or a node that shows something older.
pub fn lost(histories: &[Execution], at_rest: &AtRest) -> Vec<String> {
    let mut violations = Vec::new();
    for execution in histories {
        let writer = &execution.writer;
        let Some(writes) = at_rest.committed(writer) else {
            // Without writes there may be no row.
            if execution.answer() == Some(Answer::Committed) && !execution.writes().is_empty() {
                violations.push(format!(
                    "{writer:?} was told it had committed, and its row does not say so"
                ));
            }
            continue;
        };
        let named: BTreeMap<&Key, bool> = writes
            .iter()
            .map(|write| (&write.key, is_deletion(write)))
            .collect();
        let planned = execution.writes();
        let version = at_rest.order().committed[writer];
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
            let item = at_rest.versions.get(&(key.clone(), writer.attempt));
            let is_right = match item {
                Some(item) => item.value.as_ref() == value,
                // Collected, or a deletion that everybody has heard of.
                None => value.is_none() || at_rest.is_superseded(key, version),
            };
            if !is_right {
                violations.push(format!(
                    "{writer:?} committed, and what it wrote to {key:?} is not there"
                ));
            }
        }
    }
    violations.extend(not_shown(at_rest, &at_rest.shown));
    violations
}

/// T5: keys that a node shows otherwise than the newest commit left them, when all is over.
pub fn not_shown(at_rest: &AtRest, shown: &BTreeMap<Key, Option<Bytes>>) -> Vec<String> {
    let order = at_rest.order();
    let mut newest: BTreeMap<&Key, (&Writer, bool)> = BTreeMap::new();
    let mut by_version: Vec<_> = order.committed.iter().collect();
    by_version.sort_by_key(|(_, version)| **version);
    for (writer, _) in by_version {
        for write in at_rest.committed(writer).into_iter().flatten() {
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

/// T4: attempts that were told they had not committed, and have.
pub fn refused_and_committed(histories: &[Execution], at_rest: &AtRest) -> Vec<String> {
    let refused = histories
        .iter()
        .filter(|execution| matches!(execution.answer(), Some(Answer::Refused | Answer::Conflict)));
    let committed = refused.filter(|execution| at_rest.is_committed(&execution.writer));
    committed
        .map(|execution| format!("{:?} was told it had not committed", execution.writer))
        .collect()
}

/// T4: ids of which two attempts took effect: their rows say so, their clients were told, or others read them.
pub fn doubled(histories: &[Execution], at_rest: &AtRest) -> Vec<String> {
    let committed = at_rest.order().committed;
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
pub fn mixed(at_rest: &AtRest) -> Vec<String> {
    let mut violations = Vec::new();
    for ((key, attempt), item) in &at_rest.versions {
        let tag = item.value.as_ref().and_then(Tag::of);
        if tag.is_some_and(|tag| tag.writer.attempt != *attempt || tag.writer.id != item.id) {
            violations.push(format!(
                "{key:?} holds the value of another attempt under {attempt}"
            ));
        }
    }
    violations
}

/// T5, T-1: reads of a transaction that began `within` after a commit of that key was acknowledged, and that show
/// something which had been acknowledged before that commit was asked for. By real time alone: versions that come
/// in the wrong order do not excuse it.
///
/// Of several nodes one that has not heard of a newer version may be `blind` for so long: what it commits meanwhile may be
/// born superseded, as versions say.
pub fn not_seen_in_time(
    histories: &[Execution],
    at_rest: &AtRest,
    within: Duration,
    blind: Duration,
) -> Vec<String> {
    let writers = Writers::of(histories, at_rest);
    let mut violations = Vec::new();
    for execution in histories {
        for (key, shown, _) in execution.reads() {
            let shown_writer = match shown {
                Shown::Value(value) => Tag::of(value).map(|tag| tag.writer),
                Shown::Absent => None,
                Shown::NoValidVersion => continue,
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

/// T6: reads that found no valid version of a key that had one when their transaction began. A key that was deleted by
/// then has none: its deletion may be collected.
pub fn no_valid_version(
    histories: &[Execution],
    at_rest: &AtRest,
    within: Duration,
) -> Vec<String> {
    let writers = Writers::of(histories, at_rest);
    let mut violations = Vec::new();
    for execution in histories {
        for (key, shown, span) in execution.reads() {
            if *shown != Shown::NoValidVersion {
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
    /// Never, if its client was not told.
    acknowledged: Duration,
}

/// The committed writes of each key.
struct Writers<'history>(BTreeMap<&'history Key, Vec<Written<'history>>>);

impl<'history> Writers<'history> {
    fn of(histories: &'history [Execution], at_rest: &AtRest) -> Self {
        let mut writers: BTreeMap<&Key, Vec<Written<'_>>> = BTreeMap::new();
        let order = at_rest.order().committed;
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

    /// Those that had been acknowledged for `within` at `now`.
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

/// Every read of another's value, with what the value says.
fn tagged(histories: &[Execution]) -> Vec<(&Execution, &Key, Tag)> {
    let reads = histories.iter().flat_map(|execution| {
        execution
            .reads()
            .filter_map(move |(key, shown, _)| match shown {
                Shown::Value(value) => Some((execution, key, Tag::of(value)?)),
                _ => None,
            })
    });
    reads.collect()
}
