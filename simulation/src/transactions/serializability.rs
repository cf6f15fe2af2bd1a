//! T11, T12: the serializable transactions, together with all other commits, are equivalent to a
//! serial order that respects real time.
//!
//! The check builds a precedence graph. Of two writers of a key, the lower version comes first. A
//! writer comes before the readers of its value, and these before the next writer. A transaction
//! that was answered before another one began comes before it. A cycle in the graph contradicts
//! every serial order. Read-atomic transactions take part with their writes only, because their
//! reads have weaker promises. Serializable attempts that did not commit take part with their
//! reads, because they also saw the keyspace at one instant.
//!
//! From Adya's generalised isolation definitions (a cycle of dependencies), with the real-time
//! edges of Elle.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use transactions::model::{Isolation, Key, Version};

use super::{
    history::{Answer, Execution, ReadResult, Writer},
    stored_state::{StoredState, is_deletion},
    workload::Tag,
};

/// The shortest cycle of each strongly connected component.
pub fn cycles(histories: &[Execution], stored_state: &StoredState) -> Vec<String> {
    let mut graph = Graph::default();
    let order = stored_state.order();
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
    let keys = Keys::of(&writers, stored_state, &order.committed);
    graph.order_writes(&keys);
    for reader in readers {
        graph.order_reads(reader, &keys, &writers);
    }
    graph.order_time(&writers);
    graph.cycles()
}

/// T12: read-only transactions that were told that another one had written what they read.
pub fn readers_in_conflict(histories: &[Execution]) -> Vec<String> {
    let conflicting = histories
        .iter()
        .filter(|execution| execution.answer() == Some(Answer::Conflict));
    let readers = conflicting.filter(|execution| execution.writes().is_empty());
    readers
        .map(|execution| format!("{:?} only read, and conflicted", execution.writer))
        .collect()
}

/// The committed versions of each key: their writers, lowest first, and whether any of them deletes
/// it.
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
        stored_state: &'history StoredState,
        committed: &BTreeMap<Writer, Version>,
    ) -> Self {
        let mut keys = Self::default();
        for (writer, node) in writers {
            for write in stored_state.committed(writer).into_iter().flatten() {
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

/// The reason for an edge.
#[derive(Debug, Clone)]
enum Why {
    WroteBefore(Key),
    WasReadBy(Key),
    ReadWhatIsOverwritten(Key),
    WasOver,
}

/// The nodes are executions, and moments between them. Without moments, real time would need one
/// edge for each pair.
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
                ReadResult::Value(value) => {
                    let Some(writer) =
                        Tag::of(value).and_then(|tag| writers.get(&tag.writer).copied())
                    else {
                        continue;
                    };
                    self.order(writer, reader, Why::WasReadBy(key.clone()));
                    let place = versions.iter().position(|(_, other)| *other == writer);
                    place.and_then(|place| versions.get(place + 1))
                }
                // Before the first version, unless it read one of the deletions.
                ReadResult::Absent if of_key.is_none_or(|of_key| !of_key.is_ever_deleted) => {
                    versions.first()
                }
                ReadResult::Absent | ReadResult::NoValidVersion => None,
            };
            if let Some((_, next)) = next {
                self.order(reader, *next, Why::ReadWhatIsOverwritten(key.clone()));
            }
        }
    }

    /// An execution that ended before another one began comes before it.
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

    /// Removes executions without predecessors repeatedly, and returns one shortest cycle of the
    /// rest.
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

    /// The shortest path from `start` back to it. Each step has the index of the edge that leads
    /// on.
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

/// The interval in which it can have taken effect; the end is none if unknown. A read-atomic one
/// takes effect with its writes, which are invisible before its commit is requested.
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
