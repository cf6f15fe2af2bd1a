//! The table of packs that this node compacts: how much of each is dead, and which are small.
//!
//! Sixty-four small packs are merged into one, the oldest first. Few packs therefore stay small,
//! however slowly they fill.
//!
//! The dead bytes of a pack are an estimate. Where an answer was lost, they are too high until the
//! pack is counted. The row of a pack here is written for each eighth that dies, and so lags by an
//! eighth at most. For packs of other nodes, the table holds the bytes until the next note.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{config::Config, model::NodeId};

use super::{Hold, PackId};

/// Mostly dead packs compacted at a time.
const PACKS_AT_ONCE: usize = 8;
/// In how many steps a row follows the dead bytes of its pack.
const STEPS: u64 = 8;

#[derive(Debug)]
pub(crate) struct Table {
    /// The number of packs in one merge.
    merged: usize,
    /// The bytes of a full pack.
    full_bytes: u64,
    packs: BTreeMap<PackId, Known>,
    /// Packs of which more than half is dead.
    wanting: BTreeSet<PackId>,
    /// The other packs of which a full pack holds `merged`.
    small: BTreeSet<PackId>,
    /// Dead bytes of other packs that are not in their rows yet.
    owed: BTreeMap<PackId, u64>,
    /// Packs that are on their way to the store and have no row yet.
    coming: BTreeSet<PackId>,
}

#[derive(Debug)]
struct Known {
    bytes: u64,
    /// The dead bytes in its row.
    noted: u64,
    /// Further dead bytes known here.
    unnoted: u64,
    hold: Hold,
}

impl Known {
    fn dead(&self) -> u64 {
        self.noted.saturating_add(self.unnoted)
    }
}

