//! What an update asks for: a change, a condition, and the id that makes a repeat recognisable.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Key, Name, Value, Version};
use crate::{DurabilityPoint, queue::Retention};

/// A change to one item if a condition over that item holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The item.
    pub key: Key,
    /// What to do to it.
    pub change: Change,
    /// When.
    pub condition: Condition,
    /// Makes a repeat recognisable (K8).
    pub operation: Option<Operation>,
    /// What it rests on: refused where the store has lost that (D4). A caller that lives on while its store goes back
    /// to an earlier state would else decide by what it has seen and the store has not.
    pub basis: DurabilityPoint,
    /// Whether it must survive a crash of the store once it is durable.
    pub retention: Retention,
}

impl Update {
    /// Applies `actions` to the item, making it if it is not there.
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

    /// Changes nothing; in a transaction, only its condition counts.
    pub fn check(key: Key, condition: Condition) -> Self {
        Self::of(key, Change::Keep).when(condition)
    }

    /// Makes `change` to the item, whatever it is like.
    pub fn of(key: Key, change: Change) -> Self {
        let (condition, operation, basis) = (Condition::Always, None, DurabilityPoint::DURABLE);
        Self {
            key,
            change,
            condition,
            operation,
            basis,
            retention: Retention::Durable,
        }
    }

    /// The same update, which a crash of the store may take, also where what was ordered after it survives (D5, K10). A
    /// store with a journal of its own saves writing it, and so takes it when its disk is full; others keep it.
    pub fn transient(mut self) -> Self {
        self.retention = Retention::Transient;
        self
    }

    /// The same update, refused where the store has lost what was there at `basis` (D4).
    pub fn resting_on(mut self, basis: DurabilityPoint) -> Self {
        self.basis = basis;
        self
    }

    /// The same update under `condition`.
    pub fn when(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    /// The same update, recognisable when repeated. `known` is the version of the item that the first
    /// attempt knew (zero: none); a repeat carries the same one.
    pub fn as_operation(mut self, id: OperationId, known: Version) -> Self {
        self.operation = Some(Operation { id, known });
        self
    }
}

/// What an update does to its item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Applies these, in order; an item that is not there starts empty.
    Modify(Vec<Action>),
    /// Replaces all attributes by these.
    Put(Vec<(Name, Value)>),
    /// Removes the item.
    Delete,
    /// Leaves it as it is.
    Keep,
}

/// One step of [`Change::Modify`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Sets an attribute.
    Set(Name, Value),
    /// Adds to an integer; an absent one counts as zero.
    Add(Name, i64),
    /// Appends elements to a list; an absent one counts as empty.
    Append(Name, Vec<Bytes>),
    /// Removes the first elements of a list, as many as there are at most.
    RemoveFirst(Name, usize),
    /// Removes every element equal to one of these from a list.
    RemoveElements(Name, Vec<Bytes>),
    /// Removes an attribute.
    Unset(Name),
}

impl Action {
    /// The attribute that it is about.
    pub(super) fn name(&self) -> &Name {
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

/// When an update applies, judged over its item alone.
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
    /// An attribute passes a test; an item that is not there has no attributes.
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

/// What is asked of one attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// It is there.
    Exists,
    /// It is not there.
    Absent,
    /// It is there and equal to this.
    Equals(Value),
    /// It is not there, or another than this.
    Differs(Value),
    /// It is an integer below this.
    Below(i64),
    /// It is an integer above this.
    Above(i64),
    /// It is a list with fewer elements than this, or not there.
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

/// Names one operation for ever: drawn from 128 random bits, or derived from something unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OperationId(pub u128);

/// What makes a repeat recognisable (K8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The same for every attempt.
    pub id: OperationId,
    /// The version of the item the first attempt knew; zero if it knew of none.
    pub known: Version,
}
