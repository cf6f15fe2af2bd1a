//! A table of small items, changed one at a time under a condition.
//!
//! An item has a [`Key`] (a partition that places it, and a sort key that orders it there), a
//! [`Version`] that counts its changes, and named attributes. An [`Update`] changes one item
//! atomically in one round trip if its [`Condition`] holds: by a DynamoDB update expression, a
//! Redis script, one SQL statement or a local batch. [`evaluate`] is the one definition of
//! conditions and actions.
//!
//! Promises
//! - **K1** Every `get`, `scan` and condition that starts after an update returned done sees that
//!   update.
//! - **K2** Of two updates conditional on the same state at most one succeeds. The loser receives
//!   the present item.
//! - **K3** Unless its kind is [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown), an error
//!   changed nothing.
//! - **K4** Additions, list appends and removals of concurrent updates all count, each once.
//! - **K5** `transact` applies all its updates or none, conditions included.
//! - **K6** `scan` returns the items of one partition in the order of their sort keys, each once.
//!   If [`KeyValueLimits::page_is_snapshot`], a page never shows half a transaction.
//! - **K8** A repeated update with an [`Operation`] is recognised as done while its item remembers
//!   the operation. If the item may have forgotten it, the answer is `OutcomeUnknown` and nothing
//!   changes (rule P2).
//! - **K9** An item's version grows with every change. It does not go back when the item is deleted
//!   and made again while the deleted item's operations are remembered.
//! - **K10** An [`Update::transient`] is like any other until the store restarts: reads and
//!   conditions see it. Rule D5 says what a crash may take of it.
//! - **K11** [`KeyValue::has_room`] is true while there is room. If
//!   [`KeyValueLimits::tells_room`], it is false after an update was refused with
//!   [`NoRoom`](crate::ErrorKind::NoRoom), until there is room again. Meanwhile items can be read,
//!   and transient updates that make them no larger succeed.
//!
//! Not promised: an order between partitions, or durability before
//! [`Externalize::externalize`](crate::Externalize::externalize). Points do not cover transient
//! updates either (D1, D2, D4). After a crash, the store may give their versions and values again
//! to other states of the item. A caller that remembers one, in a condition or in another item,
//! must not take it for the same state.
//!
//! The shape follows `faaskeeper.txt`, section 2.2 (synchronisation primitives in one write each).

pub mod evaluate;
mod item;
mod update;

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;

pub use item::{Item, Key, Name, Value, Version};
pub use update::{Action, Change, Condition, Operation, OperationId, Test, Update};

use crate::{DurabilityPoint, Externalize, Receipt, Result};

/// The result of a read, and the store's position at the read (rule P4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read<T> {
    /// The value that was read.
    pub value: T,
    /// The answer depends on nothing after this point.
    pub point: DurabilityPoint,
}

impl<T> Read<T> {
    /// An answer that is durable already.
    pub fn durable(value: T) -> Self {
        let point = DurabilityPoint::DURABLE;
        Self { value, point }
    }
}

/// How a conditional update ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Applied. Contains the item after the update, or none if the update deleted it.
    Done(Option<Arc<Item>>),
    /// The condition did not hold. Contains the present item (K2).
    Conflict(Option<Arc<Item>>),
}

/// An update's outcome with its receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Updated {
    /// The outcome.
    pub outcome: Outcome,
    /// The point.
    pub receipt: Receipt,
}

/// How a transaction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transacted {
    /// All updates were applied.
    Done {
        /// The items after the transaction, in the order of the updates.
        items: Vec<Option<Arc<Item>>>,
        /// The point.
        receipt: Receipt,
    },
    /// None was applied, because the condition of one did not hold.
    Conflict {
        /// The index of that update.
        index: usize,
        /// The present item of that update.
        item: Option<Arc<Item>>,
        /// The point that the refusal depends on (D6).
        receipt: Receipt,
    },
}

/// Which part of a partition to scan, and how much of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// The partition.
    pub partition: Bytes,
    /// The first sort key, inclusive. Empty: from the start.
    pub from: Bytes,
    /// The last sort key, exclusive. None: to the end.
    pub until: Option<Bytes>,
    /// The most items in the page.
    pub items_max: usize,
}

impl Scan {
    /// A whole partition, `items_max` items to a page.
    pub fn partition(partition: impl Into<Bytes>, items_max: usize) -> Self {
        Self {
            partition: partition.into(),
            from: Bytes::new(),
            until: None,
            items_max,
        }
    }
}

/// Items of one partition in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The items with their sort keys.
    pub items: Vec<(Bytes, Arc<Item>)>,
    /// Where the next page starts, if there may be one.
    pub next: Option<Bytes>,
}

/// The limits of a key-value provider. Callers split or refuse work by them, and tests choose
/// cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyValueLimits {
    /// The longest partition, and the longest sort key.
    pub key_bytes_max: usize,
    /// The largest item, with the names and values of its attributes.
    pub item_bytes_max: usize,
    /// The most updates in one [`KeyValue::transact`].
    pub transact_items_max: usize,
    /// Whether these may be in several partitions.
    pub transact_across_partitions: bool,
    /// The most items in a page, even if the caller asked for more.
    pub page_items_max: usize,
    /// Whether a page never shows half a transaction (K6).
    pub page_is_snapshot: bool,
    /// How many operation ids an item remembers (K8): at least 64.
    pub operations_remembered: usize,
    /// How long a deleted item's operations are remembered.
    pub operation_retention_ms: u64,
    /// Whether [`KeyValue::has_room`] reports a full store (K11).
    pub tells_room: bool,
}

/// A strongly consistent store of items.
#[async_trait]
pub trait KeyValue: Externalize {
    /// The item under `key`, if there is one.
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>>;

    /// One page of one partition, in order (K6).
    async fn scan(&self, scan: &Scan) -> Result<Read<Page>>;

    /// Changes one item if its condition holds (K2, K4, K8).
    ///
    /// Errors: `Invalid` if a limit is exceeded or an action does not fit an attribute's type;
    /// `NoRoom`; `OutcomeUnknown`.
    async fn update(&self, update: Update) -> Result<Updated>;

    /// Applies all updates or none (K5). Each changes a different item.
    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted>;

    /// The provider's limits.
    fn limits(&self) -> &KeyValueLimits;

    /// Whether the store takes changes that add to it (K11). A store that can tell when it will be
    /// full keeps a reserve. Services that may use it call this before they start work that adds,
    /// and leave the reserve to deletions and to the end of running work. The call costs no round
    /// trip. A store that cannot tell returns true, and refuses with `NoRoom`.
    fn has_room(&self) -> bool;
}

/// A shared key-value port.
pub type SharedKeyValue = Arc<dyn KeyValue>;
