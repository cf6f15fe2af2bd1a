//! A key-value port that holds calls back: what stands between two steps of a commit can be looked at.

use std::{
    future::pending,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use ports::{
    DurabilityPoint, Error, ErrorKind, Externalize, Item, Key, KeyValue, Result, Update,
    key_value::{Batch, Batched, KeyValueLimits, Page, Read, Room, Scan, Transacted, Updated},
};
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    Updates,
    Gets,
    Scans,
    /// The answers of updates: what they do is done.
    Answers,
}

#[derive(Debug)]
pub(crate) struct Gate {
    inner: Arc<dyn KeyValue>,
    /// What is held: calls of this kind to partitions that begin like this.
    closed: watch::Sender<Option<(Held, Vec<u8>)>>,
    waiting: watch::Sender<usize>,
    /// How many calls are still answered; none: all.
    calls_left: Mutex<Option<usize>>,
    /// The next update of a partition that begins like this finds no room.
    full: Mutex<Option<Vec<u8>>>,
}

impl Gate {
    pub(crate) fn new(inner: Arc<dyn KeyValue>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            closed: watch::Sender::new(None),
            waiting: watch::Sender::new(0),
            calls_left: Mutex::default(),
            full: Mutex::default(),
        })
    }

    /// Holds calls from now on.
    pub(crate) fn close(&self, held: Held, partition: &[u8]) {
        self.closed.send_replace(Some((held, partition.to_vec())));
    }

    /// Answers so many calls, and none after them: whoever calls is as good as dead.
    pub(crate) fn die_after(&self, calls: usize) {
        *self.calls_left.lock().expect("no panic") = Some(calls);
    }

    /// Refuses the next update there, for want of room.
    pub(crate) fn refuse_one(&self, partition: &[u8]) {
        *self.full.lock().expect("no panic") = Some(partition.to_vec());
    }

    /// Lets everybody pass.
    pub(crate) fn open(&self) {
        self.closed.send_replace(None);
    }

    /// Waits until a call is held.
    pub(crate) async fn holds(&self) {
        self.waiting.subscribe().wait_for(|waiting| *waiting > 0).await.expect("the gate is there");
    }

    async fn count(&self) {
        let lives = match &mut *self.calls_left.lock().expect("no panic") {
            Some(0) => false,
            Some(calls) => {
                *calls -= 1;
                true
            }
            None => true,
        };
        if !lives {
            self.waiting.send_modify(|waiting| *waiting += 1);
            pending::<()>().await;
        }
    }

    async fn pass(&self, held: Held, partition: &[u8]) {
        self.count().await;
        self.hold(held, partition).await;
    }

    async fn hold(&self, held: Held, partition: &[u8]) {
        let is_held = |closed: &Option<(Held, Vec<u8>)>| {
            closed.as_ref().is_some_and(|(kind, prefix)| *kind == held && partition.starts_with(prefix))
        };
        if is_held(&self.closed.borrow()) {
            self.waiting.send_modify(|waiting| *waiting += 1);
            self.closed.subscribe().wait_for(|closed| !is_held(closed)).await.expect("the gate is there");
            self.waiting.send_modify(|waiting| *waiting -= 1);
        }
    }
}

#[async_trait]
impl Externalize for Gate {
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.count().await;
        self.inner.externalize(point).await
    }

    fn point(&self) -> DurabilityPoint {
        self.inner.point()
    }

    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.inner.is_durable(point)
    }
}

#[async_trait]
impl KeyValue for Gate {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.pass(Held::Gets, key.partition()).await;
        self.inner.get(key).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.pass(Held::Scans, &scan.partition).await;
        self.inner.scan(scan).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        self.pass(Held::Updates, update.key.partition()).await;
        let partition = update.key.partition().to_vec();
        let is_full = |full: &mut Vec<u8>| partition.starts_with(full);
        if self.full.lock().expect("no panic").take_if(is_full).is_some() {
            return Err(Error::new(ErrorKind::NoRoom, "the gate"));
        }
        let updated = self.inner.update(update).await;
        self.hold(Held::Answers, &partition).await;
        updated
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        self.inner.transact(updates).await
    }

    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        self.inner.write_batch(batch).await
    }

    fn limits(&self) -> &KeyValueLimits {
        self.inner.limits()
    }

    fn room(&self) -> Room {
        self.inner.room()
    }
}
