//! Counts the calls of queues and of their administration.

use std::sync::Arc;

use super::{Carried, Meter, Operation};
use crate::{
    DurabilityPoint, Queue, QueueAdmin, Receipt, Result,
    decorate::{Decorator, QueueAdminDecorator, QueueDecorator},
    decorates,
    queue::{
        Backlog, DeadLetter, Delivery, Handle, LetterId, Message, QueueOptions, SharedQueue,
        SharedQueueAdmin,
    },
};

/// Counts calls, messages, bytes and requests of the queues it wraps.
#[derive(Debug, Clone)]
pub struct MeteredQueue {
    inner: SharedQueue,
    meter: Arc<Meter>,
}

impl MeteredQueue {
    /// Counts the calls of `inner` into `meter`.
    pub fn new(inner: SharedQueue, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }
}

impl Decorator for MeteredQueue {
    type Port = dyn Queue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.meter.call(Operation::Externalize);
        let result = self.inner.externalize(point).await;
        self.meter
            .ended(Operation::Externalize, &result, |()| Carried::default());
        result
    }
}

impl QueueDecorator for MeteredQueue {
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        self.meter.call(Operation::QueueCreate);
        let result = self.inner.create(queue, options).await;
        self.meter
            .ended_request(Operation::QueueCreate, &result, 0, 0);
        result
    }

    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        self.meter.call(Operation::QueueSend);
        let (items, bytes) = (
            messages.len(),
            messages.iter().map(|message| message.body.len()).sum(),
        );
        let result = self.inner.send(queue, messages).await;
        self.meter
            .ended_request(Operation::QueueSend, &result, items, bytes);
        result
    }

    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        self.meter.call(Operation::QueueReceive);
        let result = self
            .inner
            .receive_hidden(queue, messages_max, hidden_ms)
            .await;
        let deliveries = result.as_deref().unwrap_or_default();
        let bytes = deliveries.iter().map(|delivery| delivery.body.len()).sum();
        self.meter
            .ended_request(Operation::QueueReceive, &result, deliveries.len(), bytes);
        result
    }

    /// Counted as one request, however long it waits.
    async fn ready(&self, queue: &str) -> Result<()> {
        self.meter.call(Operation::QueueReady);
        let result = self.inner.ready(queue).await;
        self.meter
            .ended_request(Operation::QueueReady, &result, 0, 0);
        result
    }

    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        self.meter.call(Operation::QueueAcknowledge);
        let result = self.inner.acknowledge(queue, handles).await;
        self.meter
            .ended_request(Operation::QueueAcknowledge, &result, handles.len(), 0);
        result
    }

    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        self.meter.call(Operation::QueueRelease);
        let result = self.inner.release(queue, handle, delay_ms, reason).await;
        self.meter
            .ended_request(Operation::QueueRelease, &result, 1, 0);
        result
    }

    /// Counted as a release of another kind.
    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        self.meter.call(Operation::QueueRelease);
        let result = self.inner.give_up(queue, handle, reason).await;
        self.meter
            .ended_request(Operation::QueueRelease, &result, 1, 0);
        result
    }

    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()> {
        self.meter.call(Operation::QueueExtend);
        let result = self.inner.extend(queue, handle, timeout_ms).await;
        self.meter
            .ended_request(Operation::QueueExtend, &result, 1, 0);
        result
    }
}

/// Counts calls, letters, bytes and requests of the administration it wraps.
#[derive(Debug, Clone)]
pub struct MeteredQueueAdmin {
    inner: SharedQueueAdmin,
    meter: Arc<Meter>,
}

impl MeteredQueueAdmin {
    /// Counts the calls of `inner` into `meter`.
    pub fn new(inner: SharedQueueAdmin, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }
}

decorates!(MeteredQueueAdmin, dyn QueueAdmin, inner);

impl QueueAdminDecorator for MeteredQueueAdmin {
    async fn dead_letters(
        &self,
        queue: &str,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        self.meter.call(Operation::QueueDeadLetters);
        let result = self.inner.dead_letters(queue, after, letters_max).await;
        let letters = result.as_deref().unwrap_or_default();
        let bytes = letters.iter().map(|letter| letter.body.len()).sum();
        self.meter
            .ended_request(Operation::QueueDeadLetters, &result, letters.len(), bytes);
        result
    }

    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.meter.call(Operation::QueueRedrive);
        let result = self.inner.redrive(queue, letters).await;
        self.meter
            .ended_request(Operation::QueueRedrive, &result, letters.len(), 0);
        result
    }

    async fn purge(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.meter.call(Operation::QueuePurge);
        let result = self.inner.purge(queue, letters).await;
        self.meter
            .ended_request(Operation::QueuePurge, &result, letters.len(), 0);
        result
    }

    async fn blocked(&self, queue: &str) -> Result<Vec<DeadLetter>> {
        self.meter.call(Operation::QueueBlocked);
        let result = self.inner.blocked(queue).await;
        let items = result.as_deref().unwrap_or_default().len();
        self.meter
            .ended_request(Operation::QueueBlocked, &result, items, 0);
        result
    }

    async fn backlog(&self, queue: &str) -> Result<Backlog> {
        self.meter.call(Operation::QueueBacklog);
        let result = self.inner.backlog(queue).await;
        self.meter
            .ended_request(Operation::QueueBacklog, &result, 0, 0);
        result
    }
}
