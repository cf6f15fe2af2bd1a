//! Processes that can be paused, partitioned from their store, or killed.
//!
//! Invariants
//! - A paused process makes no step: no call returns and no sleep ends before it is resumed.
//! - A partitioned process has its calls refused at once; calls in progress finish.

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
    key_value::{Page, Read, Scan, Transacted, Updated},
    queue::{Delivery, Handle, Message, QueueOptions},
};
use tokio::sync::Notify;

use super::held;
use crate::transactions::crashable::Life;

/// The duration of a refused call.
const REFUSED_AFTER: Duration = Duration::from_millis(5);

/// The abilities of a live process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// All.
    All,
    /// None: it is paused.
    Nothing,
    /// It runs but cannot reach the store.
    NoCalls,
}

/// The controls of one process. Clones share them.
#[derive(Debug, Clone)]
pub struct ProcessControl {
    life: Life,
    ability: Arc<Mutex<Ability>>,
    /// Wakes waiters in order, unlike a watch channel, so that a seed has one run.
    changed: Arc<Notify>,
    clock: Arc<dyn Clock>,
}

impl ProcessControl {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let (ability, changed) = (Arc::new(Mutex::new(Ability::All)), Arc::default());
        Self {
            life: Life::default(),
            ability,
            changed,
            clock,
        }
    }

    /// Sets the ability from now on.
    pub fn set(&self, ability: Ability) {
        *held(&self.ability) = ability;
        self.changed.notify_waiters();
    }

    /// The life of the process, which may be ended at some call.
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

/// The items as the process reaches them.
#[derive(Debug)]
pub struct PartitionableKeyValue {
    inner: Arc<dyn KeyValue>,
    control: ProcessControl,
}

impl PartitionableKeyValue {
    pub(super) fn new(inner: Arc<dyn KeyValue>, control: ProcessControl) -> Self {
        Self { inner, control }
    }
}

impl Decorator for PartitionableKeyValue {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.control.call(self.inner.externalize(point)).await
    }
}

impl KeyValueDecorator for PartitionableKeyValue {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.control.call(self.inner.get(key)).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.control.call(self.inner.scan(scan)).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        self.control.call(self.inner.update(update)).await
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        self.control.call(self.inner.transact(updates)).await
    }
}

/// The queues as the process reaches them.
#[derive(Debug)]
pub struct PartitionableQueue {
    inner: Arc<dyn Queue>,
    control: ProcessControl,
}

impl PartitionableQueue {
    pub(super) fn new(inner: Arc<dyn Queue>, control: ProcessControl) -> Self {
        Self { inner, control }
    }
}

impl Decorator for PartitionableQueue {
    type Port = dyn Queue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.control.call(self.inner.externalize(point)).await
    }
}

impl QueueDecorator for PartitionableQueue {
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        self.control.call(self.inner.create(queue, options)).await
    }

    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        self.control.call(self.inner.send(queue, messages)).await
    }

    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        self.control
            .call(self.inner.receive_hidden(queue, messages_max, hidden_ms))
            .await
    }

    async fn ready(&self, queue: &str) -> Result<()> {
        self.control.call(self.inner.ready(queue)).await
    }

    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        self.control
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
        self.control
            .call(self.inner.release(queue, handle, delay_ms, reason))
            .await
    }

    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        self.control
            .call(self.inner.give_up(queue, handle, reason))
            .await
    }

    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()> {
        self.control
            .call(self.inner.extend(queue, handle, timeout_ms))
            .await
    }
}

/// Time as the process sees it.
#[derive(Debug)]
pub struct PartitionableClock {
    inner: Arc<dyn Clock>,
    control: ProcessControl,
}

impl PartitionableClock {
    pub(super) fn new(inner: Arc<dyn Clock>, control: ProcessControl) -> Self {
        Self { inner, control }
    }
}

#[async_trait]
impl Clock for PartitionableClock {
    fn now(&self) -> Timestamp {
        self.inner.now()
    }
    fn monotonic(&self) -> Monotonic {
        self.inner.monotonic()
    }
    async fn sleep(&self, duration: Duration) {
        self.inner.sleep(duration).await;
        self.control.runs().await;
    }
}
