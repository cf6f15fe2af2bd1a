//! What stands in the store: decision rows, version items, and what the nodes' logs announce.
//!
//! Read from the items themselves, not through an engine: what an engine would hide is what is looked for.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ports::{
    Item,
    key_value::{Scan, SharedKeyValue},
};
use primitives::{Cursor, FencedLog};
use transactions::{
    layout,
    model::{Attempt, Key, KeyspaceId, NodeId, TransactionId},
    records::{Entry, Place, StoredRecord, StoredSlot, Write, WriteSet, decode},
};

use super::history::{Order, Writer};

/// Items read in one page.
const PAGE_ITEMS: usize = 1_000;

/// How a row was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Not yet.
    Undecided,
    /// Committed, with this record and what it wrote.
    Committed(StoredRecord, Vec<Write>),
    /// Not committed, and not to be: aborted or expired.
    Closed,
}

/// A decision row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Whose it is.
    pub attempt: Attempt,
    /// What it says.
    pub decision: Decision,
}

/// A version item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionAtRest {
    /// Whose row decides about it.
    pub id: TransactionId,
    /// The value; none: the key is deleted.
    pub value: Option<Bytes>,
}

/// Everything of transactions that stands in a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AtRest {
    /// The decision rows.
    pub rows: BTreeMap<TransactionId, Row>,
    /// The version items, decided or not.
    pub versions: BTreeMap<(Key, Attempt), VersionAtRest>,
    /// The attempts whose commits were announced in a log, and of what.
    pub announced: BTreeMap<Attempt, TransactionId>,
    /// The attempts whose named begins were announced in a log.
    pub began: BTreeSet<Attempt>,
    /// The newest committed value of each key, as a node shows it after all is over.
    pub shown: BTreeMap<Key, Option<Bytes>>,
}

impl AtRest {
    /// Reads all of it from a store that is calm; what a node shows is not in it yet.
    pub async fn read(store: &SharedKeyValue) -> Self {
        let mut at_rest = Self::default();
        for bucket in (0..layout::BUCKET_COUNT).map(|bucket| bucket as u8) {
            for (sort, item) in partition(store, [layout::DECISIONS, &[bucket]].concat()).await {
                let id = TransactionId::new(sort).expect("a row's id");
                let row = row(store, &item).await;
                at_rest.rows.insert(id, row);
            }
            let keyspace = KeyspaceId::default().0.to_be_bytes();
            let versions = [layout::VERSIONS, &keyspace, &[bucket]].concat();
            for (sort, item) in partition(store, versions.clone()).await {
                let place = layout::version_of(&ports::Key::new(&versions, &sort)).expect("a version's key");
                let id = item.bytes("id").cloned().and_then(|id| TransactionId::new(id).ok());
                let id = id.expect("a version's transaction");
                at_rest.versions.insert(place, VersionAtRest { id, value: item.bytes("value").cloned() });
            }
        }
        for (sort, _) in partition(store, layout::NODES.to_vec()).await {
            let node = layout::node_of(&sort).expect("a node's row");
            at_rest.read_log(store, node).await;
        }
        at_rest
    }

    /// What the log of `node` announces.
    async fn read_log(&mut self, store: &SharedKeyValue, node: NodeId) {
        let log = FencedLog::new(store.clone(), layout::log(node));
        let mut from = log.start().await.unwrap_or(Cursor::START);
        loop {
            let read = log.read(from, PAGE_ITEMS).await.expect("a calm store");
            for slot in &read.slots {
                let slot: StoredSlot = decode(&slot.payload, "a slot").expect("a slot of ours");
                for entry in slot.entries {
                    match entry {
                        Entry::Committing { attempt, id, .. } => drop(self.announced.insert(attempt, id)),
                        Entry::Began { attempt, .. } => drop(self.began.insert(attempt)),
                    }
                }
            }
            if read.is_tail {
                return;
            }
            from = read.cursor;
        }
    }

    /// The commits and their order, as the rows say.
    pub fn order(&self) -> Order {
        let mut order = Order::default();
        for (id, row) in &self.rows {
            if let Decision::Committed(record, _) = &row.decision {
                order.committed.insert(Writer { id: id.clone(), attempt: row.attempt }, record.version);
            }
        }
        order
    }

    /// Whether this attempt committed.
    pub fn is_committed(&self, writer: &Writer) -> bool {
        self.committed(writer).is_some()
    }

    /// What this attempt wrote, if it committed.
    pub fn committed(&self, writer: &Writer) -> Option<&[Write]> {
        match self.rows.get(&writer.id) {
            Some(Row { attempt, decision: Decision::Committed(_, writes) }) if *attempt == writer.attempt => {
                Some(writes)
            }
            _ => None,
        }
    }
}

/// Whether a write deletes its key.
pub fn is_deletion(write: &Write) -> bool {
    write.place == Place::Gone
}

async fn row(store: &SharedKeyValue, item: &Item) -> Row {
    let attempt =
        item.bytes("attempt").and_then(|bytes| Attempt::from_bytes(bytes)).expect("a row's attempt");
    let decision = match item.integer("state") {
        None => Decision::Undecided,
        Some(1) => {
            let record = item.bytes("record").expect("a committed row's record");
            let record: StoredRecord = decode(record, "a commit record").expect("a record of ours");
            let writes = write_set(store, attempt, &record.writes).await;
            Decision::Committed(record, writes)
        }
        Some(_) => Decision::Closed,
    };
    Row { attempt, decision }
}

async fn write_set(store: &SharedKeyValue, attempt: Attempt, set: &WriteSet) -> Vec<Write> {
    let parts = match set {
        WriteSet::Inline(writes) => return writes.clone(),
        WriteSet::Parts(parts) => *parts,
    };
    let mut writes = Vec::new();
    for part in 0..parts {
        let read = store.get(&layout::write_set_part(attempt, part)).await.expect("a calm store");
        let item = read.value.expect("every part of a committed write set");
        let part = item.bytes("record").expect("a part's writes");
        writes.extend(decode::<Vec<Write>>(part, "a part of a write set").expect("a part of ours"));
    }
    writes
}

async fn partition(store: &SharedKeyValue, partition: Vec<u8>) -> Vec<(Bytes, std::sync::Arc<Item>)> {
    let mut scan = Scan::partition(partition, PAGE_ITEMS);
    let mut items = Vec::new();
    loop {
        let page = store.scan(&scan).await.expect("a calm store").value;
        items.extend(page.items);
        match page.next {
            Some(next) => scan.from = next,
            None => return items,
        }
    }
}
