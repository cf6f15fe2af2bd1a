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

/// What each decision counts as, in bytes, besides its changes.
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
    /// The changes of each key, oldest first.
    keys: BTreeMap<Key, VecDeque<(Slot, Change)>>,
    bytes: usize,
}

impl Overlay {
    /// Adds a slot that follows all others.
    pub(crate) fn push(&mut self, written: Arc<LoggedSlot>) {
        for (key, change) in &written.changes {
            let changes = self.keys.entry(key.clone()).or_default();
            let folded = match changes.back() {
                Some((_, before)) if !before.needs_base() => before.clone().then(change.clone()),
                _ => change.clone(),
            };
            changes.push_back((written.slot, folded));
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
                while changes.front().is_some_and(|(slot, _)| *slot <= through) {
                    changes.pop_front();
                }
                if changes.is_empty() {
                    self.keys.remove(key);
                }
            }
        }
    }

    /// The change of `key` over all slots up to `at`; `None`: there is none.
    pub(crate) fn change(&self, key: &Key, at: Slot) -> Option<Change> {
        folded(self.keys.get(key)?, at)
    }

    /// The changes of the keys in `range` up to `at`, by name.
    pub(crate) fn changes_in(&self, range: &KeyRange, at: Slot) -> BTreeMap<Bytes, Change> {
        let keys = self.keys.range(range.first()..);
        let inside = keys.take_while(|(key, _)| !range.is_before(key));
        inside
            .filter_map(|(key, changes)| Some((key.name().clone(), folded(changes, at)?)))
            .collect()
    }

    /// Notes the value of `key` at slot `at`, if that was its last change: later changes are then
    /// folded into it.
    pub(crate) fn know(&mut self, key: &Key, at: Slot, value: Option<&Bytes>) {
        let last = self.keys.get_mut(key).and_then(VecDeque::back_mut);
        if let Some((slot, change)) = last
            && *slot <= at
            && change.needs_base()
            && let Some(value) = value
        {
            *change = Change::Put(value.clone());
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

fn folded(changes: &VecDeque<(Slot, Change)>, at: Slot) -> Option<Change> {
    let mut fold = Fold::default();
    let until = changes.iter().rev().filter(|(slot, _)| *slot <= at);
    for (_, change) in until {
        if fold.add(change.clone()) {
            break;
        }
    }
    fold.into_change()
}
