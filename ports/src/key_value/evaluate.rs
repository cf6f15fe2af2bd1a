//! The meaning of conditions and changes: the one definition, which in-memory providers run and
//! others translate.
//!
//! Pure: takes an item and an update, and returns the next item. [`Memory`] is the part of an item
//! that makes repeats recognisable. Providers store it beside the attributes and never return it.

use std::{borrow::Cow, collections::VecDeque, fmt::Debug, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Action, Change, Condition, Item, KeyValueLimits, Name, Operation, OperationId, Test, Update,
    Value, Version,
};
use crate::{Error, ErrorKind, Result};

/// The operations that an item remembers (K8), and how far back its memory reaches.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memory {
    /// The last operations, oldest first, with the version each made.
    recent: VecDeque<(OperationId, Version)>,
    /// Operations that made this version or an earlier one may be forgotten.
    forgotten: Version,
}

impl Memory {
    /// Whether the memory is empty.
    pub fn is_empty(&self) -> bool {
        self.recent.is_empty() && self.forgotten == Version(0)
    }

    fn recall(&self, operation: Operation) -> Recalled {
        if self.recent.iter().any(|(id, _)| *id == operation.id) {
            Recalled::Done
        } else if self.forgotten > operation.known {
            Recalled::Forgotten
        } else {
            Recalled::New
        }
    }

    fn remember(&mut self, id: OperationId, version: Version, operations_remembered: usize) {
        self.recent.push_back((id, version));
        while self.recent.len() > operations_remembered {
            if let Some((_, forgotten)) = self.recent.pop_front() {
                self.forgotten = forgotten;
            }
        }
    }
}

enum Recalled {
    Done,
    Forgotten,
    New,
}

/// An item as a provider keeps it: present or deleted, with its memory.
///
/// A deleted item with an empty memory need not be kept. One that remembers operations is kept for
/// [`KeyValueLimits::operation_retention_ms`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stored {
    /// The item, if it is there.
    pub item: Option<Arc<Item>>,
    /// The version of the last change, also of the deletion.
    pub version: Version,
    /// Its memory. Boxed because most items remember nothing.
    pub memory: Option<Box<Memory>>,
}

/// The result of an update on a stored item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evaluated {
    /// This item is to be stored.
    Changed(Stored),
    /// No change: the update keeps the item, or an earlier attempt applied it.
    Unchanged,
    /// The condition does not hold.
    Refused,
}

/// Evaluates `update` on `stored`.
///
/// Errors: `Invalid` if an action does not fit its attribute or the result exceeds `limits`;
/// `OutcomeUnknown` if the update is a repeat that may be forgotten.
pub fn evaluate(stored: &Stored, update: &Update, limits: &KeyValueLimits) -> Result<Evaluated> {
    let Update {
        key,
        change,
        condition,
        operation,
        ..
    } = update;
    let change = Cow::Borrowed(change);
    evaluate_once(stored, key, change, (condition, *operation), limits)
}

/// As [`evaluate`], for an update that may be used once, so that an owned change needs no copy. A
/// borrowed one is copied if it is made. `key` names the item in errors.
pub fn evaluate_once(
    stored: &Stored,
    key: &dyn Debug,
    change: Cow<'_, Change>,
    (condition, operation): (&Condition, Option<Operation>),
    limits: &KeyValueLimits,
) -> Result<Evaluated> {
    if let Some(operation) = operation {
        match stored
            .memory
            .as_deref()
            .map_or(Recalled::New, |memory| memory.recall(operation))
        {
            Recalled::Done => return Ok(Evaluated::Unchanged),
            Recalled::Forgotten => {
                return Err(Error::new(
                    ErrorKind::OutcomeUnknown,
                    format!("repeat an operation on {key:?}"),
                ));
            }
            Recalled::New => {}
        }
    }
    if !holds(condition, stored.item.as_deref()) {
        return Ok(Evaluated::Refused);
    }
    let changes_nothing = match *change {
        Change::Keep => true,
        Change::Delete => stored.item.is_none(),
        _ => false,
    };
    if changes_nothing && operation.is_none() {
        return Ok(Evaluated::Unchanged);
    }
    let version = Version(stored.version.0 + 1);
    let item = changed(stored, version, key, change.into_owned())?;
    if let Some(item) = &item
        && item.bytes_len() > limits.item_bytes_max
    {
        let (bytes, limit) = (item.bytes_len(), limits.item_bytes_max);
        return Err(Error::invalid(format!(
            "store {bytes} bytes under {key:?}, where {limit} is the limit"
        )));
    }
    let mut memory = stored.memory.clone();
    if let Some(operation) = operation {
        memory.get_or_insert_default().remember(
            operation.id,
            version,
            limits.operations_remembered,
        );
    }
    Ok(Evaluated::Changed(Stored {
        item,
        version,
        memory,
    }))
}

