//! What a node has read of the sequencer's log.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
};

use primitives::Cursor;
use tokio::sync;

use crate::{
    model::{Attempt, NodeId},
    storage::records::{CommitRecord, SequencedSlot},
};

/// What a node has read of the sequencer's log.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    pub(crate) state: Mutex<State>,
    /// Held by whoever reads.
    pub(crate) reading: sync::Mutex<()>,
    /// How many reads have begun.
    pub(crate) begun: AtomicU64,
    /// The last of those that came to the tail.
    pub(crate) done: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Where to read on; none: nothing was read.
    pub(crate) cursor: Option<Cursor>,
    /// Who wrote the last slot.
    pub(crate) writer: Option<NodeId>,
    /// Commits whose rows may not say so.
    pub(crate) unsettled: BTreeMap<Attempt, Arc<CommitRecord>>,
    /// The same, by their slots.
    pub(crate) slots: VecDeque<(u64, Vec<Attempt>)>,
}

impl Followed {
    /// The record of an attempt that the log says has committed, and whose row may not say so.
    pub(crate) fn unsettled(&self, attempt: Attempt) -> Option<Arc<CommitRecord>> {
        self.state().unsettled.get(&attempt).cloned()
    }

    /// Who was the sequencer when this was last read.
    pub(crate) fn writer(&self) -> Option<NodeId> {
        self.state().writer
    }

    /// Everything before `cursor` is read.
    pub(crate) fn pass(&self, cursor: Cursor) {
        let mut state = self.state();
        state.cursor = Some(state.cursor.map_or(cursor, |reached| reached.max(cursor)));
    }

    /// The last slot that is read.
    pub(crate) fn through(&self) -> u64 {
        self.cursor().map_or(0, |cursor| cursor.next.0 - 1)
    }

    pub(crate) fn cursor(&self) -> Option<Cursor> {
        self.state().cursor
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(crate) fn note(&mut self, index: u64, slot: &SequencedSlot, records: &[Arc<CommitRecord>]) {
        self.writer = Some(slot.by);
        while self
            .slots
            .front()
            .is_some_and(|(settled, _)| *settled <= slot.settled)
        {
            for attempt in self
                .slots
                .pop_front()
                .map(|(_, attempts)| attempts)
                .unwrap_or_default()
            {
                self.unsettled.remove(&attempt);
            }
        }
        if !records.is_empty() {
            self.slots
                .push_back((index, records.iter().map(|record| record.attempt).collect()));
            self.unsettled.extend(
                records
                    .iter()
                    .map(|record| (record.attempt, Arc::clone(record))),
            );
        }
    }
}
