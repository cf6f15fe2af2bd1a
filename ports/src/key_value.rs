//! A table of small items, changed one at a time under a condition.
//!
//! An item has a [`Key`] (a partition that places it, and a sort key that orders it within), a [`Version`]
//! that counts its changes, and named attributes. A [`Update`] changes one item atomically in one round
//! trip if its [`Condition`] holds: DynamoDB update expressions, a Redis script, one SQL statement, a local
//! batch. What conditions and actions mean is defined once, in [`evaluate`].
//!
//! Promises
//! - **K1** An update that returned done is seen by every `get`, `scan` and condition that starts later.
//! - **K2** Of two updates conditional on the same state at most one succeeds; the loser is given the item
//!   as it is now.
//! - **K3** Unless its kind is [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown), an error changed nothing.
//! - **K4** Additions, list appends and removals of concurrent updates all count, each once.
//! - **K5** `transact` applies all its updates or none, conditions included.
//! - **K6** `scan` returns the items of one partition in the order of their sort keys, each once; where
//!   [`KeyValueLimits::page_is_snapshot`] says so, a page never shows half a transaction.
//! - **K7** `write_batch` applies a lane's batches in the order of their sequence numbers, each once, however
//!   often it is repeated; a batch that comes early is refused with the lane's cursor.
//! - **K8** An update with an [`Operation`] that is repeated is recognised as done while its item remembers
//!   it; if it may have been forgotten, the answer is `OutcomeUnknown` and nothing changes (rule P2).
//! - **K9** An item's version grows with every change, and does not go back when the item is deleted and
//!   made again while the deleted one's operations are remembered.
//! - **K10** An [`Update::transient`] is like any other for as long as this start of the store lasts: seen, judged and
//!   counted. What a crash may take of it is rule D5.
//! - **K11** [`KeyValue::room`] says that there is room while there is. Where [`KeyValueLimits::tells_room`], it says
//!   that there is not once an update was refused with [`NoRoom`](crate::ErrorKind::NoRoom), until there is again;
//!   meanwhile items are read, and changed by transient updates that make them no larger.
//! - **K12** A receipt's [`Cost`](crate::Cost) is what that says, of every answer.
//!
//! Not promised: an order between partitions, or durability before
//! [`Externalize::externalize`](crate::Externalize::externalize). Nor does a point say anything of transient updates
//! (D1, D2, D4): after a crash, versions and values that they gave may be given again to other states of the item, so
//! that whoever remembers one, in a condition or in another item, must not take it for the same.
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

/// What a read saw, and the store's position at the read (rule P4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read<T> {
    /// What was there.
    pub value: T,
    /// Everything the answer rests on lies at or before this point.
    pub point: DurabilityPoint,
}

/// How a conditional update ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was applied; the item as it is after it, none if it was deleted.
    Done(Option<Arc<Item>>),
    /// The condition did not hold; the item as it is (K2).
    Conflict(Option<Arc<Item>>),
}

/// An update's outcome with its receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Updated {
    /// How it ended.
    pub outcome: Outcome,
    /// What it cost and where it stands.
    pub receipt: Receipt,
}

/// How a transaction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transacted {
    /// All updates were applied; the items after them, in the order of the updates.
    Done {
        /// The items after it.
        items: Vec<Option<Arc<Item>>>,
        /// What it cost and where it stands.
        receipt: Receipt,
    },
    /// None was applied, because this one's condition did not hold.
    Conflict {
        /// Its place among the updates.
        index: usize,
        /// Its item as it is.
        item: Option<Arc<Item>>,
        /// What asking cost, and what the answer rests on (D6).
        receipt: Receipt,
    },
}

/// Which part of a partition to scan, and how much of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// The partition.
    pub partition: Bytes,
    /// The first sort key, included; empty: from the start.
    pub from: Bytes,
    /// The first sort key no longer included; none: to the end.
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
    /// Where the next page starts, if there may be more.
    pub next: Option<Bytes>,
}

/// One step of a lane: an ordered stream of batches, each applied once (K7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The lane's name; its cursor lives in the store.
    pub lane: Bytes,
    /// One above the lane's cursor, or the batch is refused or recognised as done.
    pub sequence: u64,
    /// Applied together, unconditionally.
    pub changes: Vec<(Key, Change)>,
}

/// How a batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batched {
    /// Applied now.
    Done(Receipt),
    /// Applied before: the lane's cursor had passed it.
    Repeat(Receipt),
    /// Refused: batches before it are missing; the lane's cursor.
    Early {
        /// The last sequence applied.
        cursor: u64,
        /// What asking cost, and what the answer rests on (D6).
        receipt: Receipt,
    },
}

/// What a key-value provider cannot exceed. Callers split or refuse work by it, tests choose cases by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyValueLimits {
    /// The longest partition, and the longest sort key.
    pub key_bytes_max: usize,
    /// The largest item, its attributes' names and values together.
    pub item_bytes_max: usize,
    /// The most updates in one [`KeyValue::transact`].
    pub transact_items_max: usize,
    /// Whether they may lie in several partitions.
    pub transact_across_partitions: bool,
    /// The most changes in one [`KeyValue::write_batch`].
    pub batch_items_max: usize,
    /// The most items a page holds, whatever was asked for.
    pub page_items_max: usize,
    /// Whether a page never shows half a transaction (K6).
    pub page_is_snapshot: bool,
    /// How many operation ids an item remembers (K8): at least 64.
    pub operations_remembered: usize,
    /// How long a deleted item's operations are remembered.
    pub operation_retention_ms: u64,
    /// Whether [`KeyValue::room`] knows when the store is full (K11).
    pub tells_room: bool,
}

/// What a store still takes (rule P6). Least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Room {
    /// The very last of its reserve, which is for ending and finishing what has begun.
    Exhausted,
    /// Less than half of its reserve, which is for what keeps going what is there, such as sessions and leases.
    Critical,
    /// Its reserve alone: changes that add little or nothing for good, such as deleting.
    Scarce,
    /// Everything.
    #[default]
    Free,
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
    /// Errors: `Invalid` if a limit is exceeded or an action does not fit an attribute's type; `NoRoom`;
    /// `OutcomeUnknown`.
    async fn update(&self, update: Update) -> Result<Updated>;

    /// Applies all updates or none (K5), each to another item.
    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted>;

    /// Applies a lane's next batch (K7).
    async fn write_batch(&self, batch: Batch) -> Result<Batched>;

    /// What this provider cannot exceed.
    fn limits(&self) -> &KeyValueLimits;

    /// What it still takes (K11). A store that knows when it will be full keeps a reserve, which services may have been
    /// given for what must go on; they ask before they begin what would use it up. It costs no round trip: a store
    /// that cannot tell says that there is room, and refuses with `NoRoom`.
    fn room(&self) -> Room;
}

/// A shared key-value port.
pub type SharedKeyValue = Arc<dyn KeyValue>;
