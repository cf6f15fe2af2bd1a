//! A message group: its messages in order, and which of them are with a consumer.
//!
//! Pure: no I/O, no clock. A group is ready, delayed or in flight. Only messages at its head are
//! ever with a consumer, and meanwhile no others are delivered. This keeps the order (Q1).

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{Incarnation, queue::Handle};

/// When the group changes its phase by itself: the time, and a number that makes the deadline
/// unique.
pub(crate) type Deadline = (Duration, u64);

/// A message in its group.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) sequence: u64,
    /// The key of its records.
    pub(crate) key: Bytes,
    /// The body, if the message has no record because its queue is transient.
    pub(crate) body: Option<Bytes>,
    /// The deduplication id that the sender chose (Q8).
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

/// The phase of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It waits in line for a consumer.
    Ready,
    /// It is not delivered before its deadline.
    Delayed(Deadline),
    /// Its first `count` messages are with a consumer until the deadline.
    InFlight {
        /// The number of messages.
        count: usize,
        /// The end of the visibility timeout.
        deadline: Deadline,
    },
}

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) messages: VecDeque<QueuedMessage>,
    pub(crate) phase: Phase,
    /// No message is delivered before this time, after a release with a delay.
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

    /// The index of the message in flight whose current delivery in this `incarnation` of the store
    /// is `handle`, if there is one (Q6).
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
