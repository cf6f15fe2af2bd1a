//! A key-value store with faults.

use std::sync::Arc;

use super::{FaultSchedule, Lost, Trouble};
use crate::{
    Clock, DurabilityPoint, Item, Key, KeyValue, Result, Update,
    decorate::{Decorator, KeyValueDecorator},
    key_value::{Batch, Batched, Page, Read, Scan, SharedKeyValue, Transacted, Updated},
};

/// Fails as its schedule says, and asks the store it wraps otherwise.
#[derive(Debug, Clone)]
pub struct FaultyKeyValue {
    inner: SharedKeyValue,
    trouble: Trouble,
}

impl FaultyKeyValue {
    /// Puts `schedule` between callers and `inner`.
    pub fn new(
        inner: SharedKeyValue,
        schedule: Arc<dyn FaultSchedule>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            inner,
            trouble: Trouble { schedule, clock },
        }
    }
}

impl Decorator for FaultyKeyValue {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        let call = self.inner.externalize(point);
        self.trouble
            .with("key_value.externalize", Lost::TryAgain, call)
            .await
    }
}

impl KeyValueDecorator for FaultyKeyValue {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.trouble
            .with("key_value.get", Lost::TryAgain, self.inner.get(key))
            .await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.trouble
            .with("key_value.scan", Lost::TryAgain, self.inner.scan(scan))
            .await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        self.trouble
            .with("key_value.update", Lost::Unknown, self.inner.update(update))
            .await
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        self.trouble
            .with(
                "key_value.transact",
                Lost::Unknown,
                self.inner.transact(updates),
            )
            .await
    }

    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        self.trouble
            .with(
                "key_value.write_batch",
                Lost::Unknown,
                self.inner.write_batch(batch),
            )
            .await
    }

    fn has_room(&self) -> bool {
        self.trouble.schedule.has_room() && self.inner.has_room()
    }
}
