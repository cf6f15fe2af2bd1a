//! The slots of a volume that are not installed yet, as reads and the installation need them.
//!
//! A read at a slot folds the changes of its key from the newest down to a whole value. If there is
//! none here, the rows have the rest. So a change that follows a whole value is folded at once.
//!
//! Pure: no I/O, no clock.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use primitives::{Epoch, SlotIndex};

use crate::serializable::{
    apply::{Change, Fold},
    model::{Key, KeyRange, ProposalId, Slot, StageId, Verdict},
};

/// The bytes that each decision counts as, besides its changes.
const DECISION_BYTES: usize = 1 << 10;

/// A slot that was written.
#[derive(Debug)]
pub(crate) struct LoggedSlot {
    pub(crate) slot: Slot,
    pub(crate) index: SlotIndex,
    pub(crate) epoch: Epoch,
    pub(crate) written_ms: u64,
    /// The change of each key over all its commits.
    pub(crate) changes: BTreeMap<Key, Change>,
    pub(crate) decided: Vec<(ProposalId, Verdict)>,
    /// The stages that it names.
    pub(crate) stages: BTreeSet<StageId>,
}

impl LoggedSlot {
    fn bytes_len(&self) -> usize {
        let changes = self.changes.iter();
        let changes = changes.map(|(key, change)| 128 + key.bytes_len() + change.bytes_len());
        changes.sum::<usize>() + DECISION_BYTES * (1 + self.decided.len())
    }
}

/// The uninstalled slots.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    slots: VecDeque<Arc<LoggedSlot>>,
    keys: BTreeMap<Key, Changes>,
    bytes: usize,
}

/// The changes of a key.
#[derive(Debug, Default)]
struct Changes {
    /// Oldest first.
    each: VecDeque<(Slot, Change)>,
    /// All of them as one, if that needs no earlier value. Only the newest value is kept whole:
    /// many small patches of a large one would fill the memory otherwise.
    newest: Option<Change>,
}

impl Changes {
    fn newest_bytes(&self) -> usize {
        self.newest.as_ref().map_or(0, Change::bytes_len)
    }

    /// All changes up to `at` as one.
    fn up_to(&self, at: Slot) -> Option<Change> {
        let is_newest = self.each.back().is_some_and(|(last, _)| *last <= at);
        if is_newest && self.newest.is_some() {
            return self.newest.clone();
        }
        let mut fold = Fold::default();
        let until = self.each.iter().rev().filter(|(slot, _)| *slot <= at);
        for (_, change) in until {
            if fold.add(change.clone()) {
                break;
            }
        }
        fold.into_change()
    }
}

impl Overlay {
    /// Adds a slot that follows all others.
    pub(crate) fn push(&mut self, written: Arc<LoggedSlot>) {
        for (key, change) in &written.changes {
            let changes = self.keys.entry(key.clone()).or_default();
            self.bytes -= changes.newest_bytes();
            changes.newest = match changes.newest.take() {
                _ if !change.needs_base() => Some(change.clone()),
                before => before.map(|before| before.then(change.clone())),
            };
            self.bytes += changes.newest_bytes();
            changes.each.push_back((written.slot, change.clone()));
        }
        self.bytes += written.bytes_len();
        self.slots.push_back(written);
    }

    /// Its approximate memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of its slots.
    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The first slots, of about `bytes_max` bytes, and at least one if there is one.
    pub(crate) fn first(&self, bytes_max: usize) -> Vec<Arc<LoggedSlot>> {
        let mut bytes = 0;
        let fits = |written: &&Arc<LoggedSlot>| {
            let is_first = bytes == 0;
            bytes += written.bytes_len();
            is_first || bytes <= bytes_max
        };
        self.slots.iter().take_while(fits).cloned().collect()
    }

    /// Drops the slots up to `through`, which are installed.
    pub(crate) fn drop_through(&mut self, through: Slot) {
        while self
            .slots
            .front()
            .is_some_and(|first| first.slot <= through)
        {
            let Some(written) = self.slots.pop_front() else {
                return;
            };
            self.bytes -= written.bytes_len();
            for key in written.changes.keys() {
                let Some(changes) = self.keys.get_mut(key) else {
                    continue;
                };
                let is_done = |first: &(Slot, Change)| first.0 <= through;
                while changes.each.front().is_some_and(is_done) {
                    changes.each.pop_front();
                }
                if changes.each.is_empty() {
                    self.bytes -= changes.newest_bytes();
                    self.keys.remove(key);
                }
            }
        }
    }

