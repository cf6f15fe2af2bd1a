//! What is known of packs: which may be compacted, and which are only kept for readers. One entry for each pack at rest.
//!
//! Invariants
//! - What is dead in a pack only grows, but for a count; no more of it is dead than there is.
//! - A row is written anew for every eighth of its pack that dies: so it is at most an eighth behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ports::Monotonic;

use super::{Hold, PackId, rows::Row};
use crate::model::NodeId;

/// In how many steps a row follows what dies in its pack.
const STEPS: u64 = 8;

#[derive(Debug, Default)]
pub(super) struct Table {
    packs: BTreeMap<PackId, Known>,
    /// More than half of them is dead.
    wanting: BTreeSet<PackId>,
    /// Nothing names them: until when they are kept for who looked before.
    retired: BTreeMap<PackId, Monotonic>,
    /// Nodes that may still write items that name their packs.
    unsettled: BTreeSet<NodeId>,
}

#[derive(Debug)]
struct Known {
    bytes: u64,
    dead: u64,
    /// What its row says is dead.
    noted: u64,
    hold: Hold,
}

impl Table {
    /// A pack was put, and may be named from now on by whoever holds it.
    pub(super) fn insert(&mut self, id: PackId, bytes: u64, hold: Hold) {
        self.packs.insert(id, Known { bytes, dead: 0, noted: 0, hold });
    }

    /// What a row says. What is retired is kept until `kept`, since nobody knows for how long it was.
    pub(super) fn load(&mut self, id: PackId, row: Row, kept: Monotonic) {
        let Row { bytes, dead, is_retired } = row;
        self.packs.entry(id).or_insert_with(|| Known { bytes, dead, noted: dead, hold: Hold::default() });
        if is_retired {
            self.retire(id, kept);
        } else {
            self.judge(id);
        }
    }

    /// Nobody judges the packs of these nodes before [`Table::settle`].
    pub(super) fn leave_alone(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        self.unsettled.extend(nodes);
    }

    pub(super) fn settle(&mut self) {
        self.unsettled.clear();
    }

    pub(super) fn is_known(&self, id: PackId) -> bool {
        self.packs.contains_key(&id)
    }

    /// So much of a pack is dead. Returns what its row has to say, if that is due.
    pub(super) fn free(&mut self, id: PackId, bytes: u64) -> Option<(u64, u64)> {
        let known = self.packs.get_mut(&id)?;
        known.dead = (known.dead + bytes).min(known.bytes);
        let step = |dead: u64| dead * STEPS / known.bytes.max(1);
        let is_due = step(known.dead) > step(known.noted);
        let row = (known.bytes, known.dead);
        if is_due {
            known.noted = known.dead;
        }
        self.judge(id);
        is_due.then_some(row)
    }

    /// It was counted: of `bytes`, so many are dead.
    pub(super) fn counted(&mut self, id: PackId, bytes: u64, dead: u64) {
        let known =
            self.packs.entry(id).or_insert(Known { bytes: 0, dead: 0, noted: 0, hold: Hold::default() });
        (known.bytes, known.dead, known.noted) = (bytes, dead, dead);
        self.judge(id);
    }

    fn judge(&mut self, id: PackId) {
        let known = self.packs.get(&id);
        if known.is_some_and(|known| known.dead * 2 > known.bytes) && !self.retired.contains_key(&id) {
            self.wanting.insert(id);
        } else {
            self.wanting.remove(&id);
        }
    }

    /// Packs to compact, as many as that at the most: nobody writes items that name them any more. `ignores_holds` as nobody
    /// may.
    pub(super) fn next(&self, ignores_holds: bool, packs_max: usize) -> Vec<PackId> {
        let is_free = |id: &&PackId| {
            let is_held = self.packs.get(id).is_none_or(|known| Arc::strong_count(&known.hold) > 1);
            ignores_holds || !is_held && !self.unsettled.contains(&id.node)
        };
        self.wanting.iter().filter(is_free).take(packs_max).copied().collect()
    }

