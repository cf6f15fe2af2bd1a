//! A key-value store with faults.

use std::sync::Arc;

use super::FaultyKeyValue;
use crate::{
    DurabilityPoint, Item, Key, KeyValue, Result, Update,
    decorate::{Decorator, KeyValueDecorator},
    key_value::{Page, Read, Scan, Transacted, Updated},
};

impl Decorator for FaultyKeyValue {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        let call = self.inner.externalize(point);
        self.repeatable("key_value.externalize", call).await
    }
}

impl KeyValueDecorator for FaultyKeyValue {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        let call = self.inner.get(key);
        self.repeatable("key_value.get", call).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        let call = self.inner.scan(scan);
        self.repeatable("key_value.scan", call).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        let call = self.inner.update(update);
        self.change("key_value.update", call).await
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        let call = self.inner.transact(updates);
        self.change("key_value.transact", call).await
    }

    fn has_room(&self) -> bool {
        self.schedule.has_room() && self.inner.has_room()
    }
}
