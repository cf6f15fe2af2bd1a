//! The rows of nodes: who there was, whose log is resolved, and where a log's resolver may begin.
//!
//! Invariants
//! - An id is given once: the counter stands durably above it before it is used.
//! - A node's row is there before its log is written to, so that whoever lists the rows knows every log.
//! - A row's state only grows. Between *live* and *resolved* there is room for nodes that leave and for logs that
//!   are only sealed.

use ports::{
    Condition, Item, Update,
    key_value::{Action, Scan, Test},
};
use primitives::{AtomicCounter, Cursor, Epoch, SlotIndex};

use crate::{
    Error, Result, layout,
    model::{NodeId, Timestamp},
    store::Store,
};

const STATE: &str = "state";
const STARTED: &str = "started";
const SLOT: &str = "slot";
const EPOCH: &str = "epoch";
const TIMESTAMP: &str = "timestamp";
const SENT: &str = "sent";

const LIVE: i64 = 1;
const RESOLVED: i64 = 4;

/// Rows read in one page.
const PAGE_ROWS: usize = 1_000;

/// What a node's row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeRow {
    pub(crate) node: NodeId,
    /// Whether nothing is left to do for its log.
    pub(crate) is_resolved: bool,
    /// Whether nothing is left of its outbox.
    pub(crate) is_sent: bool,
    /// Everything before it in the log is done.
    pub(crate) done: Cursor,
    /// The highest timestamp given up to there; for a resolved log, of all.
    pub(crate) timestamp: Timestamp,
}

/// Takes an id that nobody has had, and puts its row.
pub(crate) async fn register(store: &Store, started: ports::Timestamp) -> Result<NodeId> {
    let counter = AtomicCounter::new(store.key_value().clone(), layout::node_counter());
    // Ids need not be dense, so an answer that was lost costs one.
    let counted = store.again(|| counter.add(1)).await?;
    let node = u32::try_from(counted.value).ok().map(NodeId).filter(|node| *node <= NodeId::MAX);
    let node = node.ok_or_else(|| Error::Corrupt("the store has no node ids left".into()))?;
    let row = vec![Action::set_integer(STATE, LIVE), Action::set_integer(STARTED, started.0 as i64)];
    let (_, point) = store.update(Update::modify(layout::node(node), row).when(Condition::Absent)).await?;
    store.externalize(point).await?;
    Ok(node)
}

/// Every node there ever was.
pub(crate) async fn list(store: &Store) -> Result<Vec<NodeRow>> {
    let mut scan = Scan::partition(layout::NODES, PAGE_ROWS);
    let mut rows = Vec::new();
    loop {
        let page = store.scan(&scan).await?.value;
        for (sort, item) in page.items {
            let node = layout::node_of(&sort).ok_or_else(|| Error::Corrupt("decode a node's key".into()))?;
            rows.push(NodeRow::decode(node, &item));
        }
        match page.next {
            Some(next) => scan.from = next,
            None => return Ok(rows),
        }
    }
}

/// A live node says how far its log is done, so that its successor need not read it from the start.
pub(crate) async fn publish(store: &Store, row: NodeRow) -> Result<()> {
    let is_live = Condition::attribute(STATE, Test::is_integer(LIVE));
    store.finish(&Update::modify(layout::node(row.node), progress(row)).when(is_live)).await.map(drop)
}

/// Nothing is left to do for a node's log, and nothing will be added to it.
pub(crate) async fn mark_resolved(store: &Store, row: NodeRow) -> Result<()> {
    let mut actions = progress(row);
    actions.push(Action::set_integer(STATE, RESOLVED));
    store.finish(&Update::modify(layout::node(row.node), actions).when(Condition::Exists)).await.map(drop)
}

/// Nothing is left of a node's outbox, and nothing will be added to it.
pub(crate) async fn mark_sent(store: &Store, node: NodeId) -> Result<()> {
    let actions = vec![Action::set_integer(SENT, 1)];
    store.finish(&Update::modify(layout::node(node), actions).when(Condition::Exists)).await.map(drop)
}

fn progress(row: NodeRow) -> Vec<Action> {
    vec![
        Action::set_integer(SLOT, row.done.next.0 as i64),
        Action::set_integer(EPOCH, row.done.epoch.0 as i64),
        Action::set_integer(TIMESTAMP, row.timestamp.0 as i64),
    ]
}

impl NodeRow {
    fn decode(node: NodeId, item: &Item) -> Self {
        let natural = |name| item.integer(name).and_then(|value| u64::try_from(value).ok());
        let done = match (natural(SLOT), natural(EPOCH)) {
            (Some(next), Some(epoch)) => Cursor { next: SlotIndex(next), epoch: Epoch(epoch) },
            _ => Cursor::START,
        };
        let is_resolved = item.integer(STATE) == Some(RESOLVED);
        let is_sent = item.integer(SENT).is_some();
        Self { node, is_resolved, is_sent, done, timestamp: Timestamp(natural(TIMESTAMP).unwrap_or(0)) }
    }
}
