//! The table of packs: which may be compacted, and which are only kept for readers. One entry for
//! each stored pack.
//!
//! Packs are in tiers by size, as in a size-tiered log-structured merge tree. One merge takes a
//! fixed number of packs of one tier, and its result fits one pack of the tier above. Packs of the
//! highest tier are full. So few packs are not full, however slowly they fill, and a live value
//! moves once for each tier.
//!
//! Invariants
//! - The dead bytes of a pack only grow, except for a count, and never exceed its size.
//! - A row is rewritten for every eighth of its pack that dies: so it lags by an eighth at most.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    sync::Arc,
    time::Duration,
};

use ports::Monotonic;

use crate::{config::Config, model::NodeId};

use super::{Hold, PackId, rows::Row};

/// In how many steps a row follows the dead bytes of its pack.
pub(crate) const STEPS: u64 = 8;

/// The next packs to compact.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) packs: Vec<PackId>,
    pub(crate) why: Why,
}

/// Why packs are compacted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Why {
    /// They are mostly dead, as far as is known.
    #[default]
    Dead,
    /// They are small.
    Small,
    /// A dead node had begun to compact them, and its writes may still move values out of them.
    HalfMoved,
}

#[derive(Debug)]
pub(crate) struct Table {
    /// The number of packs in one merge, two or more.
    pub(crate) merged: usize,
    /// The bytes of a full pack.
    pub(crate) full_bytes: u64,
    pub(crate) packs: BTreeMap<PackId, Known>,
    /// Packs of which more than half is dead.
    pub(crate) wanting: BTreeSet<PackId>,
    /// The others by their tiers, except for unreferenced ones.
    pub(crate) live: BTreeSet<(u32, PackId)>,
    /// Unreferenced packs, and until when each is kept for readers that looked it up before.
    pub(crate) retired: BTreeMap<PackId, Monotonic>,
    /// Nodes that may still write items that name their packs.
    pub(crate) unsettled: BTreeSet<NodeId>,
    /// Packs of dead nodes out of which values may still be moved: they are compacted before all
    /// others.
    pub(crate) half_moved: BTreeSet<PackId>,
}

#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) bytes: u64,
    /// The dead bytes in its row.
    pub(crate) noted: u64,
    /// Further dead bytes known here.
    pub(crate) unnoted: u64,
    pub(crate) hold: Hold,
}

impl Known {
    pub(crate) fn new(bytes: u64, noted: u64, hold: Hold) -> Self {
        Self {
            bytes,
            noted,
            unnoted: 0,
            hold,
        }
    }

    pub(crate) fn dead(&self) -> u64 {
        self.noted.saturating_add(self.unnoted).min(self.bytes)
    }
}

