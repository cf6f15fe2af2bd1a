//! An update: a change, a condition, and the id that makes a repeat recognisable.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Key, Name, Value, Version};
use crate::{DurabilityPoint, queue::Retention};

/// A change to one item if a condition over that item holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The item.
    pub key: Key,
    /// The change.
    pub change: Change,
    /// The condition.
    pub condition: Condition,
    /// Makes a repeat recognisable (K8).
    pub operation: Option<Operation>,
    /// The point that the update depends on. The update is refused if the store has lost it (D4).
    /// Without this, a caller that outlives its store's return to an earlier state would act on
    /// data that the store no longer has.
    pub depends_on: DurabilityPoint,
    /// Whether it must survive a crash of the store once it is durable.
    pub retention: Retention,
}

impl Update {
    /// Applies `actions` to the item, and makes it if it is missing.
    pub fn modify(key: Key, actions: Vec<Action>) -> Self {
        Self::of(key, Change::Modify(actions))
    }

    /// Replaces the whole item by these attributes.
    pub fn put(key: Key, attributes: Vec<(Name, Value)>) -> Self {
        Self::of(key, Change::Put(attributes))
    }

    /// Deletes the item.
    pub fn delete(key: Key) -> Self {
        Self::of(key, Change::Delete)
    }

    /// Changes nothing. In a transaction, only its condition matters.
    pub fn check(key: Key, condition: Condition) -> Self {
        Self::of(key, Change::Keep).when(condition)
    }

    /// Makes `change` to the item unconditionally.
    pub fn of(key: Key, change: Change) -> Self {
        Self {
            key,
            change,
            condition: Condition::Always,
            operation: None,
            depends_on: DurabilityPoint::DURABLE,
            retention: Retention::Durable,
        }
    }

    /// Makes the update transient: a crash of the store may take it, even if later changes survive
    /// (D5, K10). A store with a journal of its own saves writing it, and therefore accepts it
    /// even when its disk is full. Other stores keep it.
    pub fn transient(mut self) -> Self {
        self.retention = Retention::Transient;
        self
    }

    /// Makes the update depend on `point`: it is refused if the store has lost that (D4).
    pub fn depends_on(mut self, point: DurabilityPoint) -> Self {
        self.depends_on = point;
        self
    }

    /// Applies the update only under `condition`.
    pub fn when(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    /// Makes a repeat of the update recognisable. `known` is the version of the item that the first
    /// attempt knew (zero: none). A repeat carries the same one.
    pub fn as_operation(mut self, id: OperationId, known: Version) -> Self {
        self.operation = Some(Operation { id, known });
        self
    }
}

/// The effect of an update on its item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Applies these, in order. A missing item starts empty.
    Modify(Vec<Action>),
    /// Replaces all attributes by these.
    Put(Vec<(Name, Value)>),
    /// Removes the item.
    Delete,
    /// Leaves the item unchanged.
    Keep,
}

/// One step of [`Change::Modify`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Sets an attribute.
    Set(Name, Value),
    /// Adds to an integer. A missing one counts as zero.
    Add(Name, i64),
    /// Appends elements to a list. A missing one counts as empty.
    Append(Name, Vec<Bytes>),
    /// Removes the first elements of a list, or all if it has fewer.
    RemoveFirst(Name, usize),
    /// Removes every element equal to one of these from a list.
    RemoveElements(Name, Vec<Bytes>),
    /// Removes an attribute.
    Unset(Name),
}

impl Action {
    /// The attribute that the action changes.
    pub fn name(&self) -> &Name {
        match self {
            Self::Set(name, _)
            | Self::Add(name, _)
            | Self::Append(name, _)
            | Self::RemoveFirst(name, _)
            | Self::RemoveElements(name, _)
            | Self::Unset(name) => name,
        }
    }

    /// Sets `name` to bytes.
    pub fn set(name: impl Into<Name>, value: impl Into<Bytes>) -> Self {
        Self::Set(name.into(), Value::Bytes(value.into()))
    }

    /// Sets `name` to an integer.
    pub fn set_integer(name: impl Into<Name>, value: i64) -> Self {
        Self::Set(name.into(), Value::Integer(value))
    }

    /// Removes `name`.
    pub fn unset(name: impl Into<Name>) -> Self {
        Self::Unset(name.into())
    }
}

/// When an update applies, decided by its item alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Condition {
    /// Always.
    #[default]
    Always,
    /// The item is there.
    Exists,
    /// The item is not there.
    Absent,
    /// The item is at this version.
    VersionIs(Version),
    /// An attribute passes a test. A missing item has no attributes.
    Attribute(Name, Test),
    /// All of these hold.
    All(Vec<Condition>),
    /// One of these holds.
    Any(Vec<Condition>),
}

impl Condition {
    /// Attribute `name` passes `test`.
    pub fn attribute(name: impl Into<Name>, test: Test) -> Self {
        Self::Attribute(name.into(), test)
    }
}

/// A test of one attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// It is present.
    Exists,
    /// It is absent.
    Absent,
    /// It is present and equal to this.
    Equals(Value),
    /// It is absent or differs from this.
    Differs(Value),
    /// It is an integer below this.
    Below(i64),
    /// It is an integer above this.
    Above(i64),
    /// It is absent, or a list with fewer elements than this.
    ShorterThan(usize),
}

impl Test {
    /// It is these bytes.
    pub fn is(value: impl Into<Bytes>) -> Self {
        Self::Equals(Value::Bytes(value.into()))
    }

    /// It is this integer.
    pub fn is_integer(value: i64) -> Self {
        Self::Equals(Value::Integer(value))
    }
}

/// Names one operation, and never another: 128 random bits, or bytes derived from a unique name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OperationId(pub u128);

/// Makes a repeat recognisable (K8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The same for every attempt.
    pub id: OperationId,
    /// The version of the item that the first attempt knew. Zero if it knew of none.
    pub known: Version,
}
