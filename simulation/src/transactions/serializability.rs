//! T11, T12: serializable transactions, with all that committed beside them, as if one had run after the other, and in real
//! time.
//!
//! A graph of who has to come before whom: of two who wrote a key, the one with the lower version; a writer before who read
//! its value, and that one before who overwrote it; whoever was answered before whoever asked. A cycle is an order that
//! there cannot be. Read-atomic transactions are in it by what they wrote: what they read is promised less.
//!
//! Serializable ones that did not commit are in it by what they read: they were shown the keyspace at one instant too.
//!
//! From Adya's generalised isolation definitions (a cycle of dependencies), with the real-time edges of Elle.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use transactions::model::{Isolation, Key, Version};

use super::{
    at_rest::{AtRest, is_deletion},
    history::{Answer, Execution, Shown, Writer},
    workload::Tag,
};

/// Orders that there cannot be: of each knot of them one shortest cycle.
pub fn cycles(histories: &[Execution], at_rest: &AtRest) -> Vec<String> {
    let mut graph = Graph::default();
    let order = at_rest.order();
    let mut writers: BTreeMap<&Writer, usize> = BTreeMap::new();
    let mut readers = Vec::new();
    for execution in histories {
        let version = order.committed.get(&execution.writer);
        let is_serializable = execution.isolation == Isolation::Serializable;
        if version.is_none() && !is_serializable {
            continue;
        }
        let node = graph.add(Some(execution));
        if version.is_some() {
            writers.insert(&execution.writer, node);
        }
        if is_serializable {
            readers.push(node);
        }
    }
    let keys = Keys::of(&writers, at_rest, &order.committed);
    graph.order_writes(&keys);
    for reader in readers {
        graph.order_reads(reader, &keys, &writers);
    }
    graph.order_time(&writers);
    graph.cycles()
}

/// T12: transactions that only read, and were told that somebody had written what they read.
pub fn readers_in_conflict(histories: &[Execution]) -> Vec<String> {
    let conflicting = histories
        .iter()
        .filter(|execution| execution.answer() == Some(Answer::Conflict));
    let readers = conflicting.filter(|execution| execution.writes().is_empty());
    readers
        .map(|execution| format!("{:?} only read, and conflicted", execution.writer))
        .collect()
}

/// The committed versions of each key: who wrote them, lowest first, and whether any deletes it.
#[derive(Default)]
struct Keys<'history>(BTreeMap<&'history Key, OfKey>);

#[derive(Default)]
struct OfKey {
    versions: Vec<(Version, usize)>,
    is_ever_deleted: bool,
}

impl<'history> Keys<'history> {
    fn of(
        writers: &BTreeMap<&Writer, usize>,
        at_rest: &'history AtRest,
        committed: &BTreeMap<Writer, Version>,
    ) -> Self {
        let mut keys = Self::default();
        for (writer, node) in writers {
            for write in at_rest.committed(writer).into_iter().flatten() {
                let key = keys.0.entry(&write.key).or_default();
                key.versions.push((committed[*writer], *node));
                key.is_ever_deleted |= is_deletion(write);
            }
        }
        for key in keys.0.values_mut() {
            key.versions.sort_unstable();
        }
        keys
    }
}

/// Why one comes before another.
#[derive(Debug, Clone)]
enum Why {
    WroteBefore(Key),
    WasReadBy(Key),
    ReadWhatIsOverwritten(Key),
    WasOver,
}

/// Nodes are executions, and moments between them: real time would otherwise take an edge for each pair.
#[derive(Default)]
struct Graph<'history> {
    nodes: Vec<Option<&'history Execution>>,
    edges: Vec<Vec<(usize, Why)>>,
}

impl<'history> Graph<'history> {
    fn add(&mut self, node: Option<&'history Execution>) -> usize {
        self.nodes.push(node);
        self.edges.push(Vec::new());
        self.nodes.len() - 1
    }

    fn order(&mut self, before: usize, after: usize, why: Why) {
        if before != after {
            self.edges[before].push((after, why));
        }
    }

    fn order_writes(&mut self, keys: &Keys<'_>) {
        for (key, of_key) in &keys.0 {
            for pair in of_key.versions.windows(2) {
                self.order(pair[0].1, pair[1].1, Why::WroteBefore((*key).clone()));
            }
        }
    }