impl Table {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            merged: config.packs_merged.max(2),
            full_bytes: config.pack_bytes_max,
            packs: BTreeMap::new(),
            wanting: BTreeSet::new(),
            live: BTreeSet::new(),
            retired: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            half_moved: BTreeSet::new(),
        }
    }

    /// Adds a pack that was put; items may name it while `hold` is held.
    pub(crate) fn insert(&mut self, id: PackId, bytes: u64, hold: Hold) {
        self.packs.insert(id, Known::new(bytes, 0, hold));
        self.judge(id);
    }

    /// Adds a pack of a dead node, by its row. A retired one is kept until `kept`, because it is
    /// unknown since when it is retired.
    pub(crate) fn load(&mut self, id: PackId, row: Row, kept: Monotonic) {
        self.packs
            .entry(id)
            .or_insert_with(|| Known::new(row.bytes, row.dead, Hold::default()));
        if row.is_retired && !self.retired.contains_key(&id) {
            self.retire(id, kept);
        } else {
            self.judge(id);
        }
    }

    /// Leaves the packs of these nodes alone until the next call.
    pub(crate) fn leave_alone(&mut self, nodes: BTreeSet<NodeId>) {
        self.unsettled = nodes;
    }

    /// Notes that writes of a dead node may still move values out of it.
    pub(crate) fn is_half_moved(&mut self, id: PackId) {
        if self.is_known(id) && !self.retired.contains_key(&id) {
            self.half_moved.insert(id);
        }
    }

    /// Owns only the packs of `own` from now on.
    pub(crate) fn give_back(&mut self, own: NodeId) {
        let others: Vec<_> = self
            .packs
            .keys()
            .filter(|id| id.node != own)
            .copied()
            .collect();
        for id in others {
            self.remove(id);
        }
        self.unsettled.clear();
    }

    pub(crate) fn is_known(&self, id: PackId) -> bool {
        self.packs.contains_key(&id)
    }

    /// Adds dead bytes to a pack. Returns the bytes missing from its row, if an update is due.
    pub(crate) fn free(&mut self, id: PackId, bytes: u64) -> Option<u64> {
        let known = self.packs.get_mut(&id)?;
        known.unnoted += bytes;
        let step = |dead: u64| dead.min(known.bytes) * STEPS / known.bytes.max(1);
        let is_due = step(known.dead()) > step(known.noted);
        let due = is_due.then(|| std::mem::take(&mut known.unnoted));
        known.noted += due.unwrap_or(0);
        self.judge(id);
        due
    }

    /// Takes in the dead bytes in its row: other nodes have noted some of them.
    pub(crate) fn hear(&mut self, id: PackId, dead: u64) {
        if let Some(known) = self.packs.get_mut(&id) {
            known.noted = dead;
            self.judge(id);
        }
    }

    /// Sets the result of a count: `dead` of `bytes`.
    pub(crate) fn counted(&mut self, id: PackId, bytes: u64, dead: u64) {
        self.leave_out(id);
        if let Some(known) = self.packs.get_mut(&id) {
            (known.bytes, known.noted, known.unnoted) = (bytes, dead, 0);
        }
        self.judge(id);
    }

    pub(crate) fn judge(&mut self, id: PackId) {
        self.leave_out(id);
        let Some(known) = self
            .packs
            .get(&id)
            .filter(|_| !self.retired.contains_key(&id))
        else {
            return;
        };
        if known.dead() * 2 > known.bytes {
            self.wanting.insert(id);
        } else {
            self.live.insert((self.tier(known.bytes), id));
        }
    }

    /// Excludes it from compaction.
    pub(crate) fn leave_out(&mut self, id: PackId) {
        self.wanting.remove(&id);
        if let Some(known) = self.packs.get(&id) {
            self.live.remove(&(self.tier(known.bytes), id));
        }
    }

    /// The next packs to compact, at most `packs_max`. First come those that another node has begun
    /// with. Then, of those without holds, mostly dead ones, else small ones. `ignores_holds`
    /// breaks a rule, for tests.
    pub(crate) fn next(&self, ignores_holds: bool, packs_max: usize) -> Work {
        if !self.half_moved.is_empty() {
            let packs = self.half_moved.iter().copied().take(packs_max).collect();
            return Work {
                packs,
                why: Why::HalfMoved,
            };
        }
        let is_free = |id: &PackId| {
            let is_held = self
                .packs
                .get(id)
                .is_none_or(|known| Arc::strong_count(&known.hold) > 1);
            ignores_holds || !is_held && !self.unsettled.contains(&id.node)
        };
        let wanting: Vec<_> = self
            .wanting
            .iter()
            .copied()
            .filter(is_free)
            .take(packs_max)
            .collect();
        if !wanting.is_empty() {
            return Work {
                packs: wanting,
                why: Why::Dead,
            };
        }
        let merged = self.small().find_map(|packs| {
            let free: Vec<_> = packs.filter(is_free).take(self.merged).collect();
            (free.len() == self.merged).then_some(free)
        });
        merged.map_or_else(Work::default, |packs| Work {
            packs,
            why: Why::Small,
        })
    }

    /// Whether some wait for the end of holds.
    pub(crate) fn is_waiting(&self) -> bool {
        let is_settled = |id: &PackId| !self.unsettled.contains(&id.node);
        self.wanting.iter().any(is_settled)
            || self
                .small()
                .any(|packs| packs.filter(is_settled).nth(self.merged - 1).is_some())
    }

    /// Those that are not full, tier by tier.
    pub(crate) fn small(&self) -> impl Iterator<Item = impl Iterator<Item = PackId>> {
        let of = |tier| {
            self.live
                .range((tier, PackId::FIRST)..(tier + 1, PackId::FIRST))
                .map(|(_, id)| *id)
        };
        let least = self.live.last().map_or(0, |(tier, _)| *tier);
        (1..=least).rev().map(of)
    }

    /// How many merges of packs of this size would still fit one pack.
    pub(crate) fn tier(&self, bytes: u64) -> u32 {
        let merged = u64::try_from(self.merged).unwrap_or(u64::MAX);
        let sizes = iter::successors(Some(bytes.max(1)), |bytes| bytes.checked_mul(merged));
        sizes
            .skip(1)
            .take_while(|bytes| *bytes <= self.full_bytes)
            .count() as u32
    }

    /// Marks it as unreferenced.
    pub(crate) fn retire(&mut self, id: PackId, kept: Monotonic) {
        self.retired.insert(id, kept);
        self.leave_out(id);
        self.half_moved.remove(&id);
    }

    /// When the next one has been kept long enough.
    pub(crate) fn next_retired(&self, now: Monotonic) -> Option<Duration> {
        self.retired.values().min().map(|kept| kept.since(now))
    }

    /// Those that have been kept long enough, at most `packs_max`.
    pub(crate) fn kept_long_enough(&self, now: Monotonic, packs_max: usize) -> Vec<PackId> {
        let due = self.retired.iter().filter(|(_, kept)| **kept <= now);
        due.take(packs_max).map(|(id, _)| *id).collect()
    }

    /// Its object is damaged: it is never touched again, so that an operator can look at it.
    pub(crate) fn give_up(&mut self, id: PackId) {
        self.leave_out(id);
        self.half_moved.remove(&id);
    }

    pub(crate) fn remove(&mut self, id: PackId) {
        self.leave_out(id);
        self.packs.remove(&id);
        self.retired.remove(&id);
        self.half_moved.remove(&id);
    }

    /// The number of packs, and the bytes of their values.
    pub(crate) fn sums(&self) -> (u64, u64) {
        (
            self.packs.len() as u64,
            self.packs.values().map(|known| known.bytes).sum(),
        )
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
        Table::new(&Config {
            packs_merged: 3,
            pack_bytes_max: 900,
            ..Config::default()
        })
    }

    fn dead(table: &Table, packs_max: usize) -> Vec<PackId> {
        let work = table.next(false, packs_max);
        assert_eq!(work.why, Why::Dead);
        work.packs
    }

    fn merged(table: &Table) -> Vec<PackId> {
        let work = table.next(false, 9);
        assert!(work.why == Why::Small || work.packs.is_empty());
        work.packs
    }

    #[test]
    fn a_tier_is_what_fits_the_next() {
        let table = table();
        for (bytes, tier) in [
            (u64::MAX, 0),
            (301, 0),
            (300, 1),
            (101, 1),
            (100, 2),
            (1, 6),
            (0, 6),
        ] {
            assert_eq!(table.tier(bytes), tier, "{bytes}");
        }
        let none = Table::new(&Config {
            packs_merged: usize::MAX,
            ..Config::default()
        });
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
        assert_eq!(
            (merged(&table), table.is_waiting()),
            (vec![], false),
            "two of a tier"
        );
        table.insert(id(7), 200, Hold::default());
        assert_eq!((merged(&table), table.is_waiting()), (vec![], true));
        drop(hold);
        assert_eq!(merged(&table), [id(1), id(2), id(7)]);
        table.leave_alone([NODE].into());
        assert_eq!((merged(&table), table.is_waiting()), (vec![], false));
        table.leave_alone([].into());
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
        assert_eq!(table.free(id(1), 1), Some(100));
        assert_eq!(table.free(id(1), 300), Some(300));
        assert_eq!(
            (table.next(true, 9), table.is_waiting()),
            (Work::default(), false),
            "half of it is live"
        );
        assert_eq!(table.free(id(1), 1), None);
        assert_eq!((dead(&table, 9), table.is_waiting()), (vec![], true));
        drop(hold);
        assert_eq!(dead(&table, 9), [id(1)]);
        table.counted(id(1), 800, 300);
        assert_eq!(dead(&table, 9), [], "it was less than was thought");
        assert_eq!(table.free(id(1), 9_999), Some(9_999));
        table.retire(id(1), at(60));
        assert_eq!(dead(&table, 9), []);
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
        table.leave_alone([NODE].into());
        table.load(
            id(1),
            Row {
                bytes: 10,
                dead: 9,
                ..Row::default()
            },
            at(60),
        );
        table.load(
            id(2),
            Row {
                bytes: 10,
                dead: 9,
                is_retired: true,
                ..Row::default()
            },
            at(60),
        );
        assert_eq!((dead(&table, 9), table.is_waiting()), (vec![], false));
        assert_eq!(table.kept_long_enough(at(60), 9), [id(2)]);
        table.leave_alone([].into());
        assert_eq!((dead(&table, 9), dead(&table, 0)), (vec![id(1)], vec![]));
        table.give_up(id(1));
        assert_eq!(dead(&table, 9), []);
    }

    #[test]
    fn what_others_note_counts_beside_what_has_died_here() {
        let mut table = table();
        table.insert(id(1), 800, Hold::default());
        assert_eq!(table.free(id(1), 99), None, "not noted yet");
        table.hear(id(1), 301);
        assert_eq!(dead(&table, 9), [], "half of it");
        table.hear(id(1), 302);
        assert_eq!(dead(&table, 9), [id(1)]);
        table.counted(id(1), 800, 302);
        assert_eq!(dead(&table, 9), [], "what had died here was in the count");
        table.hear(id(1), u64::MAX);
        assert_eq!(
            (dead(&table, 9), table.free(id(1), 1)),
            (vec![id(1)], None),
            "no more than there is"
        );
        table.hear(id(2), 7);
        assert_eq!(table.sums(), (1, 800), "it takes care of no other");
    }

    #[test]
    fn what_others_have_begun_to_move_goes_first() {
        let mut table = table();
        let of_other = |number| PackId {
            node: NodeId(1),
            number,
        };
        table.insert(id(1), 10, Hold::default());
        table.free(id(1), 9);
        for number in [1, 2, 3] {
            table.load(
                of_other(number),
                Row {
                    bytes: 10,
                    ..Row::default()
                },
                at(60),
            );
        }
        table.leave_alone([NodeId(1)].into());
        table.is_half_moved(of_other(1));
        table.is_half_moved(of_other(2));
        table.is_half_moved(of_other(9));
        let first = Work {
            packs: vec![of_other(1), of_other(2)],
            why: Why::HalfMoved,
        };
        assert_eq!(
            table.next(false, 9),
            first,
            "even if its node may still write, and with any live values"
        );
        table.retire(of_other(1), at(60));
        table.remove(of_other(2));
        assert_eq!(dead(&table, 9), [id(1)]);
        table.is_half_moved(of_other(1));
        table.is_half_moved(of_other(3));
        assert_eq!(
            table.next(false, 9).packs,
            [of_other(3)],
            "retired packs are empty"
        );
        table.give_back(NODE);
        assert_eq!((dead(&table, 9), table.sums()), (vec![id(1)], (1, 10)));
    }
}
