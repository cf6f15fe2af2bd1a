//! The proposals that were decided lately, by their ids.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::serializable::{
    model::{ProposalId, Slot, Verdict},
    rows::verdict_of,
};

/// The last decision on each id.
#[derive(Debug)]
pub(super) struct Ids {
    known: BTreeMap<Bytes, (Slot, ProposalId, Verdict)>,
    /// The ids in the order of their slots.
    slots: VecDeque<(Slot, Bytes)>,
    count_max: usize,
    /// Decisions up to this slot may be forgotten.
    oldest: Slot,
}

impl Ids {
    pub(super) fn new(oldest: Slot, count_max: usize) -> Self {
        Self {
            known: BTreeMap::new(),
            slots: VecDeque::new(),
            count_max,
            oldest,
        }
    }

    pub(super) fn oldest(&self) -> Slot {
        self.oldest
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn verdict(&self, id: &ProposalId) -> Option<Verdict> {
        let (_, known, verdict) = self.known.get(id.id())?;
        verdict_of(known, verdict, id)
    }

    pub(super) fn note(&mut self, slot: Slot, id: &ProposalId, verdict: Verdict) {
        self.slots.push_back((slot, id.id().clone()));
        self.known
            .insert(id.id().clone(), (slot, id.clone(), verdict));
        while self.slots.len() > self.count_max {
            let Some((slot, id)) = self.slots.pop_front() else {
                return;
            };
            if self.known.get(&id).is_some_and(|(last, ..)| *last == slot) {
                self.known.remove(&id);
            }
            self.oldest = slot;
        }
    }
}
