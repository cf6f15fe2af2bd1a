//! Counts the calls of queues.

use super::{MeteredQueue, Operation};
use crate::{
    Receipt, Result,
    decorate::QueueDecorator,
    queue::{Delivery, Handle, Message, QueueOptions},
};

impl QueueDecorator for MeteredQueue {
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        let call = self.inner.create(queue, options);
        self.meter.count(Operation::QueueCreate, call).await
    }

    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        let bytes = messages.iter().map(|message| message.body.len()).sum();
        let carried = (messages.len(), bytes);
        let call = self.inner.send(queue, messages);
        self.meter
            .measure(Operation::QueueSend, call, |_| carried)
            .await
    }

    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        let carried = |deliveries: &Vec<Delivery>| {
            let bytes = deliveries.iter().map(|delivery| delivery.body.len()).sum();
            (deliveries.len(), bytes)
        };
        let call = self.inner.receive_hidden(queue, messages_max, hidden_ms);
        self.meter
            .measure(Operation::QueueReceive, call, carried)
            .await
    }

    /// Counted as one request, however long it waits.
    async fn ready(&self, queue: &str) -> Result<()> {
        let call = self.inner.ready(queue);
        self.meter.count(Operation::QueueReady, call).await
    }

    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        let call = self.inner.acknowledge(queue, handles);
        self.meter
            .measure(Operation::QueueAcknowledge, call, |_| (handles.len(), 0))
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
        self.meter
            .measure(Operation::QueueRelease, call, |_| (1, 0))
            .await
    }

    /// Counted as a release of another kind.
    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        let call = self.inner.give_up(queue, handle, reason);
        self.meter
            .measure(Operation::QueueRelease, call, |_| (1, 0))
            .await
    }

    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()> {
        let call = self.inner.extend(queue, handle, timeout_ms);
        self.meter
            .measure(Operation::QueueExtend, call, |()| (1, 0))
            .await
    }
}
