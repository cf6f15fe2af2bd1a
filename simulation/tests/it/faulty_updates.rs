//! A store in which the test selects the fault of each update.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use ports::{
    DurabilityPoint, Error, Externalize, Item, Key, KeyValue, Update,
    key_value::{Batch, Batched, KeyValueLimits, Page, Read, Room, Scan, Transacted, Updated},
};

/// The fault of an update.
pub(crate) enum UpdateFault {
    /// None.
    Made,
    /// The update is not performed, and the caller gets an error.
    Refused,
    /// The update is not performed, and the caller gets no answer: its invocation runs out of time.
    Deadly,
}

/// Selects the fault.
type Decide = Box<dyn Fn(&Update) -> UpdateFault + Send + Sync>;

/// The store.
pub(crate) struct FaultyUpdates {
    store: Arc<dyn KeyValue>,
    fault: Decide,
}

impl FaultyUpdates {
    /// Wraps `store`; `fault` selects the faults of single updates.
    pub(crate) fn new(
        store: Arc<dyn KeyValue>,
        fault: impl Fn(&Update) -> UpdateFault + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            fault: Box::new(fault),
        })
    }
}

impl fmt::Debug for FaultyUpdates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyUpdates")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Externalize for FaultyUpdates {
    async fn externalize(&self, point: DurabilityPoint) -> ports::Result<()> {
        self.store.externalize(point).await
    }
    fn point(&self) -> DurabilityPoint {
        self.store.point()
    }
    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.store.is_durable(point)
    }
}

#[async_trait]
impl KeyValue for FaultyUpdates {
    async fn get(&self, key: &Key) -> ports::Result<Read<Option<Arc<Item>>>> {
        self.store.get(key).await
    }
    async fn scan(&self, scan: &Scan) -> ports::Result<Read<Page>> {
        self.store.scan(scan).await
    }
    async fn update(&self, update: Update) -> ports::Result<Updated> {
        match (self.fault)(&update) {
            UpdateFault::Made => self.store.update(update).await,
            UpdateFault::Refused => Err(Error::unavailable("update what a test refuses")),
            UpdateFault::Deadly => std::future::pending().await,
        }
    }
    async fn transact(&self, updates: Vec<Update>) -> ports::Result<Transacted> {
        self.store.transact(updates).await
    }
    async fn write_batch(&self, batch: Batch) -> ports::Result<Batched> {
        self.store.write_batch(batch).await
    }
    fn limits(&self) -> &KeyValueLimits {
        self.store.limits()
    }
    fn room(&self) -> Room {
        self.store.room()
    }
}
