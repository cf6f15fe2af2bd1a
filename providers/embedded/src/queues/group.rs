//! A message group: its messages in order, and which of its first ones are with a consumer.
//!
//! Pure: no I/O, no clock. A group is ready, delayed or in flight. Only the messages at its head are ever
//! with a consumer, and while some are, no others are given away: that keeps the order (Q1).

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{Incarnation, queue::Handle};

/// When a group changes by itself: the time, and a number that makes it unique.
pub(crate) type Deadline = (Duration, u64);

/// A message in its group.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) sequence: u64,
    /// The key of its record.
    pub(crate) key: Bytes,
    /// The body of a message that has no record: its queue is transient.
    pub(crate) body: Option<Bytes>,
    /// What its sender called it (Q8).
    pub(crate) id: Option<Bytes>,
    pub(crate) deliveries: u32,
    pub(crate) failures: u32,
    pub(crate) reason: Option<Arc<str>>,
}

impl QueuedMessage {
    /// A message that was never delivered.
    pub(crate) fn new(sequence: u64, key: Bytes, id: Option<Bytes>) -> Self {
        Self {
            sequence,
            key,
            body: None,
            id,
            deliveries: 0,
            failures: 0,
            reason: None,
        }
    }
}

/// What a group is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It waits in line to be served.
    Ready,
    /// It is served no earlier than its deadline.
    Delayed(Deadline),
    /// Its first `count` messages are with a consumer until the deadline.
    InFlight {
        /// How many.
        count: usize,
        /// Until when.
        deadline: Deadline,
    },
}

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) messages: VecDeque<QueuedMessage>,
    pub(crate) phase: Phase,
    /// A released message is given again no earlier than this.
    pub(crate) not_before: Duration,
}

impl Group {
    pub(crate) fn new() -> Self {
        Self {
            messages: VecDeque::new(),
            phase: Phase::Ready,
            not_before: Duration::ZERO,
        }
    }

    /// The place of the message that is with a consumer by this very delivery, in this `incarnation` of the store, if
    /// there is one (Q6).
    pub(crate) fn delivered(&self, handle: &Handle, incarnation: Incarnation) -> Option<usize> {
        let Phase::InFlight { count, .. } = self.phase else {
            return None;
        };
        let is_it = |message: &QueuedMessage| {
            message.sequence == handle.sequence.0
                && message.deliveries == handle.attempt
                && incarnation == handle.incarnation
        };
        self.messages.iter().take(count).position(is_it)
    }
}