    /// The change of `key` over all slots up to `at`; `None`: there is none.
    pub(crate) fn change(&self, key: &Key, at: Slot) -> Option<Change> {
        self.keys.get(key)?.up_to(at)
    }

    /// The changes of the keys in `range` up to `at`, by name.
    pub(crate) fn changes_in(&self, range: &KeyRange, at: Slot) -> BTreeMap<Bytes, Change> {
        let keys = self.keys.range(range.first()..);
        let inside = keys.take_while(|(key, _)| !range.is_before(key));
        inside
            .filter_map(|(key, changes)| Some((key.name().clone(), changes.up_to(at)?)))
            .collect()
    }

    /// Notes the value of `key` at slot `at`, if that was its last change: later changes are then
    /// folded into it.
    pub(crate) fn know(&mut self, key: &Key, at: Slot, value: Option<&Bytes>) {
        let Some(changes) = self.keys.get_mut(key) else {
            return;
        };
        let is_newest = changes.each.back().is_some_and(|(last, _)| *last <= at);
        if is_newest && changes.newest.is_none() {
            changes.newest = value.map(|value| Change::Put(value.clone()));
            self.bytes += changes.newest_bytes();
        }
    }

    /// The stages that its slots name.
    pub(crate) fn stages(&self) -> impl Iterator<Item = StageId> {
        let slots = self.slots.iter();
        slots.flat_map(|written| written.stages.iter().copied())
    }

    /// The keys that were written after `slot`.
    pub(crate) fn written_since(&self, slot: Slot) -> impl Iterator<Item = &Key> {
        let later = self.slots.iter().filter(move |written| written.slot > slot);
        later.flat_map(|written| written.changes.keys())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serializable::{apply::Piece, contract::key, model::Patch};

    fn slot(number: u64, change: Change) -> Arc<LoggedSlot> {
        Arc::new(LoggedSlot {
            slot: Slot(number),
            index: SlotIndex(number),
            epoch: Epoch(1),
            written_ms: 0,
            changes: BTreeMap::from([(key("b", "0"), change)]),
            decided: Vec::new(),
            stages: BTreeSet::new(),
        })
    }

    fn patch(offset: u32) -> Change {
        Change::Patch(vec![Piece {
            offset,
            data: Patch::Bytes("1".into()),
        }])
    }

    /// A small patch of a large value takes little memory, whether the value is known or not.
    #[test]
    fn patches_do_not_keep_whole_values() {
        let value = Bytes::from(vec![0; 100_000]);
        let mut overlay = Overlay::default();
        overlay.push(slot(1, Change::Put(value.clone())));
        for number in 2..100 {
            overlay.push(slot(number, patch(number as u32)));
        }
        let kept: usize = overlay.keys[&key("b", "0")]
            .each
            .iter()
            .map(|(_, change)| change.bytes_len())
            .sum();
        assert!(kept < 110_000, "{kept}");
        assert!((200_000..500_000).contains(&overlay.bytes()));
        for at in [1, 2, 50, 99] {
            let change = overlay.change(&key("b", "0"), Slot(at)).expect("changed");
            let found = change.apply(None).expect("present");
            let ones = found.iter().map(|byte| u64::from(*byte == b'1'));
            assert_eq!(ones.sum::<u64>(), at - 1);
        }
        overlay.drop_through(Slot(99));
        assert_eq!((overlay.bytes(), overlay.keys.len()), (0, 0));
        overlay.push(slot(100, patch(0)));
        assert_eq!(overlay.change(&key("b", "0"), Slot(100)), Some(patch(0)));
        overlay.know(&key("b", "0"), Slot(100), Some(&value));
        let known = overlay.change(&key("b", "0"), Slot(100));
        assert_eq!(known, Some(Change::Put(value)));
        overlay.drop_through(Slot(100));
        assert_eq!(overlay.bytes(), 0);
    }
}
