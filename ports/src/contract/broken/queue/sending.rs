//! Q1 to Q4 and Q7, broken for senders.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use crate::{
    Clock, DurabilityPoint, Monotonic, Queue, Receipt, Result,
    decorate::QueueDecorator,
    decorates,
    durability::{Incarnation, Position},
    queue::{Delivery, Message, SharedQueue},
};

/// Gives the messages of a batch in the wrong order (Q1).
#[derive(Debug)]
pub(super) struct ReordersGroup(pub(super) SharedQueue);

decorates!(ReordersGroup, dyn Queue, 0);

impl QueueDecorator for ReordersGroup {
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        let mut deliveries = self
            .0
            .receive_hidden(queue, messages_max, hidden_ms)
            .await?;
        deliveries.reverse();
        Ok(deliveries)
    }
}

/// Puts each message into a group of its own (Q1).
#[derive(Debug)]
pub(super) struct SplitsGroups {
    honest: SharedQueue,
    sent: AtomicU64,
}

impl SplitsGroups {
    pub(super) fn around(honest: SharedQueue) -> Self {
        Self {
            honest,
            sent: AtomicU64::new(0),
        }
    }
}

decorates!(SplitsGroups, dyn Queue, honest);

impl QueueDecorator for SplitsGroups {
    async fn send(&self, queue: &str, mut messages: Vec<Message>) -> Result<Receipt> {
        for message in &mut messages {
            let number = self.sent.fetch_add(1, Ordering::Relaxed);
            message.group = Bytes::from(format!("{} {number}", message.group.escape_ascii()));
        }
        self.honest.send(queue, messages).await
    }
}

/// Puts all messages into one group (Q2).
#[derive(Debug)]
pub(super) struct MergesGroups(pub(super) SharedQueue);

decorates!(MergesGroups, dyn Queue, 0);

impl QueueDecorator for MergesGroups {
    async fn send(&self, queue: &str, mut messages: Vec<Message>) -> Result<Receipt> {
        for message in &mut messages {
            message.group = Bytes::from_static(b"all");
        }
        self.0.send(queue, messages).await
    }
}

/// Sends one by one and stops at the first refusal (Q3: the sender loses track of the accepted
/// messages).
#[derive(Debug)]
pub(super) struct SendsHalf(pub(super) SharedQueue);

decorates!(SendsHalf, dyn Queue, 0);

impl QueueDecorator for SendsHalf {
    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        let mut receipt = Receipt::default();
        for message in messages {
            receipt = self.0.send(queue, vec![message]).await?;
        }
        Ok(receipt)
    }
}

/// Accepts every message as a new one (Q4).
#[derive(Debug)]
pub(super) struct ForgetsDeduplication(pub(super) SharedQueue);

decorates!(ForgetsDeduplication, dyn Queue, 0);

impl QueueDecorator for ForgetsDeduplication {
    async fn send(&self, queue: &str, mut messages: Vec<Message>) -> Result<Receipt> {
        for message in &mut messages {
            message.deduplication = None;
        }
        self.0.send(queue, messages).await
    }
}

/// Remembers deduplication ids forever (Q4).
#[derive(Debug)]
pub(super) struct NeverForgets {
    honest: SharedQueue,
    seen: Mutex<BTreeSet<(String, Bytes)>>,
}

impl NeverForgets {
    pub(super) fn around(honest: SharedQueue) -> Self {
        Self {
            honest,
            seen: Mutex::default(),
        }
    }
}

decorates!(NeverForgets, dyn Queue, honest);

impl QueueDecorator for NeverForgets {
    async fn send(&self, queue: &str, mut messages: Vec<Message>) -> Result<Receipt> {
        messages.retain(|message| {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let is_new = |id: &Bytes| seen.insert((queue.to_owned(), id.clone()));
            message.deduplication.as_ref().is_none_or(is_new)
        });
        self.honest.send(queue, messages).await
    }
}

/// Remembers deduplication ids for only a part of the window (Q4).
#[derive(Debug)]
pub(super) struct ForgetsTooSoon {
    honest: SharedQueue,
    clock: Arc<dyn Clock>,
    started: Monotonic,
}

impl ForgetsTooSoon {
    pub(super) fn around(honest: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        let started = clock.monotonic();
        Self {
            honest,
            clock,
            started,
        }
    }
}

decorates!(ForgetsTooSoon, dyn Queue, honest);

impl QueueDecorator for ForgetsTooSoon {
    async fn send(&self, queue: &str, mut messages: Vec<Message>) -> Result<Receipt> {
        /// The number of parts of the window. Each has ids of its own.
        const PARTS: u32 = 4;
        let part = Duration::from_millis(self.honest.limits().deduplication_window_ms) / PARTS;
        let number = self.clock.monotonic().since(self.started).as_nanos() / part.as_nanos();
        for id in messages
            .iter_mut()
            .filter_map(|message| message.deduplication.as_mut())
        {
            *id = Bytes::from(format!("{number} {}", id.escape_ascii()));
        }
        self.honest.send(queue, messages).await
    }
}

/// Numbers its mutations separately from the store's, and claims to share a journal (Q7).
#[derive(Debug)]
pub(super) struct KeepsItsOwnOrder {
    honest: SharedQueue,
    sent: AtomicU64,
}

impl KeepsItsOwnOrder {
    pub(super) fn around(honest: SharedQueue) -> Self {
        Self {
            honest,
            sent: AtomicU64::new(0),
        }
    }
}

decorates!(KeepsItsOwnOrder, dyn Queue, honest);

impl QueueDecorator for KeepsItsOwnOrder {
    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        self.honest.send(queue, messages).await?;
        let position = Position(self.sent.fetch_add(1, Ordering::Relaxed) + 1);
        let point = DurabilityPoint {
            incarnation: Incarnation(0),
            position,
        };
        Ok(Receipt { point })
    }
}