fn changed(
    stored: &Stored,
    version: Version,
    key: &dyn Debug,
    change: Change,
) -> Result<Option<Arc<Item>>> {
    Ok(match change {
        Change::Delete => None,
        Change::Keep => stored.item.clone(),
        Change::Put(attributes) => Some(Arc::new(Item::from_parts(version, attributes))),
        Change::Modify(actions) => {
            let mut item = stored
                .item
                .as_deref()
                .map_or_else(Item::default, |item| what_stays(item, &actions));
            item.version = version;
            for action in actions {
                apply(&mut item, action).map_err(|name| {
                    let name = name.as_str();
                    Error::invalid(format!(
                        "change {name} of {key:?}, which has another type or would overflow"
                    ))
                })?;
            }
            Some(Arc::new(item))
        }
    })
}

/// The item without the attributes that `actions` set or unset. Their values need no copy.
fn what_stays(item: &Item, actions: &[Action]) -> Item {
    let stays = |(name, _): &&(Name, Value)| {
        let first = actions.iter().find(|action| action.name() == name);
        !matches!(first, Some(Action::Set(..) | Action::Unset(_)))
    };
    let mut attributes = Vec::with_capacity(item.attributes().len() + 1);
    attributes.extend(item.attributes().iter().filter(stays).cloned());
    Item::from_sorted(item.version, attributes)
}

/// Applies an action. If it does not fit the attribute's type or overflows, returns the
/// attribute's name.
fn apply(item: &mut Item, action: Action) -> Result<(), Name> {
    match action {
        Action::Set(name, value) => item.set(name, value),
        Action::Unset(name) => item.unset(name.as_str()),
        Action::Add(name, amount) => match item.attribute_mut(name.as_str()) {
            None => item.set(name, Value::Integer(amount)),
            Some(Value::Integer(integer)) => match integer.checked_add(amount) {
                Some(sum) => *integer = sum,
                None => return Err(name),
            },
            Some(_) => return Err(name),
        },
        Action::Append(name, elements) => {
            let list = list(item, name)?;
            *list = list.iter().cloned().chain(elements).collect();
        }
        Action::RemoveFirst(name, count) => {
            let list = list(item, name)?;
            *list = list[count.min(list.len())..].into();
        }
        Action::RemoveElements(name, elements) => {
            let list = list(item, name)?;
            *list = list
                .iter()
                .filter(|element| !elements.contains(element))
                .cloned()
                .collect();
        }
    }
    Ok(())
}

fn list(item: &mut Item, name: Name) -> Result<&mut Arc<[Bytes]>, Name> {
    if item.attribute(name.as_str()).is_none() {
        item.set(name.clone(), Value::List(Arc::default()));
    }
    match item.attribute_mut(name.as_str()) {
        Some(Value::List(elements)) => Ok(elements),
        _ => Err(name),
    }
}

/// Whether `condition` holds over `item`.
pub fn holds(condition: &Condition, item: Option<&Item>) -> bool {
    match condition {
        Condition::Always => true,
        Condition::Exists => item.is_some(),
        Condition::Absent => item.is_none(),
        Condition::VersionIs(version) => item.is_some_and(|item| item.version == *version),
        Condition::Attribute(name, test) => {
            passes(test, item.and_then(|item| item.attribute(name.as_str())))
        }
        Condition::All(conditions) => conditions.iter().all(|condition| holds(condition, item)),
        Condition::Any(conditions) => conditions.iter().any(|condition| holds(condition, item)),
    }
}

fn passes(test: &Test, value: Option<&Value>) -> bool {
    match (test, value) {
        (Test::Exists, value) => value.is_some(),
        (Test::Absent, value) => value.is_none(),
        (Test::Equals(expected), Some(value)) => expected == value,
        (Test::Differs(other), value) => value != Some(other),
        (Test::Below(bound), Some(Value::Integer(integer))) => integer < bound,
        (Test::Above(bound), Some(Value::Integer(integer))) => integer > bound,
        (Test::ShorterThan(length), Some(Value::List(elements))) => elements.len() < *length,
        (Test::ShorterThan(length), None) => *length > 0,
        _ => false,
    }
}

/// Refuses keys and transactions beyond `limits`, before evaluation.
pub fn check_limits(updates: &[Update], limits: &KeyValueLimits) -> Result<()> {
    if updates.len() > limits.transact_items_max {
        return Err(Error::invalid(format!(
            "transact {} items, where {} is the limit",
            updates.len(),
            limits.transact_items_max
        )));
    }
    let mut keys: Vec<&super::Key> = updates.iter().map(|update| &update.key).collect();
    keys.sort_unstable();
    for pair in keys.windows(2) {
        if pair[0] == pair[1] {
            return Err(Error::invalid(format!(
                "transact two updates of {:?}",
                pair[0]
            )));
        }
        if !limits.transact_across_partitions && pair[0].partition() != pair[1].partition() {
            return Err(Error::invalid(
                "transact across partitions, which this store does not offer",
            ));
        }
    }
    keys.into_iter()
        .try_for_each(|key| check_key(key, limits))?;
    Ok(())
}

/// Refuses a key beyond `limits`.
pub fn check_key(key: &super::Key, limits: &KeyValueLimits) -> Result<()> {
    if key.partition().len() > limits.key_bytes_max || key.sort_len() > limits.key_bytes_max {
        return Err(Error::invalid(format!(
            "use a key longer than {} bytes",
            limits.key_bytes_max
        )));
    }
    Ok(())
}
