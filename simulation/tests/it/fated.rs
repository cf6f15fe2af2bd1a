//! A store of which a test says what becomes of each update.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use ports::{
    DurabilityPoint, Error, Externalize, Item, Key, KeyValue, Update,
    key_value::{Batch, Batched, KeyValueLimits, Page, Read, Room, Scan, Transacted, Updated},
};

/// What becomes of an update.
pub(crate) enum Fate {
    /// It is made.
    Made,
    /// It is not made, and whoever asked for it hears so.
    Refused,
    /// It is not made, and whoever asked for it is never heard of again: his invocation runs out of time.
    Deadly,
}

/// Decides it.
type Decide = Box<dyn Fn(&Update) -> Fate + Send + Sync>;

/// The store.
pub(crate) struct Fated {
    store: Arc<dyn KeyValue>,
    fate: Decide,
}

impl Fated {
    /// `store`, where `fate` decides what becomes of single updates.
    pub(crate) fn new(
        store: Arc<dyn KeyValue>,
        fate: impl Fn(&Update) -> Fate + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            fate: Box::new(fate),
        })
    }
}

impl fmt::Debug for Fated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fated")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Externalize for Fated {
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
impl KeyValue for Fated {
    async fn get(&self, key: &Key) -> ports::Result<Read<Option<Arc<Item>>>> {
        self.store.get(key).await
    }
    async fn scan(&self, scan: &Scan) -> ports::Result<Read<Page>> {
        self.store.scan(scan).await
    }
    async fn update(&self, update: Update) -> ports::Result<Updated> {
        match (self.fate)(&update) {
            Fate::Made => self.store.update(update).await,
            Fate::Refused => Err(Error::unavailable("update what a test refuses")),
            Fate::Deadly => std::future::pending().await,
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
