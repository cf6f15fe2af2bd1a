//! Counts the calls of a key-value store.

use std::sync::Arc;

use super::{MeteredKeyValue, Operation};
use crate::{
    Item, Key, Result, Update,
    decorate::KeyValueDecorator,
    key_value::{Outcome, Page, Read, Scan, Transacted, Updated},
};

fn item_bytes(item: Option<&Arc<Item>>) -> usize {
    item.map_or(0, |item| item.bytes_len())
}

impl KeyValueDecorator for MeteredKeyValue {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        let carried = |read: &Read<Option<Arc<Item>>>| {
            let item = read.value.as_ref();
            (usize::from(item.is_some()), item_bytes(item))
        };
        self.meter
            .measure(Operation::KeyValueGet, self.inner.get(key), carried)
            .await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        let carried = |read: &Read<Page>| {
            let bytes = |(sort, item): &(bytes::Bytes, Arc<Item>)| sort.len() + item.bytes_len();
            let items = &read.value.items;
            (items.len(), items.iter().map(bytes).sum())
        };
        self.meter
            .measure(Operation::KeyValueScan, self.inner.scan(scan), carried)
            .await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        let carried = |updated: &Updated| {
            let (Outcome::Done(item) | Outcome::Conflict(item)) = &updated.outcome;
            (1, item_bytes(item.as_ref()))
        };
        let call = self.inner.update(update);
        self.meter
            .measure(Operation::KeyValueUpdate, call, carried)
            .await
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        let carried = |transacted: &Transacted| match transacted {
            Transacted::Done { items, .. } => {
                let bytes = items.iter().map(|item| item_bytes(item.as_ref())).sum();
                (items.len(), bytes)
            }
            Transacted::Conflict { item, .. } => (1, item_bytes(item.as_ref())),
        };
        let call = self.inner.transact(updates);
        self.meter
            .measure(Operation::KeyValueTransact, call, carried)
            .await
    }
}
