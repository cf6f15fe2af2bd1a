//! The queues and functions that receive effects, as one crashable process reaches them.
//!
//! A node of the engine only calls the sending methods of each port; the others pass through.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    DurabilityPoint, Externalize, Functions, Queue, Receipt, Result,
    functions::{FunctionLimits, QueueTrigger},
    queue::{
        Backlog, DeadLetter, Delivery, Handle, LetterId, Message, QueueLimits, QueueOptions,
        SharedQueue,
    },
};
use simulated::World;
use transactions::Destinations;

use super::crashable::Life;

/// The destinations of `world` during `life`.
pub fn crashable(world: &World, life: &Life) -> Destinations {
    through(world.queue(), world, life)
}

/// The same with another queue port.
pub fn through(queue: SharedQueue, world: &World, life: &Life) -> Destinations {
    let queue = CrashableQueue {
        inner: queue,
        life: life.clone(),
    };
    let functions = CrashableFunctions {
        inner: world.functions(),
        life: life.clone(),
    };
    Destinations {
        queue: Some(Arc::new(queue)),
        functions: Some(Arc::new(functions)),
    }
}

#[derive(Debug)]
struct CrashableQueue {
    inner: SharedQueue,
    life: Life,
}

#[async_trait]
impl Externalize for CrashableQueue {
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.life.live_through(self.inner.externalize(point)).await
    }
    fn point(&self) -> DurabilityPoint {
        self.inner.point()
    }
    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.inner.is_durable(point)
    }
}

#[async_trait]
impl Queue for CrashableQueue {
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        self.inner.create(queue, options).await
    }
    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        self.life
            .live_through(self.inner.send(queue, messages))
            .await
    }
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        self.inner
            .receive_hidden(queue, messages_max, hidden_ms)
            .await
    }
    async fn ready(&self, queue: &str) -> Result<()> {
        self.inner.ready(queue).await
    }
    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        self.inner.acknowledge(queue, handles).await
    }
    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        self.inner.release(queue, handle, delay_ms, reason).await
    }
    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        self.inner.give_up(queue, handle, reason).await
    }
    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()> {
        self.inner.extend(queue, handle, timeout_ms).await
    }
    async fn dead_letters(
        &self,
        queue: &str,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        self.inner.dead_letters(queue, after, letters_max).await
    }
    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.inner.redrive(queue, letters).await
    }
    async fn purge(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.inner.purge(queue, letters).await
    }
    async fn blocked(&self, queue: &str) -> Result<Vec<DeadLetter>> {
        self.inner.blocked(queue).await
    }
    async fn backlog(&self, queue: &str) -> Result<Backlog> {
        self.inner.backlog(queue).await
    }
    fn limits(&self) -> &QueueLimits {
        self.inner.limits()
    }
}

#[derive(Debug)]
struct CrashableFunctions {
    inner: Arc<dyn Functions>,
    life: Life,
}

#[async_trait]
impl Functions for CrashableFunctions {
    async fn invoke(&self, function: &str, payload: Bytes) -> Result<Bytes> {
        self.inner.invoke(function, payload).await
    }
    async fn send(&self, function: &str, id: Option<Bytes>, payload: Bytes) -> Result<Receipt> {
        self.life
            .live_through(self.inner.send(function, id, payload))
            .await
    }
    async fn knows(&self, function: &str) -> Result<bool> {
        self.life.live_through(self.inner.knows(function)).await
    }
    async fn arm_queue(&self, trigger: QueueTrigger) -> Result<()> {
        self.inner.arm_queue(trigger).await
    }
    async fn disarm_queue(&self, queue: &str) -> Result<()> {
        self.inner.disarm_queue(queue).await
    }
    async fn arm_timer(&self, function: &str, period: Duration) -> Result<()> {
        self.inner.arm_timer(function, period).await
    }
    async fn disarm_timer(&self, function: &str) -> Result<()> {
        self.inner.disarm_timer(function).await
    }
    fn limits(&self) -> &FunctionLimits {
        self.inner.limits()
    }
}
