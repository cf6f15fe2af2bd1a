//! What is known of packs: which may be compacted, and which are only kept for readers. One entry for each pack at rest.
//!
//! Packs are in tiers by their size, as in a log-structured merge tree that merges by size: as many of one tier as are merged fit one
//! pack of the tier above, and those of the highest are full. So there are few that are not, however slowly they are filled, and
//! what stays live moves once for each tier.
//!
//! Invariants
//! - What is dead in a pack only grows, but for a count; no more of it is dead than there is.
//! - A row is written anew for every eighth of its pack that dies: so it is at most an eighth behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    sync::Arc,
    time::Duration,
};

use ports::Monotonic;

use super::{Hold, PackId, rows::Row};
use crate::{config::Config, model::NodeId};

/// In how many steps a row follows what dies in its pack.
const STEPS: u64 = 8;

/// What is to be compacted next.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) packs: Vec<PackId>,
    /// They are small, rather than mostly dead.
    pub(super) is_merging: bool,
}

#[derive(Debug)]
pub(super) struct Table {
    /// So many are merged, two or more.
    merged: usize,
    /// The bytes of a full pack.
    full_bytes: u64,
    packs: BTreeMap<PackId, Known>,
    /// More than half of them is dead.
    wanting: BTreeSet<PackId>,
    /// The others, but for those that nothing names, by their tiers.
    live: BTreeSet<(u32, PackId)>,
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
    pub(super) fn new(config: &Config) -> Self {
        Self {
            merged: config.packs_merged.max(2),
            full_bytes: config.pack_bytes_max,
            packs: BTreeMap::new(),
            wanting: BTreeSet::new(),
            live: BTreeSet::new(),
            retired: BTreeMap::new(),
            unsettled: BTreeSet::new(),
        }
    }

    /// A pack was put, and may be named from now on by whoever holds it.
    pub(super) fn insert(&mut self, id: PackId, bytes: u64, hold: Hold) {
        self.packs.insert(id, Known { bytes, dead: 0, noted: 0, hold });
        self.judge(id);
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
        self.leave_out(id);
        let known =
            self.packs.entry(id).or_insert(Known { bytes: 0, dead: 0, noted: 0, hold: Hold::default() });
        (known.bytes, known.dead, known.noted) = (bytes, dead, dead);
        self.judge(id);
    }

    fn judge(&mut self, id: PackId) {
        self.leave_out(id);
        let Some(known) = self.packs.get(&id).filter(|_| !self.retired.contains_key(&id)) else { return };
        if known.dead * 2 > known.bytes {
            self.wanting.insert(id);
        } else {
            self.live.insert((self.tier(known.bytes), id));
        }
    }

    /// Nobody is to compact it.
    fn leave_out(&mut self, id: PackId) {
        self.wanting.remove(&id);
        if let Some(known) = self.packs.get(&id) {
            self.live.remove(&(self.tier(known.bytes), id));
        }
    }

    /// Packs to compact, that nobody writes items for any more: of those that are mostly dead as many as that at the most, else
    /// small ones. `ignores_holds` as nobody may.
    pub(super) fn next(&self, ignores_holds: bool, packs_max: usize) -> Work {
        let is_free = |id: &PackId| {
            let is_held = self.packs.get(id).is_none_or(|known| Arc::strong_count(&known.hold) > 1);
            ignores_holds || !is_held && !self.unsettled.contains(&id.node)
        };
        let wanting: Vec<_> = self.wanting.iter().copied().filter(is_free).take(packs_max).collect();
        if !wanting.is_empty() {
            return Work { packs: wanting, is_merging: false };
        }
        let merged = self.small().find_map(|packs| {
            let free: Vec<_> = packs.filter(is_free).take(self.merged).collect();
            (free.len() == self.merged).then_some(free)
        });
        Work { is_merging: merged.is_some(), packs: merged.unwrap_or_default() }
    }

    /// Whether some wait for their holders.
    pub(super) fn is_waiting(&self) -> bool {
        let is_settled = |id: &PackId| !self.unsettled.contains(&id.node);
        self.wanting.iter().any(is_settled)
            || self.small().any(|packs| packs.filter(is_settled).nth(self.merged - 1).is_some())
    }

    /// Those that are not full, tier by tier.
    fn small(&self) -> impl Iterator<Item = impl Iterator<Item = PackId>> {
        let of = |tier| self.live.range((tier, PackId::FIRST)..(tier + 1, PackId::FIRST)).map(|(_, id)| *id);
        let least = self.live.last().map_or(0, |(tier, _)| *tier);
        (1..=least).rev().map(of)
    }

    /// How often as many as are merged would still fit one pack.
    fn tier(&self, bytes: u64) -> u32 {
        let merged = u64::try_from(self.merged).unwrap_or(u64::MAX);
        let sizes = iter::successors(Some(bytes.max(1)), |bytes| bytes.checked_mul(merged));
        sizes.skip(1).take_while(|bytes| *bytes <= self.full_bytes).count() as u32
    }

