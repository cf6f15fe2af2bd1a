//! Queues with faults.

use super::FaultyQueue;
use crate::{
    DurabilityPoint, Queue, Receipt, Result,
    decorate::{Decorator, QueueDecorator},
    queue::{Delivery, Handle, Message, QueueOptions},
};

impl Decorator for FaultyQueue {
    type Port = dyn Queue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        let call = self.inner.externalize(point);
        self.repeatable("queue.externalize", call).await
    }
}

impl QueueDecorator for FaultyQueue {
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        let call = self.inner.create(queue, options);
        self.repeatable("queue.create", call).await
    }

    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        let call = self.inner.send(queue, messages);
        self.change("queue.send", call).await
    }

    /// Messages whose delivery is lost come again after the visibility timeout (Q3).
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        let call = self.inner.receive_hidden(queue, messages_max, hidden_ms);
        self.repeatable("queue.receive", call).await
    }

    async fn ready(&self, queue: &str) -> Result<()> {
        let call = self.inner.ready(queue);
        self.repeatable("queue.ready", call).await
    }

    /// Acknowledging twice is as good as once.
    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        let call = self.inner.acknowledge(queue, handles);
        self.repeatable("queue.acknowledge", call).await
    }

    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        let call = self.inner.release(queue, handle, delay_ms, reason);
        self.change("queue.release", call).await
    }

    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        let call = self.inner.give_up(queue, handle, reason);
        self.change("queue.give_up", call).await
    }

    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()> {
        let call = self.inner.extend(queue, handle, timeout_ms);
        self.repeatable("queue.extend", call).await
    }
}