impl Table {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            merged: config.packs_merged,
            full_bytes: config.pack_bytes_max,
            packs: BTreeMap::new(),
            wanting: BTreeSet::new(),
            small: BTreeSet::new(),
            owed: BTreeMap::new(),
            coming: BTreeSet::new(),
        }
    }

    /// A pack of this node begins. [`Table::insert`] or [`Table::remove`] follows.
    pub(crate) fn comes(&mut self, id: PackId) {
        self.coming.insert(id);
    }

    /// Adds a pack that was put; items may name it while `hold` is held.
    pub(crate) fn insert(&mut self, id: PackId, bytes: u64, hold: Hold) {
        self.coming.remove(&id);
        let known = Known {
            bytes,
            noted: 0,
            unnoted: self.owed.remove(&id).unwrap_or(0),
            hold,
        };
        self.packs.insert(id, known);
        self.judge(id);
    }

    /// Compacts only the packs of `own` from now on.
    pub(crate) fn give_back(&mut self, own: NodeId) {
        for (id, known) in self.packs.extract_if(.., |id, _| id.node != own) {
            *self.owed.entry(id).or_default() += known.unnoted;
        }
        self.wanting.retain(|id| id.node == own);
        self.small.retain(|id| id.node == own);
    }

    pub(crate) fn is_known(&self, id: PackId) -> bool {
        self.packs.contains_key(&id)
    }

    /// Adds dead bytes to a pack of any node. Returns the bytes missing from its row, if an update
    /// is due at once.
    pub(crate) fn free(&mut self, id: PackId, bytes: u64) -> Option<u64> {
        let Some(known) = self.packs.get_mut(&id) else {
            *self.owed.entry(id).or_default() += bytes;
            return None;
        };
        known.unnoted += bytes;
        let step = |dead: u64| dead.min(known.bytes).saturating_mul(STEPS) / known.bytes.max(1);
        let is_due = step(known.dead()) > step(known.noted);
        let due = is_due.then(|| std::mem::take(&mut known.unnoted));
        known.noted = known.noted.saturating_add(due.unwrap_or(0));
        self.judge(id);
        due
    }

    /// Whether there are dead bytes to add to the rows of other packs.
    pub(crate) fn owes(&self) -> bool {
        self.owed.keys().any(|id| !self.coming.contains(id))
    }

    /// Takes them. Those of a pack without a row stay.
    pub(crate) fn take_owed(&mut self) -> BTreeMap<PackId, u64> {
        let coming = &self.coming;
        let owed = self.owed.extract_if(.., |id, _| !coming.contains(id));
        owed.collect()
    }

    /// Takes all dead bytes that are not in the rows yet.
    pub(crate) fn take_unnoted(&mut self) -> BTreeMap<PackId, u64> {
        let packs = self.packs.iter_mut();
        let own = packs.map(|(id, known)| (*id, std::mem::take(&mut known.unnoted)));
        let mut all: BTreeMap<_, _> = own.filter(|(_, bytes)| *bytes > 0).collect();
        all.extend(self.take_owed());
        all
    }

    /// Learns the dead bytes in its row: other nodes have noted some of them.
    pub(crate) fn learn(&mut self, id: PackId, dead: u64) {
        if let Some(known) = self.packs.get_mut(&id) {
            known.noted = dead;
            self.judge(id);
        }
    }

    fn judge(&mut self, id: PackId) {
        self.give_up(id);
        let Some(known) = self.packs.get(&id) else {
            return;
        };
        if known.dead() > known.bytes / 2 {
            self.wanting.insert(id);
        } else if known.bytes.saturating_mul(self.merged as u64) <= self.full_bytes {
            self.small.insert(id);
        }
    }

    /// Excludes it from compaction.
    pub(crate) fn give_up(&mut self, id: PackId) {
        self.wanting.remove(&id);
        self.small.remove(&id);
    }

    pub(crate) fn remove(&mut self, id: PackId) {
        self.packs.remove(&id);
        self.coming.remove(&id);
        self.owed.remove(&id);
        self.give_up(id);
    }

    /// The next packs to compact, none of which is held: mostly dead ones, else small ones.
    /// `ignores_holds` breaks a rule, for tests.
    pub(crate) fn next(&self, ignores_holds: bool) -> Vec<PackId> {
        let is_free = |id: &&PackId| {
            let is_held = |known: &Known| Arc::strong_count(&known.hold) > 1;
            ignores_holds || !self.packs.get(id).is_some_and(is_held)
        };
        let dead = self.wanting.iter().filter(is_free).take(PACKS_AT_ONCE);
        let dead: Vec<PackId> = dead.copied().collect();
        if !dead.is_empty() {
            return dead;
        }
        let small = self.small.iter().filter(is_free).take(self.merged);
        let small: Vec<PackId> = small.copied().collect();
        if small.len() < self.merged {
            return Vec::new();
        }
        small
    }

    /// Whether some are to be compacted, now or once no task holds them.
    pub(crate) fn has_work(&self) -> bool {
        !self.wanting.is_empty() || self.small.len() >= self.merged
    }

    /// The number of packs, and the bytes of their values.
    pub(crate) fn sums(&self) -> (u64, u64) {
        let bytes = self.packs.values().map(|known| known.bytes).sum();
        (self.packs.len() as u64, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(2);

    fn id(number: u64) -> PackId {
        PackId { node: NODE, number }
    }

    /// Three are merged, and a full pack has 900 bytes.
    fn table() -> Table {
        Table::new(&Config {
            packs_merged: 3,
            pack_bytes_max: 900,
            ..Config::default()
        })
    }

    #[test]
    fn small_packs_are_merged_once_enough_are_not_held() {
        let mut table = table();
        let hold = Hold::default();
        for (number, bytes) in [(1, 300), (3, 301), (4, 900), (5, 9_000)] {
            table.insert(id(number), bytes, Hold::default());
        }
        table.insert(id(2), 0, Arc::clone(&hold));
        assert_eq!((table.next(false), table.has_work()), (vec![], false));
        table.insert(id(7), 200, Hold::default());
        assert_eq!((table.next(false), table.has_work()), (vec![], true));
        assert_eq!(table.next(true), [id(1), id(2), id(7)]);
        drop(hold);
        table.insert(id(8), 200, Hold::default());
        assert_eq!(table.next(false), [id(1), id(2), id(7)], "the oldest");
        table.free(id(3), 151);
        assert_eq!(table.next(false), [id(3)], "mostly dead ones come first");
        table.remove(id(3));
        table.give_up(id(8));
        table.remove(id(1));
        assert_eq!(table.next(false), []);
    }

    /// A value may be replaced before its pack has a row to add its bytes to.
    #[test]
    fn bytes_that_die_before_their_pack_is_put_are_owed_until_then() {
        let mut table = table();
        table.comes(id(1));
        table.free(id(1), 151);
        assert!(table.take_owed().is_empty());
        table.insert(id(1), 300, Hold::default());
        assert_eq!(table.next(false), [id(1)]);
        assert_eq!(table.take_unnoted(), BTreeMap::from([(id(1), 151)]));
        table.comes(id(2));
        table.free(id(2), 10);
        table.remove(id(2));
        assert!(!table.owes(), "its put has failed");
    }

    #[test]
    fn a_pack_is_compacted_once_half_is_dead_and_no_task_holds_it() {
        let mut table = table();
        let hold = Hold::default();
        table.insert(id(1), 800, Arc::clone(&hold));
        table.free(id(1), 400);
        assert!(!table.has_work(), "half of it is live");
        table.free(id(1), 1);
        assert_eq!((table.next(false), table.has_work()), (vec![], true));
        drop(hold);
        assert_eq!(table.next(false), [id(1)]);
        table.learn(id(1), 300);
        assert!(!table.has_work(), "the count is lower than the estimate");
        table.learn(id(1), u64::MAX);
        assert_eq!(table.next(false), [id(1)]);
        table.give_up(id(1));
        assert_eq!((table.next(false), table.sums()), (vec![], (1, 800)));
        table.remove(id(1));
        table.free(id(1), 1);
        assert_eq!((table.next(false), table.sums()), (vec![], (0, 0)));
    }

    /// T17.
    #[test]
    fn a_row_is_written_once_an_eighth_more_is_dead() {
        let mut table = table();
        table.insert(id(1), 800, Hold::default());
        let due = [99, 1, 99, 150, 0, 51].map(|bytes| table.free(id(1), bytes));
        assert_eq!(due, [None, Some(100), None, Some(249), None, Some(51)]);
        assert_eq!(table.free(id(1), 7), None);
        assert!(!table.owes(), "it waits for more");
        assert_eq!(table.free(id(2), 5), None);
        assert!(table.owes(), "another node's");
        assert_eq!(table.take_unnoted(), [(id(1), 7), (id(2), 5)].into());
        assert_eq!(table.take_unnoted(), [].into());
    }

    #[test]
    fn dead_bytes_noted_by_others_are_added_to_those_known_here() {
        let mut table = table();
        table.free(id(1), 50);
        table.insert(id(1), 800, Hold::default());
        table.free(id(1), 49);
        table.learn(id(1), 301);
        assert!(!table.has_work(), "half of it");
        table.learn(id(1), 302);
        assert_eq!(table.next(false), [id(1)]);
        table.learn(id(2), 7);
        assert_eq!(table.sums(), (1, 800), "it knows no other");
        table.give_back(NodeId(1));
        assert_eq!((table.next(false), table.sums()), (vec![], (0, 0)));
        assert_eq!(table.take_owed(), [(id(1), 99)].into(), "not lost");
    }
}
