//! K8 and K9, broken.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    ErrorKind, Item, Key, KeyValue, Receipt, Result, Update,
    decorate::KeyValueDecorator,
    decorates,
    key_value::{Change, Outcome, Read, SharedKeyValue, Transacted, Updated, Version},
};

/// Applies a repeat as a new update (K8).
#[derive(Debug)]
pub(super) struct ForgetsOperations(pub(super) SharedKeyValue);

decorates!(ForgetsOperations, dyn KeyValue, 0);

impl KeyValueDecorator for ForgetsOperations {
    async fn update(&self, update: Update) -> Result<Updated> {
        self.0
            .update(Update {
                operation: None,
                ..update
            })
            .await
    }
    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        self.0
            .transact(
                updates
                    .into_iter()
                    .map(|update| Update {
                        operation: None,
                        ..update
                    })
                    .collect(),
            )
            .await
    }
}

/// Reports a repeat that it may have forgotten as a conflict (K8, rule P2).
#[derive(Debug)]
pub(super) struct GuessesForgotten(pub(super) SharedKeyValue);

decorates!(GuessesForgotten, dyn KeyValue, 0);

impl KeyValueDecorator for GuessesForgotten {
    async fn update(&self, update: Update) -> Result<Updated> {
        let key = update.key.clone();
        match self.0.update(update).await {
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                let present = self.0.get(&key).await?.value;
                Ok(Updated {
                    outcome: Outcome::Conflict(present),
                    receipt: Receipt::default(),
                })
            }
            answer => answer,
        }
    }
}

/// Restarts an item's versions at one when it is made again (K9).
#[derive(Debug)]
pub(super) struct RestartsVersions {
    honest: SharedKeyValue,
    /// By how much each key's reported versions are too low.
    restarts: Mutex<BTreeMap<Key, u64>>,
}

impl RestartsVersions {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self {
            honest,
            restarts: Mutex::default(),
        }
    }

    fn shown(&self, key: &Key, item: Option<Arc<Item>>) -> Option<Arc<Item>> {
        let restarts = self.restarts.lock().unwrap_or_else(PoisonError::into_inner);
        let lower = restarts.get(key).copied().unwrap_or(0);
        item.map(|item| {
            let mut item = Item::clone(&item);
            item.version = Version(item.version.0.saturating_sub(lower));
            Arc::new(item)
        })
    }
}

decorates!(RestartsVersions, dyn KeyValue, honest);

impl KeyValueDecorator for RestartsVersions {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        let read = self.honest.get(key).await?;
        Ok(Read {
            value: self.shown(key, read.value),
            point: read.point,
        })
    }
    async fn update(&self, update: Update) -> Result<Updated> {
        let key = update.key.clone();
        if update.change == Change::Delete
            && let Some(item) = self.honest.get(&key).await?.value
        {
            let mut restarts = self.restarts.lock().unwrap_or_else(PoisonError::into_inner);
            restarts.insert(key.clone(), item.version.0 + 1);
        }
        let updated = self.honest.update(update).await?;
        let outcome = match updated.outcome {
            Outcome::Done(item) => Outcome::Done(self.shown(&key, item)),
            Outcome::Conflict(item) => Outcome::Conflict(self.shown(&key, item)),
        };
        Ok(Updated {
            outcome,
            receipt: updated.receipt,
        })
    }
}
