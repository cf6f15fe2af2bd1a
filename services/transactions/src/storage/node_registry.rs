//! The rows of nodes: their existence, the state of their logs, where a resolver begins, and how
//! far collection is.
//!
//! Invariants
//! - An id is given once: the counter is durably above it before it is used.
//! - A node's row exists before its log is written to, so that a list of the rows covers every log.
//! - A row's state only grows: *live*, *resolved*, *trimmed*. A state for logs that are only sealed
//!   could be added.
//! - A node records that it has *left* once its log names all that it wrote and it writes no more,
//!   and only while no other node has taken over its log.
//! - Rows are noted as dropped before they are dropped.

use std::sync::Arc;

use bytes::Bytes;
use ports::{
    Condition, Item, Update,
    key_value::{Action, Outcome, Scan, Test},
};
use primitives::{AtomicCounter, Cursor, Epoch, SlotIndex};

use crate::{
    Error, Result,
    model::{Address, NodeId, Timestamp},
    storage::{layout, store::Store},
};

const STATE: &str = "state";
const STARTED: &str = "started";
const ADDRESS: &str = "address";
const SLOT: &str = "slot";
const EPOCH: &str = "epoch";
const TIMESTAMP: &str = "timestamp";
const SENT: &str = "sent";
const COLLECTED: &str = "collected";
const COLLECTED_EPOCH: &str = "collected-epoch";
const DROPPED: &str = "dropped";
const SWEPT: &str = "swept";
const LEFT: &str = "left";

const LIVE: i64 = 1;
const RESOLVED: i64 = 4;
const TRIMMED: i64 = 5;

/// Rows read in one page.
const PAGE_ROWS: usize = 1_000;

/// The contents of a node's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeRow {
    pub(crate) node: NodeId,
    /// Whether every entry of its log is decided.
    pub(crate) is_resolved: bool,
    /// Whether its outbox is empty.
    pub(crate) is_sent: bool,
    /// Whether its log is trimmed completely.
    pub(crate) is_trimmed: bool,
    /// Whether its log names all its data: it shut down in order, or the store was swept for it.
    pub(crate) is_swept: bool,
    /// The collector has passed everything before it; `None` if nothing was noted.
    pub(crate) collected: Option<Cursor>,
    /// Everything before it in the log is done.
    pub(crate) done: Cursor,
    /// The highest timestamp given up to there; for a resolved log, of all.
    pub(crate) timestamp: Timestamp,
}

/// Takes an id that no node has had.
pub(crate) async fn take_id(store: &Store) -> Result<NodeId> {
    let counter = AtomicCounter::new(store.key_value().clone(), layout::node_counter());
    // Ids need not be dense, so a lost answer only skips one.
    let counted = store.again(|| counter.add(1)).await?;
    let node = u32::try_from(counted.value)
        .ok()
        .map(NodeId)
        .filter(|node| *node <= NodeId::MAX);
    node.ok_or_else(|| Error::Corrupt("the store has no node ids left".into()))
}

/// Writes a row: from now on every list of the nodes counts `node`, and holds its address.
pub(crate) async fn put_row(
    store: &Store,
    node: NodeId,
    started: ports::Timestamp,
    address: &Address,
) -> Result<()> {
    let mut row = vec![
        Action::set_integer(STATE, LIVE),
        Action::set_integer(STARTED, started.0 as i64),
    ];
    if *address != Address::default() {
        row.push(Action::set(ADDRESS, address.0.clone().into_bytes()));
    }
    let (_, point) = store
        .update(Update::modify(layout::node(node), row).when(Condition::Absent))
        .await?;
    store.externalize(point).await
}

/// Reads a node's row; `None` if there is none.
pub(crate) async fn get(store: &Store, node: NodeId) -> Result<Option<NodeRow>> {
    let row = store.get(&layout::node(node)).await?.value;
    Ok(row.map(|item| NodeRow::decode(node, &item)))
}

/// Every node there ever was.
pub(crate) async fn list(store: &Store) -> Result<Vec<NodeRow>> {
    list_from(store, NodeId::default()).await
}

/// Every node from `first` on.
pub(crate) async fn list_from(store: &Store, first: NodeId) -> Result<Vec<NodeRow>> {
    let mut scan = Scan::partition(layout::NODES, PAGE_ROWS);
    scan.from = layout::node(first).sort().clone();
    let (items, _) = store.scan_all(scan).await?;
    let decode = |(sort, item): (Bytes, Arc<Item>)| {
        let node = layout::node_of(&sort);
        let node = node.ok_or_else(|| Error::Corrupt("decode a node's key".into()))?;
        Ok(NodeRow::decode(node, &item))
    };
    items.into_iter().map(decode).collect()
}

/// Publishes how far a live node's log is done, so that its successor need not read it from the
/// start.
pub(crate) async fn publish(store: &Store, row: NodeRow) -> Result<()> {
    let is_live = Condition::attribute(STATE, Test::is_integer(LIVE));
    store
        .finish(&Update::modify(layout::node(row.node), progress(row)).when(is_live))
        .await
        .map(drop)
}

/// Notes that a node's log needs no more work, and that nothing will be added to it.
pub(crate) async fn mark_resolved(store: &Store, row: NodeRow) -> Result<()> {
    let mut actions = progress(row);
    actions.push(Action::set_integer(STATE, RESOLVED));
    note(store, row.node, actions).await
}

