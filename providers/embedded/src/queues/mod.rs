//! The queues: their state in memory beside the records of their messages.
//!
//! A message is a record like any other. Sends and acknowledgements therefore share the journal,
//! the order and the durability points of the key-value port (Q7). A message sent and acknowledged
//! within one group commit is never written. Beside the records, memory holds each queue's groups
//! ([`group`]) with the order of their messages and their phase. It is rebuilt at open.
//!
//! Invariants
//! - Sequences grow over groups, queues and incarnations. The incarnation is their upper part, so a
//!   lost number is never used again.
//! - Deliveries are not records: after a crash every unacknowledged message is visible again.
//!   Failures are records, so a permanently failed message stays failed across restarts (rule P1).
//! - A handle from before a return to the durable state is stale. A message that came back may be
//!   delivered with the same attempt number again, but never in the same incarnation.

mod dead_letters;
mod group;
mod message_records;
mod rebuild;
mod receive;
mod send;
mod settle;
mod state;

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{
    Error, Incarnation, Result,
    queue::{OnFailure, QueueOptions, Retention},
};
use tokio::sync::Notify;

use self::state::QueueState;
pub(crate) use self::{message_records::body_of, receive::ReceiveOptions, settle::Retry};
use crate::{
    records::{QueueRecord, Record, RecordKey, Table, overlay::entry_bound},
    store::{Store, UseReserve},
};

/// A sequence holds the incarnation above these bits. The bits below suffice for years of messages
/// at full speed.
const SEQUENCE_BITS: u32 = 44;

/// All queues.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub(super) by_name: HashMap<Arc<str>, QueueState>,
    pub(super) next_id: u32,
    pub(super) next_sequence: u64,
    pub(super) next_deadline: u64,
    /// How many dead letters a queue keeps. Beyond that the oldest are removed.
    pub(super) dead_letters_max: u64,
    /// The incarnation of the store, which every handle carries.
    pub(super) incarnation: Incarnation,
}

impl Queues {
    /// The first sequence of an incarnation.
    pub(super) fn first_sequence(incarnation: u64) -> u64 {
        incarnation << SEQUENCE_BITS
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
        let blocking = |queue: &&QueueState| queue.options.on_failure == OnFailure::Block;
        self.by_name
            .values()
            .filter(blocking)
            .map(|queue| queue.blocked().count())
            .sum()
    }

    pub(crate) fn get(&self, queue: &str) -> Result<&QueueState> {
        self.by_name.get(queue).ok_or_else(|| unknown(queue))
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
        store.set(key, Some(record), existing.is_some());
        store.order();
        if let Some(queue) = self.by_name.get_mut(name) {
            queue.has_records |= options.retention == Retention::Durable;
            queue.options = options;
        } else {
            self.next_id += 1;
            self.by_name.insert(
                Arc::from(name),
                QueueState::new(id, options, self.dead_letters_max),
            );
        }
        Ok(())
    }

    /// Whether a group is in line, and the next deadline if there is one.
    pub(crate) fn outlook(&self, name: &str) -> Result<(bool, Option<Duration>, Arc<Notify>)> {
        let queue = self.get(name)?;
        let next = queue
            .deadlines
            .first_key_value()
            .map(|(deadline, _)| deadline.0);
        Ok((!queue.ready.is_empty(), next, Arc::clone(&queue.notify)))
    }
}

fn bump(number: &mut u64) -> u64 {
    *number += 1;
    *number
}

fn unknown(queue: &str) -> Error {
    Error::invalid(format!("use queue {queue:?}, which does not exist"))
}

#[cfg(test)]
mod tests;
