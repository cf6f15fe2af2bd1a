//! The applied frontier of a node: positions in logs, without a clock.
//!
//! Invariants
//! - [`Frontier`] only grows. A log that is not in it is unapplied.
//! - A node's own log is applied up to the slot before the first whose entries are not all decided.
//!   [`Progress`] finds it, in any order of decisions.
//!
//! From AFT, section 4, which follows commits by their timestamps. Ours follows dense logs, so no
//! commit can appear below a position that was passed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{NodeId, Position};

/// The most logs that [`Frontier::behind`] returns of those applied to their ends.
const BEHIND_MAX: usize = 1_000;

/// For each log, the slot up to which everything is decided and applied here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Frontier {
    /// Logs applied to their end, as ranges of node ids, first to last; ids grow, so ranges merge.
    whole: BTreeMap<u32, u32>,
    /// The others.
    logs: BTreeMap<NodeId, u64>,
}

impl Frontier {
    /// The frontier of every slot of every log, present and future.
    pub(crate) fn everything() -> Self {
        let mut applied = Self::default();
        applied.finish(NodeId(0), NodeId(u32::MAX));
        applied
    }

    /// The slot up to which `log` is applied.
    pub(crate) fn through(&self, log: NodeId) -> u64 {
        match self.whole.range(..=log.0).next_back() {
            Some((_, last)) if *last >= log.0 => u64::MAX,
            _ => self.logs.get(&log).copied().unwrap_or(0),
        }
    }

    /// Whether the commit at `position` is applied.
    pub(crate) fn contains(&self, position: Position) -> bool {
        position.slot <= self.through(position.log)
    }

    /// Applies `log` up to `slot`.
    pub(crate) fn advance(&mut self, log: NodeId, slot: u64) {
        if slot > self.through(log) {
            self.logs.insert(log, slot);
        }
    }

    /// Applies the logs of `first` to `last` to their ends: nothing is added to them any more.
    pub(crate) fn finish(&mut self, first: NodeId, last: NodeId) {
        if first > last {
            return;
        }
        let (mut start, mut end) = (first.0, last.0);
        // Ranges that overlap the new one, or are adjacent, become part of it.
        while let Some((&other_start, &other_end)) =
            self.whole.range(..=end.saturating_add(1)).next_back()
        {
            if other_end.saturating_add(1) < start {
                break;
            }
            self.whole.remove(&other_start);
            (start, end) = (start.min(other_start), end.max(other_end));
        }
        self.whole.insert(start, end);
        self.logs.retain(|log, _| !(start..=end).contains(&log.0));
    }

    /// Whether `log` is applied to its end.
    pub(crate) fn is_whole(&self, log: NodeId) -> bool {
        self.through(log) == u64::MAX
    }

    /// Adds `other`'s frontier.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (first, last) in &other.whole {
            self.finish(NodeId(*first), NodeId(*last));
        }
        for (log, slot) in &other.logs {
            self.advance(*log, *slot);
        }
    }

    /// Logs of which `other` has applied more: all, or the first [`BEHIND_MAX`] that it has applied
    /// to their ends.
    pub(crate) fn behind(&self, other: &Self) -> Vec<NodeId> {
        let mut behind: Vec<NodeId> = Vec::new();
        for (first, last) in &other.whole {
            // Between the ranges of both lie only as many logs as nodes that ended lately.
            let mut next = *first;
            while next <= *last && behind.len() < BEHIND_MAX {
                match self.whole.range(..=next).next_back() {
                    Some((_, &u32::MAX)) => break,
                    Some((_, applied)) if *applied >= next => next = applied + 1,
                    _ => {
                        behind.push(NodeId(next));
                        next += 1;
                    }
                }
            }
        }
        let further = other
            .logs
            .iter()
            .filter(|(log, slot)| **slot > self.through(**log));
        behind.extend(further.map(|(log, _)| *log));
        behind
    }

    /// The frontier that both have applied.
    pub(crate) fn minimum(&self, other: &Self) -> Self {
        let mut minimum = Self::default();
        for (&start, &end) in &self.whole {
            for (&other_start, &other_end) in &other.whole {
                minimum.finish(NodeId(start.max(other_start)), NodeId(end.min(other_end)));
            }
        }
        for log in self.logs.keys().chain(other.logs.keys()) {
            minimum.advance(*log, self.through(*log).min(other.through(*log)));
        }
        minimum
    }
}

