//! The queue port on the engine.
//!
//! A message is a record like any other, so sending and acknowledging share the journal, the order and the
//! durability points of the key-value port (Q7), and a message that is sent and acknowledged within one
//! group commit is never written. Beside the records stands an index in memory ([`group`]): which messages
//! each group has, in order, and who is with a consumer. It is rebuilt at open.
//!
//! Invariants
//! - Sequences grow over groups, queues and incarnations: the incarnation is their upper part, so a number
//!   that was given and lost is never given again.
//! - Deliveries are not records: after a crash every message that was not acknowledged is visible again.
//!   Failures are records, so a message that fails for good also does so across restarts (rule P1).
//! - Handles of a delivery from before a return to the durable state are stale: a message that came back may be given
//!   under the same attempt again, but never in the same incarnation.

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

/// The incarnation is the part of a sequence above these bits: messages enough for years at full speed.
const SEQUENCE_BITS: u32 = 44;

/// All queues.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub(super) by_name: HashMap<Arc<str>, QueueState>,
    pub(super) next_id: u32,
    pub(super) next_sequence: u64,
    pub(super) next_deadline: u64,
    /// How many dead letters of one queue are kept.
    pub(super) dead_letters_max: u64,
    /// The start of the store that gives messages now.
    pub(super) incarnation: Incarnation,
}

impl Queues {
    /// The first sequence of an incarnation.
    pub(super) fn first_sequence(incarnation: u64) -> u64 {
        incarnation << SEQUENCE_BITS
    }

    /// Continues the waiters of the state before a return to the durable one.
    pub(crate) fn take_over(&mut self, earlier: Self) {
        for (name, queue) in earlier.by_name {
            if let Some(mine) = self.by_name.get_mut(&name) {
                mine.notify = queue.notify;
            } else {
                // Its creation was lost: who waits hears that it is not there.
                queue.notify.notify_waiters();
            }
        }
    }

    /// Wakes everybody who waits for messages.
    pub(crate) fn wake_all(&self) {
        self.by_name
            .values()
            .for_each(|queue| queue.notify.notify_waiters());
    }

    /// How many groups, over all queues, a message that failed for good blocks (rule P1).
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

    /// When the next deadline passes, if there is one, and whether a group is in line.
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