    /// Whether one waits for its holders.
    pub(super) fn is_waiting(&self) -> bool {
        self.wanting.iter().any(|id| !self.unsettled.contains(&id.node))
    }

    /// Those that are counted after a death: all but those of `own`, which has counted itself.
    pub(super) fn of_others(&self, own: NodeId) -> Vec<PackId> {
        self.packs.keys().filter(|id| id.node != own && !self.retired.contains_key(id)).copied().collect()
    }

    /// Nothing names it any more.
    pub(super) fn retire(&mut self, id: PackId, kept: Monotonic) {
        self.retired.insert(id, kept);
        self.wanting.remove(&id);
    }

    /// When the next one has been kept long enough.
    pub(super) fn next_retired(&self, now: Monotonic) -> Option<Duration> {
        self.retired.values().min().map(|kept| kept.since(now))
    }

    /// Those that have been kept long enough, as many as that at the most.
    pub(super) fn kept_long_enough(&self, now: Monotonic, packs_max: usize) -> Vec<PackId> {
        let due = self.retired.iter().filter(|(_, kept)| **kept <= now);
        due.take(packs_max).map(|(id, _)| *id).collect()
    }

    /// Its object is damaged: nobody touches it, so that somebody may look.
    pub(super) fn give_up(&mut self, id: PackId) {
        self.wanting.remove(&id);
    }

    pub(super) fn remove(&mut self, id: PackId) {
        self.packs.remove(&id);
        self.wanting.remove(&id);
        self.retired.remove(&id);
    }

    /// How many there are, and the bytes of their values.
    pub(super) fn sums(&self) -> (u64, u64) {
        (self.packs.len() as u64, self.packs.values().map(|known| known.bytes).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(2);

    fn id(number: u64) -> PackId {
        PackId { node: NODE, number }
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic(Duration::from_secs(seconds))
    }

    #[test]
    fn a_pack_is_compacted_once_half_is_dead_and_nobody_holds_it() {
        let mut table = Table::default();
        let hold = Hold::default();
        table.insert(id(1), 800, Arc::clone(&hold));
        assert_eq!(table.free(id(1), 99), None, "less than an eighth");
        assert_eq!(table.free(id(1), 1), Some((800, 100)));
        assert_eq!(table.free(id(1), 300), Some((800, 400)));
        assert_eq!((table.next(true, 9), table.is_waiting()), (vec![], false), "half of it is live");
        assert_eq!(table.free(id(1), 1), None);
        assert_eq!((table.next(false, 9), table.is_waiting()), (vec![], true));
        drop(hold);
        assert_eq!(table.next(false, 9), [id(1)]);
        table.counted(id(1), 800, 300);
        assert_eq!(table.next(false, 9), [], "it was less than was thought");
        assert_eq!(table.free(id(1), 9_999), Some((800, 800)));
        table.retire(id(1), at(60));
        assert_eq!((table.next(false, 9), table.of_others(NodeId(3))), (vec![], vec![]));
        assert_eq!(table.next_retired(at(10)), Some(Duration::from_secs(50)));
        assert_eq!(table.kept_long_enough(at(59), 9), []);
        assert_eq!(table.kept_long_enough(at(60), 9), [id(1)]);
        table.remove(id(1));
        assert_eq!((table.next_retired(at(61)), table.sums()), (None, (0, 0)));
        assert_eq!(table.free(id(1), 1), None);
    }

    #[test]
    fn packs_of_who_may_still_write_are_left_alone() {
        let mut table = Table::default();
        table.leave_alone([NODE]);
        table.load(id(1), Row { bytes: 10, dead: 9, is_retired: false }, at(60));
        table.load(id(2), Row { bytes: 10, dead: 9, is_retired: true }, at(60));
        assert_eq!((table.next(false, 9), table.is_waiting()), (vec![], false));
        assert_eq!(table.of_others(NodeId(9)), [id(1)]);
        table.settle();
        assert_eq!((table.next(false, 9), table.next(false, 0)), (vec![id(1)], vec![]));
        table.give_up(id(1));
        assert_eq!(table.next(false, 9), []);
    }
}