    fn order_reads(&mut self, reader: usize, keys: &Keys<'_>, writers: &BTreeMap<&Writer, usize>) {
        let Some(execution) = self.nodes[reader] else {
            return;
        };
        for (key, shown, _) in execution.reads() {
            let of_key = keys.0.get(key);
            let versions = of_key
                .map(|of_key| &of_key.versions[..])
                .unwrap_or_default();
            let next = match shown {
                Shown::Value(value) => {
                    let Some(writer) =
                        Tag::of(value).and_then(|tag| writers.get(&tag.writer).copied())
                    else {
                        continue;
                    };
                    self.order(writer, reader, Why::WasReadBy(key.clone()));
                    let place = versions.iter().position(|(_, other)| *other == writer);
                    place.and_then(|place| versions.get(place + 1))
                }
                // Before the first version, if it was not one of the deletions.
                Shown::Absent if of_key.is_none_or(|of_key| !of_key.is_ever_deleted) => {
                    versions.first()
                }
                Shown::Absent | Shown::NoValidVersion => None,
            };
            if let Some((_, next)) = next {
                self.order(reader, *next, Why::ReadWhatIsOverwritten(key.clone()));
            }
        }
    }

    /// Whoever was over before another began comes before it.
    fn order_time(&mut self, writers: &BTreeMap<&Writer, usize>) {
        let mut events = Vec::new();
        for (node, execution) in self.nodes.iter().enumerate() {
            let Some(execution) = execution else { continue };
            let (from, until) = life(execution, writers.contains_key(&execution.writer));
            events.push((from, true, node));
            events.extend(until.map(|until| (until, false, node)));
        }
        events.sort_unstable();
        let mut moment = None;
        for (_, begins, node) in events {
            if begins {
                if let Some(moment) = moment {
                    self.order(moment, node, Why::WasOver);
                }
            } else {
                let next = self.add(None);
                self.order(node, next, Why::WasOver);
                if let Some(moment) = moment {
                    self.order(moment, next, Why::WasOver);
                }
                moment = Some(next);
            }
        }
    }

    /// What is left once whoever has nobody before it is taken away, again and again: one shortest cycle of it.
    fn cycles(&self) -> Vec<String> {
        let mut before = vec![0; self.nodes.len()];
        for (after, _) in self.edges.iter().flatten() {
            before[*after] += 1;
        }
        let mut free: Vec<usize> = (0..before.len())
            .filter(|node| before[*node] == 0)
            .collect();
        let mut left = self.nodes.len();
        while let Some(node) = free.pop() {
            left -= 1;
            for (after, _) in &self.edges[node] {
                before[*after] -= 1;
                if before[*after] == 0 {
                    free.push(*after);
                }
            }
        }
        if left == 0 {
            return Vec::new();
        }
        let tied =
            (0..before.len()).filter(|node| before[*node] > 0 && self.nodes[*node].is_some());
        let cycles = tied.filter_map(|node| self.shortest_cycle(node));
        cycles
            .min_by_key(Vec::len)
            .map(|cycle| self.said(&cycle))
            .into_iter()
            .collect()
    }

    /// From `start` back to it; each with the place of the edge that leads on.
    fn shortest_cycle(&self, start: usize) -> Option<Vec<(usize, usize)>> {
        let mut from: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        let mut next = VecDeque::from([start]);
        while let Some(node) = next.pop_front() {
            for (place, (after, _)) in self.edges[node].iter().enumerate() {
                if from.contains_key(after) {
                    continue;
                }
                from.insert(*after, (node, place));
                if *after == start {
                    let mut cycle = vec![from[&start]];
                    while let Some((node, _)) = cycle.last().filter(|(node, _)| *node != start) {
                        cycle.push(from[node]);
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
                next.push_back(*after);
            }
        }
        None
    }

    fn said(&self, cycle: &[(usize, usize)]) -> String {
        let steps = cycle.iter().map(|(node, place)| {
            let why = match &self.edges[*node][*place].1 {
                Why::WroteBefore(key) => format!("wrote {key:?} before"),
                Why::WasReadBy(key) => format!("wrote the {key:?} that was read by"),
                Why::ReadWhatIsOverwritten(key) => {
                    format!("read the {key:?} that was overwritten by")
                }
                Why::WasOver => "was over before".to_owned(),
            };
            match self.nodes[*node] {
                Some(Execution {
                    writer, isolation, ..
                }) => {
                    format!(
                        "{:?} as {} ({isolation:?}) {why}",
                        writer.id, writer.attempt
                    )
                }
                None => "then".to_owned(),
            }
        });
        steps.collect::<Vec<_>>().join(", ")
    }
}

/// When it can have taken effect: from when, and until when at the latest if that is known. A read-atomic one is its writes,
/// which nobody sees before its commit is asked for.
fn life(execution: &Execution, is_committed: bool) -> (Duration, Option<Duration>) {
    let asked = execution.commit.map(|commit| commit.span.asked);
    let from = match execution.isolation {
        Isolation::Serializable => execution.begun.asked,
        Isolation::ReadAtomic => asked.unwrap_or(execution.begun.asked),
    };
    if is_committed {
        return (from, execution.acknowledged());
    }
    (
        from,
        execution.reads().map(|(_, _, span)| span.answered).max(),
    )
}
