//! What a process can do: everything, nothing for a while, nothing but look at its clock, nothing any more.
//!
//! Invariants
//! - A process that stands still makes no step: no call returns to it, no sleep ends, until it goes on.
//! - One that is cut off hears at once that its calls are refused; what is under way comes to its end.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use ports::{
    Clock, DurabilityPoint, Error, Item, Key, KeyValue, Monotonic, Queue, Receipt, Result,
    Timestamp, Update,
    decorate::{Decorator, KeyValueDecorator, QueueDecorator},
    key_value::{Batch, Batched, Page, Read, Scan, Transacted, Updated},
    queue::{Delivery, Handle, Message, QueueOptions},
};
use tokio::sync::Notify;

use super::held;
use crate::transactions::mortal::Life;

/// How long a call takes that is refused.
const REFUSED_AFTER: Duration = Duration::from_millis(5);

/// What a process can do while it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// Everything.
    All,
    /// It stands still.
    Nothing,
    /// It runs, and does not reach the store.
    NoCalls,
}

/// One process's. Clones share it.
#[derive(Debug, Clone)]
pub struct Reach {
    life: Life,
    ability: Arc<Mutex<Ability>>,
    /// Wakes in the order of waiting, other than a watch channel: a seed has one run.
    changed: Arc<Notify>,
    clock: Arc<dyn Clock>,
}

impl Reach {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let (ability, changed) = (Arc::new(Mutex::new(Ability::All)), Arc::default());
        Self {
            life: Life::default(),
            ability,
            changed,
            clock,
        }
    }

    /// From now on it can do this.
    pub fn set(&self, ability: Ability) {
        *held(&self.ability) = ability;
        self.changed.notify_waiters();
    }

    /// Its life, to be ended at some call.
    pub fn life(&self) -> &Life {
        &self.life
    }

    pub(super) fn end(&self) {
        self.life.end();
    }

    async fn runs(&self) {
        loop {
            let changed = self.changed.notified();
            if *held(&self.ability) != Ability::Nothing {
                return;
            }
            changed.await;
        }
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.runs().await;
        if *held(&self.ability) == Ability::NoCalls {
            self.clock.sleep(REFUSED_AFTER).await;
            return self
                .life
                .live_through(async { Err(Error::unavailable("reach the store")) })
                .await;
        }
        let answer = self.life.live_through(call).await;
        self.runs().await;
        answer
    }
}

/// The items as a process reaches them.
#[derive(Debug)]
pub struct ReachedKeyValue {
    inner: Arc<dyn KeyValue>,
    reach: Reach,
}

impl ReachedKeyValue {
    pub(super) fn new(inner: Arc<dyn KeyValue>, reach: Reach) -> Self {
        Self { inner, reach }
    }
}

impl Decorator for ReachedKeyValue {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.reach.call(self.inner.externalize(point)).await
    }
}

impl KeyValueDecorator for ReachedKeyValue {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.reach.call(self.inner.get(key)).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.reach.call(self.inner.scan(scan)).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        self.reach.call(self.inner.update(update)).await
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        self.reach.call(self.inner.transact(updates)).await
    }

    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        self.reach.call(self.inner.write_batch(batch)).await
    }
}

/// The queues as a process reaches them.
#[derive(Debug)]
pub struct ReachedQueue {
    inner: Arc<dyn Queue>,
    reach: Reach,
}

impl ReachedQueue {
    pub(super) fn new(inner: Arc<dyn Queue>, reach: Reach) -> Self {
        Self { inner, reach }
    }
}

impl Decorator for ReachedQueue {
    type Port = dyn Queue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.reach.call(self.inner.externalize(point)).await
    }
}

impl QueueDecorator for ReachedQueue {
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        self.reach.call(self.inner.create(queue, options)).await
    }

    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        self.reach.call(self.inner.send(queue, messages)).await
    }

    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        self.reach
            .call(self.inner.receive_hidden(queue, messages_max, hidden_ms))
            .await
    }

    async fn ready(&self, queue: &str) -> Result<()> {
        self.reach.call(self.inner.ready(queue)).await
    }

    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        self.reach
            .call(self.inner.acknowledge(queue, handles))
            .await
    }

    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        self.reach
            .call(self.inner.release(queue, handle, delay_ms, reason))
            .await
    }

    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        self.reach
            .call(self.inner.give_up(queue, handle, reason))
            .await
    }

    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()> {
        self.reach
            .call(self.inner.extend(queue, handle, timeout_ms))
            .await
    }
}

/// Time as a process sees it.
#[derive(Debug)]
pub struct ReachedClock {
    inner: Arc<dyn Clock>,
    reach: Reach,
}

impl ReachedClock {
    pub(super) fn new(inner: Arc<dyn Clock>, reach: Reach) -> Self {
        Self { inner, reach }
    }
}

#[async_trait]
impl Clock for ReachedClock {
    fn now(&self) -> Timestamp {
        self.inner.now()
    }
    fn monotonic(&self) -> Monotonic {
        self.inner.monotonic()
    }
    async fn sleep(&self, duration: Duration) {
        self.inner.sleep(duration).await;
        self.reach.runs().await;
    }
}