    /// Those that are counted after a death: all but those of `own`, which has counted itself.
    pub(super) fn of_others(&self, own: NodeId) -> Vec<PackId> {
        self.packs.keys().filter(|id| id.node != own && !self.retired.contains_key(id)).copied().collect()
    }

    /// Nothing names it any more.
    pub(super) fn retire(&mut self, id: PackId, kept: Monotonic) {
        self.retired.insert(id, kept);
        self.leave_out(id);
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
        self.leave_out(id);
    }

    pub(super) fn remove(&mut self, id: PackId) {
        self.leave_out(id);
        self.packs.remove(&id);
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

    /// Three are merged, and a full pack has 900 bytes.
    fn table() -> Table {
        Table::new(&Config { packs_merged: 3, pack_bytes_max: 900, ..Config::default() })
    }

    fn dead(table: &Table, packs_max: usize) -> Vec<PackId> {
        let work = table.next(false, packs_max);
        assert!(!work.is_merging);
        work.packs
    }

    fn merged(table: &Table) -> Vec<PackId> {
        let work = table.next(false, 9);
        assert!(work.is_merging || work.packs.is_empty());
        work.packs
    }

    #[test]
    fn a_tier_is_what_fits_the_next() {
        let table = table();
        for (bytes, tier) in [(u64::MAX, 0), (301, 0), (300, 1), (101, 1), (100, 2), (1, 6), (0, 6)] {
            assert_eq!(table.tier(bytes), tier, "{bytes}");
        }
        let none = Table::new(&Config { packs_merged: usize::MAX, ..Config::default() });
        assert_eq!(none.tier(1), 0);
    }

    #[test]
    fn small_packs_of_a_size_are_merged_once_there_are_enough_that_nobody_holds() {
        let mut table = table();
        let hold = Hold::default();
        for (number, bytes) in [(1, 101), (3, 100), (4, 301), (5, 900), (6, 9_000)] {
            table.insert(id(number), bytes, Hold::default());
        }
        table.insert(id(2), 300, Arc::clone(&hold));
        assert_eq!((merged(&table), table.is_waiting()), (vec![], false), "two of a tier");
        table.insert(id(7), 200, Hold::default());
        assert_eq!((merged(&table), table.is_waiting()), (vec![], true));
        drop(hold);
        assert_eq!(merged(&table), [id(1), id(2), id(7)]);
        table.leave_alone([NODE]);
        assert_eq!((merged(&table), table.is_waiting()), (vec![], false));
        table.settle();
        table.free(id(3), 51);
        assert_eq!(dead(&table, 9), [id(3)], "that first");
        table.remove(id(3));
        table.counted(id(7), 500, 0);
        assert_eq!(merged(&table), [], "it was larger than was thought");
        table.counted(id(7), 150, 0);
        assert_eq!(merged(&table), [id(1), id(2), id(7)]);
        table.retire(id(1), at(60));
        assert_eq!(merged(&table), []);
    }

    #[test]
    fn a_pack_is_compacted_once_half_is_dead_and_nobody_holds_it() {
        let mut table = table();
        let hold = Hold::default();
        table.insert(id(1), 800, Arc::clone(&hold));
        assert_eq!(table.free(id(1), 99), None, "less than an eighth");
        assert_eq!(table.free(id(1), 1), Some((800, 100)));
        assert_eq!(table.free(id(1), 300), Some((800, 400)));
        assert_eq!((table.next(true, 9), table.is_waiting()), (Work::default(), false), "half of it is live");
        assert_eq!(table.free(id(1), 1), None);
        assert_eq!((dead(&table, 9), table.is_waiting()), (vec![], true));
        drop(hold);
        assert_eq!(dead(&table, 9), [id(1)]);
        table.counted(id(1), 800, 300);
        assert_eq!(dead(&table, 9), [], "it was less than was thought");
        assert_eq!(table.free(id(1), 9_999), Some((800, 800)));
        table.retire(id(1), at(60));
        assert_eq!((dead(&table, 9), table.of_others(NodeId(3))), (vec![], vec![]));
        assert_eq!(table.next_retired(at(10)), Some(Duration::from_secs(50)));
        assert_eq!(table.kept_long_enough(at(59), 9), []);
        assert_eq!(table.kept_long_enough(at(60), 9), [id(1)]);
        table.remove(id(1));
        assert_eq!((table.next_retired(at(61)), table.sums()), (None, (0, 0)));
        assert_eq!(table.free(id(1), 1), None);
    }

    #[test]
    fn packs_of_who_may_still_write_are_left_alone() {
        let mut table = table();
        table.leave_alone([NODE]);
        table.load(id(1), Row { bytes: 10, dead: 9, is_retired: false }, at(60));
        table.load(id(2), Row { bytes: 10, dead: 9, is_retired: true }, at(60));
        assert_eq!((dead(&table, 9), table.is_waiting()), (vec![], false));
        assert_eq!(table.of_others(NodeId(9)), [id(1)]);
        table.settle();
        assert_eq!((dead(&table, 9), dead(&table, 0)), (vec![id(1)], vec![]));
        table.give_up(id(1));
        assert_eq!(dead(&table, 9), []);
    }
}
