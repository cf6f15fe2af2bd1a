//! K1 to K4, broken.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use crate::{
    Condition, Item, Key, KeyValue, Result, Update,
    contract::pause,
    decorate::KeyValueDecorator,
    decorates,
    key_value::{
        Action, Change, Name, Outcome, Read, SharedKeyValue, Updated, Value, evaluate::holds,
    },
};

/// Answers every get of a key like the first one (K1).
#[derive(Debug)]
pub(super) struct ReadsStale {
    honest: SharedKeyValue,
    first: Mutex<BTreeMap<Key, Read<Option<Arc<Item>>>>>,
}

impl ReadsStale {
    pub(super) fn around(honest: SharedKeyValue) -> Self {
        Self {
            honest,
            first: Mutex::default(),
        }
    }
}

decorates!(ReadsStale, dyn KeyValue, honest);

impl KeyValueDecorator for ReadsStale {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        let read = self.honest.get(key).await?;
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(first.entry(key.clone()).or_insert(read).clone())
    }
}

/// Applies every update unconditionally (K2).
#[derive(Debug)]
pub(super) struct ForgetsConditions(pub(super) SharedKeyValue);

decorates!(ForgetsConditions, dyn KeyValue, 0);

impl KeyValueDecorator for ForgetsConditions {
    async fn update(&self, update: Update) -> Result<Updated> {
        self.0.update(update.when(Condition::Always)).await
    }
}

/// Checks the condition first and writes later, so that others write in between (K2).
#[derive(Debug)]
pub(super) struct ChecksThenWrites(pub(super) SharedKeyValue);

decorates!(ChecksThenWrites, dyn KeyValue, 0);

impl KeyValueDecorator for ChecksThenWrites {
    async fn update(&self, update: Update) -> Result<Updated> {
        let read = self.0.get(&update.key).await?.value;
        if !holds(&update.condition, read.as_deref()) {
            return self.0.update(update).await;
        }
        pause().await;
        self.0.update(update.when(Condition::Always)).await
    }
}

/// Refuses without returning the present item (K2).
#[derive(Debug)]
pub(super) struct HidesTheWinner(pub(super) SharedKeyValue);

decorates!(HidesTheWinner, dyn KeyValue, 0);

impl KeyValueDecorator for HidesTheWinner {
    async fn update(&self, update: Update) -> Result<Updated> {
        let mut updated = self.0.update(update).await?;
        if let Outcome::Conflict(item) = &mut updated.outcome {
            *item = None;
        }
        Ok(updated)
    }
}

/// Keeps the first action of a refused update (K3).
#[derive(Debug)]
pub(super) struct AppliesHalfOnError(pub(super) SharedKeyValue);

decorates!(AppliesHalfOnError, dyn KeyValue, 0);

impl KeyValueDecorator for AppliesHalfOnError {
    async fn update(&self, update: Update) -> Result<Updated> {
        let mut half = update.clone();
        let error = match self.0.update(update).await {
            Ok(updated) => return Ok(updated),
            Err(error) => error,
        };
        if let Change::Modify(actions) = &mut half.change {
            actions.truncate(1);
            drop(self.0.update(half).await);
        }
        Err(error)
    }
}

/// Reads first and later sets the result of one kind of action, so that others write in between
/// (K4).
#[derive(Debug)]
pub(super) struct SetsLater {
    honest: SharedKeyValue,
    comes_to: ComesTo,
}

/// The attribute and value that an action of some kind would set.
type ComesTo = fn(&Action, Option<&Item>) -> Option<(Name, Value)>;

impl SetsLater {
    pub(super) fn for_additions(honest: SharedKeyValue) -> Self {
        let comes_to: ComesTo = |action, item| {
            let Action::Add(name, amount) = action else {
                return None;
            };
            let present = item
                .and_then(|item| item.integer(name.as_str()))
                .unwrap_or(0);
            Some((
                name.clone(),
                Value::Integer(present.saturating_add(*amount)),
            ))
        };
        Self { honest, comes_to }
    }

    pub(super) fn for_appends(honest: SharedKeyValue) -> Self {
        let comes_to: ComesTo = |action, item| {
            let Action::Append(name, elements) = action else {
                return None;
            };
            Some((
                name.clone(),
                Value::List([list(item, name), elements].concat().into()),
            ))
        };
        Self { honest, comes_to }
    }

    pub(super) fn for_removals(honest: SharedKeyValue) -> Self {
        let comes_to: ComesTo = |action, item| {
            let Action::RemoveElements(name, elements) = action else {
                return None;
            };
            let left = list(item, name)
                .iter()
                .filter(|element| !elements.contains(element));
            Some((name.clone(), Value::List(left.cloned().collect())))
        };
        Self { honest, comes_to }
    }

    pub(super) fn for_removals_of_the_first(honest: SharedKeyValue) -> Self {
        let comes_to: ComesTo = |action, item| {
            let Action::RemoveFirst(name, count) = action else {
                return None;
            };
            let left = list(item, name).iter().skip(*count);
            Some((name.clone(), Value::List(left.cloned().collect())))
        };
        Self { honest, comes_to }
    }
}

fn list<'item>(item: Option<&'item Item>, name: &Name) -> &'item [Bytes] {
    item.map_or(&[], |item| item.list(name.as_str()))
}

decorates!(SetsLater, dyn KeyValue, honest);

impl KeyValueDecorator for SetsLater {
    async fn update(&self, mut update: Update) -> Result<Updated> {
        let read = self.honest.get(&update.key).await?.value;
        if let Change::Modify(actions) = &mut update.change {
            for action in actions {
                if let Some((name, value)) = (self.comes_to)(action, read.as_deref()) {
                    *action = Action::Set(name, value);
                }
            }
        }
        pause().await;
        self.honest.update(update).await
    }
}
