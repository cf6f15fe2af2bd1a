//! The queues: their state in memory beside the records of their messages.
//!
//! A message is a record like any other. Sends and acknowledgements therefore share the journal,
//! the order and the durability points of the key-value port (Q7). A message sent and acknowledged
//! within one group commit is never written. Beside the records, memory holds each queue's
//! [`Groups`](ports::queue::Groups), which decide what is delivered. They are rebuilt at open.
//!
//! Invariants
//! - Sequences grow over groups, queues and incarnations. The incarnation is their upper part, so a
//!   lost number is never used again.
//! - Deliveries are not records: after a crash every unacknowledged message is visible again.
//!   Failures are records, so a permanently failed message stays failed across restarts (rule P1).
//! - A handle from before a return to the durable state is stale. A message that came back may be
//!   delivered with the same attempt number again, but never in the same incarnation.

mod dead_letters;
mod message_records;
mod rebuild;
mod send;
mod settle;
mod state;

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use ports::{
    Error, Incarnation, Result,
    queue::{OnFailure, QueueOptions, Retention, Sequence},
};

pub(crate) use self::{message_records::body_of, state::QueueState};
use crate::{
    records::{QueueRecord, Record, RecordKey, Table, overlay::entry_bound},
    store::{Store, UseReserve},
};

/// A sequence holds the incarnation above these bits. The bits below suffice for years of messages
/// at full speed.
const SEQUENCE_BITS: u32 = 44;

/// All queues.
#[derive(Debug)]
pub(crate) struct Queues {
    by_name: HashMap<Arc<str>, QueueState>,
    next_id: u32,
    next_sequence: u64,
    /// How many dead letters a queue keeps. Beyond that the oldest are removed.
    dead_letters_max: u64,
    /// The incarnation of the store, which every handle carries.
    incarnation: Incarnation,
}

impl Queues {
    fn new(incarnation: u64, dead_letters_max: usize) -> Self {
        Self {
            by_name: HashMap::new(),
            next_id: 0,
            next_sequence: incarnation << SEQUENCE_BITS,
            dead_letters_max: dead_letters_max as u64,
            incarnation: Incarnation(incarnation),
        }
    }

    /// Takes over the waiting consumers of the state before a return to the durable state.
    pub(crate) fn take_over(&mut self, earlier: Self) {
        for (name, queue) in earlier.by_name {
            if let Some(mine) = self.by_name.get_mut(&name) {
                mine.notify = queue.notify;
            } else {
                // The creation of the queue was lost, so its consumers learn that it does not
                // exist.
                queue.notify.notify_waiters();
            }
        }
    }

    /// Wakes all consumers that wait for messages.
    pub(crate) fn wake_all(&self) {
        self.by_name
            .values()
            .for_each(|queue| queue.notify.notify_waiters());
    }

    /// How many groups of all queues are blocked by a permanently failed message (rule P1).
    pub(crate) fn blocked_count(&self) -> usize {
        let blocks = |queue: &&QueueState| queue.options.on_failure == OnFailure::Block;
        let queues = self.by_name.values().filter(blocks);
        queues
            .map(|queue| queue.groups.blocked(&queue.options).count())
            .sum()
    }

    pub(crate) fn get(&mut self, queue: &str) -> Result<&mut QueueState> {
        find(&mut self.by_name, queue)
    }

    pub(crate) fn create(
        &mut self,
        store: &mut Store,
        name: &str,
        options: QueueOptions,
    ) -> Result<()> {
        let key = RecordKey::new(Table::Queue, Bytes::copy_from_slice(name.as_bytes()));
        let existing = self.by_name.get(name);
        if existing.is_some_and(|queue| queue.options == options) {
            return Ok(());
        }
        let id = existing.map_or(self.next_id, |queue| queue.id);
        let record = Record::Queue(Arc::new(QueueRecord {
            id,
            options: options.clone(),
        }));
        store.reserve(entry_bound(&key, Some(&record)) as u64, UseReserve::No)?;
        store.overlay.set(key, Some(record), existing.is_some());
        store.order();
        if let Some(queue) = self.by_name.get_mut(name) {
            queue.has_records |= options.retention == Retention::Durable;
            queue.options = options;
        } else {
            self.add(Arc::from(name), id, options);
        }
        Ok(())
    }

    fn add(&mut self, name: Arc<str>, id: u32, options: QueueOptions) {
        self.next_id = self.next_id.max(id + 1);
        self.by_name
            .insert(name, QueueState::new(id, options, self.incarnation));
    }
}

fn find<'queues>(
    by_name: &'queues mut HashMap<Arc<str>, QueueState>,
    queue: &str,
) -> Result<&'queues mut QueueState> {
    by_name
        .get_mut(queue)
        .ok_or_else(|| Error::invalid(format!("use queue {queue:?}, which does not exist")))
}

fn next(sequence: &mut u64) -> Sequence {
    *sequence += 1;
    Sequence(*sequence)
}

#[cfg(test)]
mod tests;
