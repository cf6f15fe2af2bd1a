//! A store that recovers its order only from the changes that left data.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;

use super::{Crashed, Twisting};
use crate::{
    DurabilityPoint, Error, ErrorKind, Incarnation, Key, KeyValue, Position, Result, Update,
    contract::durability::Subject,
    decorate::{Decorator, KeyValueDecorator},
    key_value::{Change, Outcome, SharedKeyValue, Updated},
};

/// Reports a point as lost if all changes after the last one that left data were undone before they
/// were durable (D3).
pub(super) fn losing(honest: Subject) -> Subject {
    Box::new(Crashed(LosesWhatUndidItself {
        honest,
        left: Arc::default(),
    }))
}

#[derive(Debug)]
struct LosesWhatUndidItself {
    honest: Subject,
    left: Arc<Mutex<Left>>,
}

#[derive(Debug, Default)]
struct Left {
    /// Changes that are not yet durable.
    pending: BTreeMap<Key, DurabilityPoint>,
    /// The last change of this start that left data.
    last: DurabilityPoint,
    /// Where earlier starts ended.
    ends: BTreeMap<Incarnation, Position>,
}

impl Left {
    /// Makes the pending changes durable.
    fn keep(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        self.last = pending.into_values().fold(self.last, DurabilityPoint::max);
    }

    fn is_lost(&self, point: DurabilityPoint) -> bool {
        self.ends
            .get(&point.incarnation)
            .is_some_and(|end| point.position > *end)
    }
}

#[async_trait]
impl Twisting for LosesWhatUndidItself {
    fn honest(&self) -> &Subject {
        &self.honest
    }
    fn key_value(&self) -> SharedKeyValue {
        let (honest, left) = (self.honest.key_value(), Arc::clone(&self.left));
        Arc::new(Undone { honest, left })
    }
    async fn crash_and_reopen(self) -> Self {
        let honest = self.honest.crash_and_reopen().await;
        {
            let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
            left.keep();
            let last = std::mem::take(&mut left.last);
            left.ends.insert(last.incarnation, last.position);
        }
        Self {
            honest,
            left: self.left,
        }
    }
}

#[derive(Debug)]
struct Undone {
    honest: SharedKeyValue,
    left: Arc<Mutex<Left>>,
}

impl Undone {
    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Decorator for Undone {
    type Port = dyn KeyValue;

    fn inner(&self) -> &Self::Port {
        &*self.honest
    }
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        if self.left().is_lost(point) {
            return Err(Error::new(
                ErrorKind::Lost,
                format!("externalize {point:?}"),
            ));
        }
        self.honest.externalize(point).await?;
        self.left().keep();
        Ok(())
    }
    fn is_durable(&self, point: DurabilityPoint) -> bool {
        !self.left().is_lost(point) && self.honest.is_durable(point)
    }
}

impl KeyValueDecorator for Undone {
    async fn update(&self, update: Update) -> Result<Updated> {
        let (key, is_deletion) = (update.key.clone(), update.change == Change::Delete);
        let updated = self.honest.update(update).await?;
        if matches!(updated.outcome, Outcome::Done(_)) {
            let undone = self.left().pending.remove(&key);
            if undone.is_none() || !is_deletion {
                self.left().pending.insert(key, updated.receipt.point);
            }
        }
        Ok(updated)
    }
}
