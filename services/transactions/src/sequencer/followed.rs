//! A node's progress in reading the sequencer's log, and the commits it found whose rows may be
//! unsettled.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, atomic::AtomicU64},
};

use parking_lot::{Mutex, MutexGuard};
use primitives::Cursor;
use tokio::sync;

use crate::{
    model::{Attempt, NodeId},
    storage::records::{CommitRecord, SequencedSlot},
};

/// A node's progress in reading the sequencer's log.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    pub(crate) state: Mutex<State>,
    /// Held by the task that reads.
    pub(crate) reading: sync::Mutex<()>,
    /// How many reads have begun.
    pub(crate) begun: AtomicU64,
    /// The last read that reached the tail.
    pub(crate) done: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Where to read on; `None` if nothing was read yet.
    pub(crate) cursor: Option<Cursor>,
    /// The node that wrote the last slot.
    pub(crate) writer: Option<NodeId>,
    /// Commits whose rows may be unsettled.
    pub(crate) unsettled: BTreeMap<Attempt, Arc<CommitRecord>>,
    /// The same, by their slots.
    pub(crate) slots: VecDeque<(u64, Vec<Attempt>)>,
}

impl Followed {
    /// The record of an attempt that the log has committed and whose row may be unsettled.
    pub(crate) fn unsettled(&self, attempt: Attempt) -> Option<Arc<CommitRecord>> {
        self.state().unsettled.get(&attempt).cloned()
    }

    /// The sequencer at the last read.
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
        self.state.lock()
    }
}

impl State {
    pub(crate) fn note(&mut self, index: u64, slot: &SequencedSlot, records: &[Arc<CommitRecord>]) {
        self.writer = Some(slot.by);
        while let Some((_, attempts)) = self
            .slots
            .pop_front_if(|(settled, _)| *settled <= slot.settled)
        {
            for attempt in attempts {
                self.unsettled.remove(&attempt);
            }
        }
        if !records.is_empty() {
            self.slots
                .push_back((index, records.iter().map(|record| record.attempt).collect()));
            let unsettled = records.iter().cloned();
            self.unsettled
                .extend(unsettled.map(|record| (record.attempt, record)));
        }
    }
}