/// Notes that a node's outbox is empty, and that nothing will be added to it.
pub(crate) async fn mark_sent(store: &Store, node: NodeId) -> Result<()> {
    note(store, node, vec![Action::set_integer(SENT, 1)]).await
}

/// Notes that the collector has passed everything before `collected` in a node's log.
pub(crate) async fn note_collected(store: &Store, node: NodeId, collected: Cursor) -> Result<()> {
    let actions = vec![
        Action::set_integer(COLLECTED, collected.next.0 as i64),
        Action::set_integer(COLLECTED_EPOCH, collected.epoch.0 as i64),
    ];
    note(store, node, actions).await
}

/// Notes that the rows of a node's generated and random ids, up to this attempt, may be dropped
/// from now on.
pub(crate) async fn note_dropped(store: &Store, node: NodeId, sequence: u64) -> Result<()> {
    // Two tasks note it: one for the node's log, and one, which expires keys, for those beyond the
    // log.
    let is_news = [Test::Absent, Test::Below(sequence as i64)]
        .map(|test| Condition::attribute(DROPPED, test));
    let is_news = Condition::All(vec![Condition::Exists, Condition::Any(is_news.into())]);
    let note = Update::modify(
        layout::node(node),
        vec![Action::set_integer(DROPPED, sequence as i64)],
    );
    store.finish(&note.when(is_news)).await.map(drop)
}

/// The attempt up to which rows of a node's generated and random ids may have been dropped.
pub(crate) async fn dropped_through(store: &Store, node: NodeId) -> Result<u64> {
    let row = store.get(&layout::node(node)).await?.value;
    Ok(row.and_then(|item| natural(&item, DROPPED)).unwrap_or(0))
}

/// Whether no other node has taken over a node's log.
pub(crate) async fn is_live(store: &Store, node: NodeId) -> Result<bool> {
    let row = store.get(&layout::node(node)).await?.value;
    Ok(row.is_some_and(|item| item.integer(STATE) == Some(LIVE)))
}

/// The address of a node whose log is not resolved; `None` if it is gone, or not reachable by
/// others.
pub(crate) async fn address_of(store: &Store, node: NodeId) -> Result<Option<Address>> {
    let row = store.get(&layout::node(node)).await?.value;
    let row = row.filter(|item| item.integer(STATE) == Some(LIVE));
    Ok(row
        .and_then(|item| String::from_utf8(item.bytes(ADDRESS)?.to_vec()).ok())
        .map(Address))
}

/// Notes that a node's log is trimmed completely.
pub(crate) async fn mark_trimmed(store: &Store, node: NodeId) -> Result<()> {
    note(store, node, vec![Action::set_integer(STATE, TRIMMED)]).await
}

/// Notes that the store was swept for a node's unlogged data.
pub(crate) async fn mark_swept(store: &Store, node: NodeId) -> Result<()> {
    note(store, node, vec![Action::set_integer(SWEPT, 1)]).await
}

/// Notes that a node's log names all that it wrote, and that it writes no more. Returns false if
/// another node has taken over.
pub(crate) async fn mark_left(store: &Store, node: NodeId) -> Result<bool> {
    let is_live = Condition::attribute(STATE, Test::is_integer(LIVE));
    let update =
        Update::modify(layout::node(node), vec![Action::set_integer(LEFT, 1)]).when(is_live);
    let (outcome, point) = store.finish(&update).await?;
    store.externalize(point).await?;
    Ok(matches!(outcome, Outcome::Done(_)))
}

async fn note(store: &Store, node: NodeId, actions: Vec<Action>) -> Result<()> {
    store
        .finish(&Update::modify(layout::node(node), actions).when(Condition::Exists))
        .await
        .map(drop)
}

fn natural(item: &Item, name: &str) -> Option<u64> {
    item.integer(name)
        .and_then(|value| u64::try_from(value).ok())
}

fn progress(row: NodeRow) -> Vec<Action> {
    vec![
        Action::set_integer(SLOT, row.done.next.0 as i64),
        Action::set_integer(EPOCH, row.done.epoch.0 as i64),
        Action::set_integer(TIMESTAMP, row.timestamp.0 as i64),
    ]
}

impl NodeRow {
    /// The row of a node whose log is done up to a point.
    pub(crate) fn new(node: NodeId, done: Cursor, timestamp: Timestamp) -> Self {
        Self {
            node,
            is_resolved: false,
            is_sent: false,
            is_trimmed: false,
            is_swept: false,
            collected: None,
            done,
            timestamp,
        }
    }

    fn decode(node: NodeId, item: &Item) -> Self {
        let cursor = |slot, epoch| {
            let (next, epoch) = (natural(item, slot)?, natural(item, epoch)?);
            Some(Cursor {
                next: SlotIndex(next),
                epoch: Epoch(epoch),
            })
        };
        let state = item.integer(STATE).unwrap_or(LIVE);
        Self {
            node,
            is_resolved: state >= RESOLVED,
            is_trimmed: state >= TRIMMED,
            is_sent: item.integer(SENT).is_some(),
            is_swept: item.integer(SWEPT).or(item.integer(LEFT)).is_some(),
            collected: cursor(COLLECTED, COLLECTED_EPOCH),
            done: cursor(SLOT, EPOCH).unwrap_or(Cursor::START),
            timestamp: Timestamp(natural(item, TIMESTAMP).unwrap_or(0)),
        }
    }
}