/// How far a log is done, where entries finish in any order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// The last existing slot.
    last: u64,
    /// The number of unfinished entries of a slot.
    pending: BTreeMap<u64, usize>,
}

impl Progress {
    /// Everything up to `slot` is done.
    pub(crate) fn from(slot: u64) -> Self {
        Self {
            last: slot,
            pending: BTreeMap::new(),
        }
    }

    /// Adds `slot` with `entries` unfinished entries.
    pub(crate) fn start(&mut self, slot: u64, entries: usize) {
        self.last = self.last.max(slot);
        if entries > 0 {
            *self.pending.entry(slot).or_default() += entries;
        }
    }

    /// An entry of `slot` is done.
    pub(crate) fn finish(&mut self, slot: u64) {
        let pending = self
            .pending
            .get_mut(&slot)
            .expect("an entry is done once, after it was started");
        *pending -= 1;
        if *pending == 0 {
            self.pending.remove(&slot);
        }
    }

    /// The slot up to which all is done.
    pub(crate) fn through(&self) -> u64 {
        self.pending
            .keys()
            .next()
            .map_or(self.last, |first| first - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const LOGS: u32 = 12;

    fn random_frontier(random: &mut fastrand::Rng) -> (Frontier, BTreeMap<u32, u64>) {
        let (mut applied, mut model) = (Frontier::default(), BTreeMap::new());
        for _ in 0..random.usize(0..8) {
            if random.bool() {
                let (log, slot) = (random.u32(0..LOGS), random.u64(1..5));
                applied.advance(NodeId(log), slot);
                let known = model.entry(log).or_insert(0);
                *known = slot.max(*known);
            } else {
                let first = random.u32(0..LOGS);
                let last = random.u32(first..LOGS);
                applied.finish(NodeId(first), NodeId(last));
                model.extend((first..=last).map(|log| (log, u64::MAX)));
            }
        }
        (applied, model)
    }

    #[test]
    fn it_is_a_slot_for_each_log() {
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..5_000 {
            let (left, left_model) = random_frontier(&mut random);
            let (right, right_model) = random_frontier(&mut random);
            let minimum = left.minimum(&right);
            for log in 0..LOGS {
                let of = |model: &BTreeMap<u32, u64>| model.get(&log).copied().unwrap_or(0);
                assert_eq!(left.through(NodeId(log)), of(&left_model), "{left:?}");
                let expected = of(&left_model).min(of(&right_model));
                assert_eq!(minimum.through(NodeId(log)), expected, "{left:?} {right:?}");
            }
            assert_eq!(left.minimum(&left), left, "ranges merge to one form");
            let behind: BTreeSet<_> = left.behind(&right).into_iter().collect();
            let mut merged = left.clone();
            merged.merge(&right);
            for log in (0..LOGS).map(NodeId) {
                let (mine, other) = (left.through(log), right.through(log));
                assert_eq!(merged.through(log), mine.max(other), "{left:?} {right:?}");
                assert_eq!(behind.contains(&log), other > mine, "{left:?} {right:?}");
            }
        }
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let mut applied = Frontier::default();
        applied.finish(NodeId(1), NodeId(3));
        applied.finish(NodeId(5), NodeId(5));
        applied.advance(NodeId(4), 7);
        applied.finish(NodeId(4), NodeId(4));
        assert_eq!(
            applied,
            Frontier {
                whole: [(1, 5)].into(),
                logs: BTreeMap::new()
            }
        );
        assert!(!applied.contains(Position {
            log: NodeId(6),
            slot: 1
        }));
        assert!(applied.contains(Position {
            log: NodeId(6),
            slot: 0
        }));
    }

    #[test]
    fn a_log_is_done_up_to_the_first_entry_under_way() {
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..500 {
            let mut progress = Progress::from(2);
            let mut pending = BTreeSet::new();
            let mut last = 2;
            for step in 0..40_u64 {
                let finished = pending.iter().nth(random.usize(..3)).copied();
                if let Some((slot, entry)) = finished {
                    pending.remove(&(slot, entry));
                    progress.finish(slot);
                } else {
                    last += random.u64(1..3);
                    let entries = random.usize(0..3);
                    pending.extend((0..entries).map(|entry| (last, step * 10 + entry as u64)));
                    progress.start(last, entries);
                }
                let expected = pending.first().map_or(last, |(slot, _)| slot - 1);
                assert_eq!(progress.through(), expected);
            }
        }
    }
}
