//! Queues with faults.

use std::sync::Arc;

use super::{FaultSchedule, Lost, Trouble};
use crate::{
    Clock, DurabilityPoint, Queue, QueueAdmin, Receipt, Result,
    decorate::{Decorator, QueueAdminDecorator, QueueDecorator},
    decorates,
    queue::{
        Backlog, DeadLetter, Delivery, Handle, LetterId, Message, QueueOptions, SharedQueue,
        SharedQueueAdmin,
    },
};

/// Fails as its schedule says, and asks the queues it wraps otherwise.
#[derive(Debug, Clone)]
pub struct FaultyQueue {
    inner: SharedQueue,
    trouble: Trouble,
}

impl FaultyQueue {
    /// Puts `schedule` between callers and `inner`.
    pub fn new(
        inner: SharedQueue,
        schedule: Arc<dyn FaultSchedule>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            inner,
            trouble: Trouble { schedule, clock },
        }
    }
}

impl Decorator for FaultyQueue {
    type Port = dyn Queue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        let call = self.inner.externalize(point);
        self.trouble
            .with("queue.externalize", Lost::TryAgain, call)
            .await
    }
}

impl QueueDecorator for FaultyQueue {
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        self.trouble
            .with(
                "queue.create",
                Lost::TryAgain,
                self.inner.create(queue, options),
            )
            .await
    }

    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        self.trouble
            .with(
                "queue.send",
                Lost::Unknown,
                self.inner.send(queue, messages),
            )
            .await
    }

    /// Messages whose delivery is lost come again after the visibility timeout (Q3).
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        let call = self.inner.receive_hidden(queue, messages_max, hidden_ms);
        self.trouble
            .with("queue.receive", Lost::TryAgain, call)
            .await
    }

    async fn ready(&self, queue: &str) -> Result<()> {
        self.trouble
            .with("queue.ready", Lost::TryAgain, self.inner.ready(queue))
            .await
    }

    /// Acknowledging twice is as good as once.
    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        let call = self.inner.acknowledge(queue, handles);
        self.trouble
            .with("queue.acknowledge", Lost::TryAgain, call)
            .await
    }

    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        let call = self.inner.release(queue, handle, delay_ms, reason);
        self.trouble
            .with("queue.release", Lost::Unknown, call)
            .await
    }

    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        let call = self.inner.give_up(queue, handle, reason);
        self.trouble
            .with("queue.give_up", Lost::Unknown, call)
            .await
    }

    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()> {
        let call = self.inner.extend(queue, handle, timeout_ms);
        self.trouble
            .with("queue.extend", Lost::TryAgain, call)
            .await
    }
}

/// Fails as its schedule says, and asks the administration it wraps otherwise.
#[derive(Debug, Clone)]
pub struct FaultyQueueAdmin {
    inner: SharedQueueAdmin,
    trouble: Trouble,
}

impl FaultyQueueAdmin {
    /// Puts `schedule` between callers and `inner`.
    pub fn new(
        inner: SharedQueueAdmin,
        schedule: Arc<dyn FaultSchedule>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            inner,
            trouble: Trouble { schedule, clock },
        }
    }
}

decorates!(FaultyQueueAdmin, dyn QueueAdmin, inner);

impl QueueAdminDecorator for FaultyQueueAdmin {
    async fn dead_letters(
        &self,
        queue: &str,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        let call = self.inner.dead_letters(queue, after, letters_max);
        self.trouble
            .with("queue.dead_letters", Lost::TryAgain, call)
            .await
    }

    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.trouble
            .with(
                "queue.redrive",
                Lost::TryAgain,
                self.inner.redrive(queue, letters),
            )
            .await
    }

    async fn purge(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.trouble
            .with(
                "queue.purge",
                Lost::TryAgain,
                self.inner.purge(queue, letters),
            )
            .await
    }

    async fn blocked(&self, queue: &str) -> Result<Vec<DeadLetter>> {
        self.trouble
            .with("queue.blocked", Lost::TryAgain, self.inner.blocked(queue))
            .await
    }

    async fn backlog(&self, queue: &str) -> Result<Backlog> {
        self.trouble
            .with("queue.backlog", Lost::TryAgain, self.inner.backlog(queue))
            .await
    }
}
