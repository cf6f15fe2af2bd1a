//! Counts the calls of a key-value store.

use std::sync::Arc;

use super::{Carried, Meter, Operation};
use crate::{
    DurabilityPoint, Item, Key, KeyValue, Result, Update,
    decorate::{Decorator, KeyValueDecorator},
    key_value::{
        Action, Batch, Batched, Change, Outcome, Page, Read, Scan, SharedKeyValue, Transacted,
        Updated, Value,
    },
};

/// How many units a transaction's write counts: it is prepared and committed.
const TRANSACT_FACTOR: u64 = 2;

/// Counts calls, items, bytes and units of the store it wraps.
#[derive(Debug, Clone)]
pub struct MeteredKeyValue {
    inner: SharedKeyValue,
    meter: Arc<Meter>,
}

impl MeteredKeyValue {
    /// Counts the calls of `inner` into `meter`.
    pub fn new(inner: SharedKeyValue, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }
}

fn item_bytes(item: Option<&Arc<Item>>) -> usize {
    item.map_or(0, |item| item.bytes_len())
}

/// The bytes of a change, as far as they are known before it is applied.
fn change_bytes(change: &Change) -> usize {
    let value = |name: &str, value: &Value| name.len() + value.bytes_len();
    match change {
        Change::Delete | Change::Keep => 0,
        Change::Put(attributes) => attributes
            .iter()
            .map(|(name, v)| value(name.as_str(), v))
            .sum(),
        Change::Modify(actions) => actions
            .iter()
            .map(|action| match action {
                Action::Set(name, v) => value(name.as_str(), v),
                Action::Append(name, elements) | Action::RemoveElements(name, elements) => {
                    name.as_str().len() + elements.iter().map(bytes::Bytes::len).sum::<usize>()
                }
                Action::Add(name, _) => name.as_str().len() + 8,
                Action::RemoveFirst(name, _) | Action::Unset(name) => name.as_str().len(),
            })
            .sum(),
    }
}

impl Decorator for MeteredKeyValue {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.inner
    }

    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.meter.call(Operation::Externalize);
        let result = self.inner.externalize(point).await;
        self.meter
            .ended(Operation::Externalize, &result, |()| Carried::default());
        result
    }
}

impl KeyValueDecorator for MeteredKeyValue {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        self.meter.call(Operation::KeyValueGet);
        let result = self.inner.get(key).await;
        let unit = self.meter.unit_bytes.read;
        self.meter.ended(Operation::KeyValueGet, &result, |read| {
            let carried = Carried::item(item_bytes(read.value.as_ref()), unit);
            Carried {
                items: u64::from(read.value.is_some()),
                ..carried
            }
        });
        result
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        self.meter.call(Operation::KeyValueScan);
        let result = self.inner.scan(scan).await;
        let unit = self.meter.unit_bytes.read;
        self.meter.ended(Operation::KeyValueScan, &result, |read| {
            let items = &read.value.items;
            let bytes = items
                .iter()
                .map(|(sort, item)| sort.len() + item.bytes_len())
                .sum();
            Carried::request(items.len(), bytes, unit)
        });
        result
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        self.meter.call(Operation::KeyValueUpdate);
        let result = self.inner.update(update).await;
        let unit = self.meter.unit_bytes.write;
        self.meter
            .ended(Operation::KeyValueUpdate, &result, |updated| {
                let (Outcome::Done(item) | Outcome::Conflict(item)) = &updated.outcome;
                Carried::item(item_bytes(item.as_ref()), unit)
            });
        result
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        self.meter.call(Operation::KeyValueTransact);
        let asked: Vec<usize> = updates
            .iter()
            .map(|update| change_bytes(&update.change))
            .collect();
        let result = self.inner.transact(updates).await;
        let unit = self.meter.unit_bytes.write;
        self.meter
            .ended(Operation::KeyValueTransact, &result, |transacted| {
                let carried = match transacted {
                    Transacted::Done { items, .. } => {
                        Carried::items(items.iter().map(|item| item_bytes(item.as_ref())), unit)
                    }
                    Transacted::Conflict { .. } => Carried::items(asked, unit),
                };
                Carried {
                    units: TRANSACT_FACTOR * carried.units,
                    ..carried
                }
            });
        result
    }

    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        self.meter.call(Operation::KeyValueWriteBatch);
        let asked: Vec<usize> = batch
            .changes
            .iter()
            .map(|(_, change)| change_bytes(change))
            .collect();
        let result = self.inner.write_batch(batch).await;
        let unit = self.meter.unit_bytes.write;
        self.meter
            .ended(Operation::KeyValueWriteBatch, &result, |batched| {
                // The lane's cursor is one more write, and the only one if the batch is not
                // applied.
                let cursor = Carried::item(0, unit).units;
                match batched {
                    Batched::Done(_) => {
                        let carried = Carried::items(asked, unit);
                        Carried {
                            units: carried.units + cursor,
                            ..carried
                        }
                    }
                    Batched::Repeat(_) | Batched::Early { .. } => Carried {
                        units: cursor,
                        ..Carried::default()
                    },
                }
            });
        result
    }
}
