//! Forwards the calls of a key-value store.

use std::{future::Future, sync::Arc};

use async_trait::async_trait;

use super::Decorator;
use crate::{
    Item, Key, KeyValue, Result, Update,
    key_value::{Batch, Batched, KeyValueLimits, Page, Read, Scan, Transacted, Updated},
};

/// A key-value store around another one. Each call does what [`KeyValue`] says of it.
#[expect(missing_docs, reason = "the port documents its calls")]
pub trait KeyValueDecorator: Decorator<Port: KeyValue> {
    fn get(&self, key: &Key) -> impl Future<Output = Result<Read<Option<Arc<Item>>>>> + Send {
        async move { self.inner().get(key).await }
    }

    fn scan(&self, scan: &Scan) -> impl Future<Output = Result<Read<Page>>> + Send {
        async move { self.inner().scan(scan).await }
    }

    fn update(&self, update: Update) -> impl Future<Output = Result<Updated>> + Send {
        async move { self.inner().update(update).await }
    }

    fn transact(&self, updates: Vec<Update>) -> impl Future<Output = Result<Transacted>> + Send {
        async move { self.inner().transact(updates).await }
    }

    fn write_batch(&self, batch: Batch) -> impl Future<Output = Result<Batched>> + Send {
        async move { self.inner().write_batch(batch).await }
    }

    fn limits(&self) -> &KeyValueLimits {
        self.inner().limits()
    }

    fn has_room(&self) -> bool {
        self.inner().has_room()
    }
}

#[async_trait]
impl<D: KeyValueDecorator> KeyValue for D {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        KeyValueDecorator::get(self, key).await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        KeyValueDecorator::scan(self, scan).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        KeyValueDecorator::update(self, update).await
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        KeyValueDecorator::transact(self, updates).await
    }

    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        KeyValueDecorator::write_batch(self, batch).await
    }

    fn limits(&self) -> &KeyValueLimits {
        KeyValueDecorator::limits(self)
    }

    fn has_room(&self) -> bool {
        KeyValueDecorator::has_room(self)
    }
}
