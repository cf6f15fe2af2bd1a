//! One queue in memory: its groups, its deduplication ids, and its waiting consumers.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ports::{
    Incarnation, Result,
    queue::{Backlog, Delivery, Groups, QueueOptions, Retention},
};
use tokio::sync::Notify;

use super::message_records::{StoredMessage, body_of};
use crate::store::Store;

/// One queue.
#[derive(Debug)]
pub(crate) struct QueueState {
    pub(super) id: u32,
    pub(crate) options: QueueOptions,
    /// Whether some messages may have records: the queue is durable, or was.
    pub(super) has_records: bool,
    pub(crate) groups: Groups<StoredMessage>,
    /// When each deduplication id expires, in milliseconds since the epoch.
    pub(super) deduplication: HashMap<Bytes, u64>,
    /// Deduplication ids in the order of their expiry.
    pub(super) expiring: VecDeque<(u64, Bytes)>,
    pub(crate) notify: Arc<Notify>,
    /// The number of dead letters.
    pub(super) dead_letter_count: u64,
}

impl QueueState {
    /// An empty queue.
    pub(super) fn new(id: u32, options: QueueOptions, incarnation: Incarnation) -> Self {
        Self {
            id,
            has_records: options.retention == Retention::Durable,
            options,
            groups: Groups::new(incarnation),
            deduplication: HashMap::new(),
            expiring: VecDeque::new(),
            notify: Arc::new(Notify::new()),
            dead_letter_count: 0,
        }
    }

    /// The number of messages and dead letters.
    pub(crate) fn backlog(&self) -> Backlog {
        Backlog {
            messages: self.groups.message_count(),
            dead_letters: self.dead_letter_count,
        }
    }

    /// Changes the groups, and wakes the consumers for which that makes a difference.
    pub(crate) fn change<T>(&mut self, change: impl FnOnce(&mut Groups<StoredMessage>) -> T) -> T {
        let (in_line, deadline) = (self.groups.in_line(), self.groups.next_deadline());
        let changed = change(&mut self.groups);
        for _ in in_line..self.groups.in_line() {
            self.notify.notify_one();
        }
        // A consumer that waits for a deadline that is gone looks again by itself.
        let earlier = self.groups.next_deadline();
        if earlier.is_some_and(|next| deadline.is_none_or(|before| next < before)) {
            self.notify.notify_waiters();
        }
        changed
    }

    /// Delivers the messages at the head of the next group in line, hidden for `hidden_ms` or for
    /// the queue's own timeout.
    pub(crate) fn receive(
        &mut self,
        store: &mut Store,
        messages_max: usize,
        hidden_ms: Option<u64>,
        now: Duration,
    ) -> Result<Vec<Delivery>> {
        let hidden_ms = hidden_ms.unwrap_or(self.options.visibility_timeout_ms);
        let until = now + Duration::from_millis(hidden_ms);
        let options = self.options.clone();
        self.change(|groups| {
            groups.receive(messages_max, &options, until, |message| {
                body_of(store, message)
            })
        })
    }
}
