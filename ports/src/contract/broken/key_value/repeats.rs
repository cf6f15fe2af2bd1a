//! K7 to K9, broken.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;

use super::Twist;
use crate::{
    ErrorKind, Item, Key, Receipt, Result, Update,
    key_value::{
        Batch, Batched, Change, Outcome, Read, SharedKeyValue, Transacted, Updated, Version,
    },
};

async fn apply(store: &SharedKeyValue, changes: Vec<(Key, Change)>) -> Result<()> {
    for (key, change) in changes {
        store.update(Update::of(key, change)).await?;
    }
    Ok(())
}

/// Applies a repeated batch again (K7).
#[derive(Debug)]
pub(super) struct ReappliesBatches(SharedKeyValue);

impl ReappliesBatches {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self(honest)
    }
}

#[async_trait]
impl Twist for ReappliesBatches {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        let changes = batch.changes.clone();
        let batched = self.0.write_batch(batch).await?;
        if let Batched::Repeat(_) = batched {
            apply(&self.0, changes).await?;
        }
        Ok(batched)
    }
}

/// Applies a batch that comes early at once (K7).
#[derive(Debug)]
pub(super) struct SkipsGaps(SharedKeyValue);

impl SkipsGaps {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self(honest)
    }
}

#[async_trait]
impl Twist for SkipsGaps {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
    async fn write_batch(&self, batch: Batch) -> Result<Batched> {
        let changes = batch.changes.clone();
        match self.0.write_batch(batch).await? {
            Batched::Early { .. } => {
                apply(&self.0, changes).await?;
                Ok(Batched::Done(Receipt::default()))
            }
            batched => Ok(batched),
        }
    }
}

/// Takes a repeat for a new update (K8).
#[derive(Debug)]
pub(super) struct ForgetsOperations(SharedKeyValue);

impl ForgetsOperations {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self(honest)
    }
}

#[async_trait]
impl Twist for ForgetsOperations {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
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

/// Says that a repeat it may have forgotten lost against another (K8, rule P2).
#[derive(Debug)]
pub(super) struct GuessesForgotten(SharedKeyValue);

impl GuessesForgotten {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self(honest)
    }
}

#[async_trait]
impl Twist for GuessesForgotten {
    fn honest(&self) -> &SharedKeyValue {
        &self.0
    }
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

/// Counts an item's versions from one again when it is made again (K9).
#[derive(Debug)]
pub(super) struct RestartsVersions {
    honest: SharedKeyValue,
    /// By how much the versions of a key are shown too low.
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

#[async_trait]
impl Twist for RestartsVersions {
    fn honest(&self) -> &SharedKeyValue {
        &self.honest
    }
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
