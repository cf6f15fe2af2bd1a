//! T2, T3: the reads of one attempt are consistent and repeatable, and show its own writes.
//!
//! The check needs only a history and the order of the commits: each value names the other writes
//! of its writer.
//!
//! From AFT, section 2.1 (read atomic isolation: RAMP's fractured reads). AFT's table 2 counts
//! reads that do not repeat as fractured; here they are separate.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use transactions::model::{Key, Version};

use super::{
    history::{Execution, Order, ReadResult, Step},
    workload::Tag,
};

/// A read whose writer is known.
struct Seen<'history> {
    key: &'history Key,
    tag: Tag,
    version: Version,
}

/// Fractured reads: an attempt read T, whose write set contains m, and read m from an older version
/// than T's. The check also reports m as absent, although T left a value there and no deletion
/// followed.
pub fn fractured(histories: &[Execution], order: &Order) -> Vec<String> {
    let deletions = Deletions::of(histories, order);
    let mut violations = Vec::new();
    for execution in histories {
        let seen = seen(execution, order);
        for read in &seen {
            // Another check finds reads of one key that differ.
            for planned in read
                .tag
                .planned
                .iter()
                .filter(|planned| planned.key != *read.key)
            {
                let older = seen
                    .iter()
                    .filter(|other| other.key == &planned.key && other.version < read.version);
                violations.extend(older.map(|other| {
                    let (writer, other) = (&read.tag.writer, &other.tag.writer);
                    format!(
                        "{:?} read {:?} of {writer:?} and {:?} of the older {other:?}",
                        execution.writer, read.key, planned.key
                    )
                }));
                if planned.deletes {
                    continue;
                }
                let absent = execution.reads().filter(|(key, shown, _)| {
                    **key == planned.key && **shown == ReadResult::Absent
                });
                for (key, _, span) in absent {
                    if !deletions.allow(key, read.version, span.answered) {
                        violations.push(format!(
                            "{:?} read {:?} of {:?} and no {key:?}",
                            execution.writer, read.key, read.tag.writer
                        ));
                    }
                }
            }
        }
    }
    violations
}

/// Differing reads of one key in one attempt, without its own write between them.
pub fn not_repeatable(histories: &[Execution]) -> Vec<String> {
    let mut violations = Vec::new();
    for execution in histories {
        let mut first: BTreeMap<&Key, &ReadResult> = BTreeMap::new();
        for (key, shown, _) in execution.reads() {
            // An error is not a read; it is reported instead.
            if *shown != ReadResult::NoValidVersion && *first.entry(key).or_insert(shown) != shown {
                violations.push(format!(
                    "{:?} read {key:?} twice, and differently",
                    execution.writer
                ));
            }
        }
    }
    violations
}

/// Reads of a key after the attempt wrote it that show another value.
pub fn own_write_not_read(histories: &[Execution]) -> Vec<String> {
    let mut violations = Vec::new();
    for execution in histories {
        let mut written: BTreeMap<&Key, Option<&Bytes>> = BTreeMap::new();
        for step in &execution.steps {
            match step {
                Step::Wrote { key, value } => drop(written.insert(key, value.as_ref())),
                Step::Read { key, shown, .. } => {
                    let Some(value) = written.get(key) else {
                        continue;
                    };
                    let is_own = match (value, shown) {
                        (Some(value), ReadResult::Value(shown)) => *value == shown,
                        (None, ReadResult::Absent) => true,
                        _ => false,
                    };
                    if !is_own {
                        violations.push(format!(
                            "{:?} did not read its own {key:?}, but {shown:?}",
                            execution.writer
                        ));
                    }
                }
            }
        }
    }
    violations
}

/// The reads of an attempt that returned a committed value, except for its own writes.
fn seen<'history>(execution: &'history Execution, order: &Order) -> Vec<Seen<'history>> {
    let values = execution.reads().filter_map(|(key, shown, _)| match shown {
        ReadResult::Value(value) => Some((key, Tag::of(value)?)),
        _ => None,
    });
    let seen = values.filter_map(|(key, tag)| {
        let version = *order.committed.get(&tag.writer)?;
        Some(Seen { key, tag, version })
    });
    seen.collect()
}

/// The committed deletions of each key: their version, and the earliest moment at which they can
/// have been read.
struct Deletions<'history>(BTreeMap<&'history Key, Vec<(Version, Duration)>>);

impl<'history> Deletions<'history> {
    fn of(histories: &'history [Execution], order: &Order) -> Self {
        let mut deletions: BTreeMap<&Key, Vec<_>> = BTreeMap::new();
        for execution in histories {
            let (Some(commit), Some(version)) =
                (execution.commit, order.committed.get(&execution.writer))
            else {
                continue;
            };
            for (key, _) in execution
                .writes()
                .into_iter()
                .filter(|(_, value)| value.is_none())
            {
                deletions
                    .entry(key)
                    .or_default()
                    .push((*version, commit.span.asked));
            }
        }
        Self(deletions)
    }

    /// Whether an absence at `answered` may be newer than `version`.
    fn allow(&self, key: &Key, version: Version, answered: Duration) -> bool {
        let of_key = self.0.get(key).into_iter().flatten();
        of_key
            .into_iter()
            .any(|(deletion, asked)| *deletion > version && *asked <= answered)
    }
}
