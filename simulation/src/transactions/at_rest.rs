//! What stands in the store: decision rows, version items, and what the nodes' logs announce.
//!
//! Read from the items themselves, not through an engine: what an engine would hide is what is looked for.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures_util::TryStreamExt;
use ports::{
    Item,
    key_value::{Scan, SharedKeyValue},
    objects::{ObjectError, ObjectStoreExt as _},
};
use primitives::{Cursor, FencedLog};
use transactions::{
    layout,
    model::PackId,
    model::{Attempt, Key, KeyspaceId, NodeId, TransactionId, Version},
    records::{Entry, Place, SequencedSlot, StoredRecord, StoredSlot, Write, WriteSet, decode},
};

use super::{
    history::{Order, Writer},
    house::House,
    witness::Seen,
};

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
    /// The value; none: the key is deleted, or a chunk or the pack of it is not there.
    pub value: Option<Bytes>,
    /// In which pack it is.
    pub pack: Option<PackId>,
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
    /// The attempts whose values were announced in a log to be written ahead.
    pub spilled: BTreeSet<Attempt>,
    /// The chunks of each write.
    pub chunks: BTreeMap<(Attempt, u32), u32>,
    /// The objects that are packs.
    pub packs: BTreeSet<PackId>,
    /// The rows of packs, with the bytes of their values and what is thought to be dead of them.
    pub pack_rows: BTreeMap<PackId, (u64, u64)>,
    /// The names whose rows are kept for days.
    pub kept: BTreeSet<TransactionId>,
    /// The attempts with parts of write sets.
    pub with_parts: BTreeSet<Attempt>,
    /// Every commit there ever was, also those whose rows are gone.
    pub seen: BTreeMap<Writer, Seen>,
    /// The attempts that ever put effects in partitions of their own.
    pub had_large_effects: BTreeSet<Attempt>,
    /// Records that were written before what they decide about.
    pub too_early: Vec<String>,
    /// How many slots the sequencer's log has.
    pub sequenced: usize,
    /// The newest committed value of each key, as a node shows it after all is over.
    pub shown: BTreeMap<Key, Option<Bytes>>,
}

impl AtRest {
    /// Reads all of it from a store that is calm and was watched; what a node shows is not in it yet.
    pub async fn read(house: &House) -> Self {
        let (store, witness) = (&house.world().key_value(), house.witness());
        let mut at_rest = Self {
            seen: witness.commits(store),
            had_large_effects: witness.had_large_effects(),
            too_early: witness.too_early(),
            ..Self::default()
        };
        for bucket in house.buckets().all() {
            for (sort, item) in partition(store, layout::decision_bucket(bucket).into()).await {
                let id = TransactionId::new(sort).expect("a row's id");
                let row = row(store, &item).await;
                at_rest.rows.insert(id, row);
            }
            let versions = layout::version_bucket(KeyspaceId::default(), bucket);
            for (sort, item) in partition(store, versions.clone().into()).await {
                let place =
                    layout::version_of(&ports::Key::new(&versions, &sort), item.bytes("key"));
                let place = place.expect("a version's key");
                let id = item
                    .bytes("id")
                    .cloned()
                    .and_then(|id| TransactionId::new(id).ok());
                let id = id.expect("a version's transaction");
                let pack = item.bytes("pack").and_then(|pack| PackId::from_bytes(pack));
                let value = match pack {
                    Some(pack) => packed_value(house, pack, &item).await,
                    None => value(store, place.1, &item).await,
                };
                at_rest
                    .versions
                    .insert(place, VersionAtRest { id, value, pack });
            }
        }
        for (sort, _) in partition(store, layout::PERIODS.to_vec()).await {
            let period = layout::period_of(&sort).expect("a period");
            let names = partition(store, layout::kept_names(period).to_vec()).await;
            at_rest.kept.extend(
                names
                    .iter()
                    .filter_map(|(sort, _)| layout::kept_name_of(sort)),
            );
        }
        for attempt in witness.attempts_with_parts() {
            let part = layout::write_set_part(attempt, 0);
            if !partition(store, part.partition().to_vec()).await.is_empty() {
                at_rest.with_parts.insert(attempt);
            }
        }
        at_rest.read_sequencer(store).await;
        at_rest.read_packs(house).await;
        for attempt in witness.attempts_with_chunks() {
            for (sort, _) in partition(store, layout::chunks(attempt).to_vec()).await {
                let (write, _) = sort.split_first_chunk::<4>().expect("a chunk's key");
                *at_rest
                    .chunks
                    .entry((attempt, u32::from_be_bytes(*write)))
                    .or_default() += 1;
            }
        }
        for (sort, _) in partition(store, layout::NODES.to_vec()).await {
            let node = layout::node_of(&sort).expect("a node's row");
            at_rest.read_log(store, node).await;
        }
        at_rest
    }

    /// What lies among the objects, and what its rows say.
    async fn read_packs(&mut self, house: &House) {
        let listed = house
            .world()
            .objects()
            .list(None)
            .try_collect::<Vec<_>>()
            .await
            .expect("calm objects");
        for meta in listed {
            let mut parts = meta.location.as_ref().rsplit('/');
            let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok());
            if let (Some(number), Some(node)) = (number(), number()) {
                self.packs.insert(PackId {
                    node: NodeId(node as u32),
                    number,
                });
            }
        }
        for (sort, item) in partition(&house.world().key_value(), layout::PACKS.to_vec()).await {
            let id = PackId::from_bytes(&sort).expect("a pack's key");
            let bytes = |name| item.integer(name).unwrap_or(0) as u64;
            self.pack_rows.insert(id, (bytes("bytes"), bytes("dead")));
        }
    }

    /// What the sequencer's log has decided, also where the rows do not say so yet.
    async fn read_sequencer(&mut self, store: &SharedKeyValue) {
        let log = FencedLog::new(store.clone(), layout::sequencer_log());
        let from = log.start().await.expect("a calm store");
        let read = log.read(from, PAGE_ITEMS).await.expect("a calm store");
        self.sequenced = read.slots.len();
        for slot in &read.slots {
            let stored: SequencedSlot = decode(&slot.payload, "a slot").expect("a slot of ours");
            for (place, commit) in (0..).zip(&stored.commits) {
                let record = commit.record(slot.index.0, place);
                let Some(row) = self.rows.get_mut(&commit.id) else {
                    continue;
                };
                if row.attempt == commit.attempt && row.decision == Decision::Undecided {
                    let writes = write_set(store, commit.attempt, &record.writes).await;
                    row.decision = Decision::Committed(record, writes);
                }
            }
        }
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
                        Entry::Committing { attempt, id, .. } => {
                            drop(self.announced.insert(attempt, id))
                        }
                        Entry::Began { attempt, .. } => drop(self.began.insert(attempt)),
                        Entry::Spilled { attempt, .. } => drop(self.spilled.insert(attempt)),
                    }
                }
            }
            if read.is_tail {
                return;
            }
            from = read.cursor;
        }
    }

    /// The commits and their order, as the rows say and said.
    pub fn order(&self) -> Order {
        let versions = self
            .records()
            .into_iter()
            .map(|(writer, record)| (writer, record.version));
        Order {
            committed: versions.collect(),
        }
    }

    /// The commits and their records, as the rows say and said.
    pub fn records(&self) -> BTreeMap<Writer, &StoredRecord> {
        let seen = self
            .seen
            .iter()
            .map(|(writer, seen)| (writer.clone(), &seen.record));
        let rows = self
            .rows
            .iter()
            .filter_map(|(id, row)| match &row.decision {
                Decision::Committed(record, _) => Some((
                    Writer {
                        id: id.clone(),
                        attempt: row.attempt,
                    },
                    record,
                )),
                _ => None,
            });
        seen.chain(rows).collect()
    }

    /// Whether this attempt committed.
    pub fn is_committed(&self, writer: &Writer) -> bool {
        self.committed(writer).is_some()
    }

    /// What this attempt wrote, if it committed.
    pub fn committed(&self, writer: &Writer) -> Option<&[Write]> {
        match self.rows.get(&writer.id) {
            Some(Row {
                attempt,
                decision: Decision::Committed(_, writes),
            }) if *attempt == writer.attempt => Some(writes),
            _ => self.seen.get(writer).map(|seen| &seen.writes[..]),
        }
    }

    /// Whether a commit that is newer than that of `version` wrote `key`.
    pub fn is_superseded(&self, key: &Key, version: Version) -> bool {
        let newer = self
            .order()
            .committed
            .into_iter()
            .filter(|(_, other)| *other > version);
        let mut writes = newer.filter_map(|(writer, _)| self.committed(&writer));
        writes.any(|writes| writes.iter().any(|write| write.key == *key))
    }
}

/// Whether a write deletes its key.
pub fn is_deletion(write: &Write) -> bool {
    write.place == Place::Gone
}

/// The value of a version item, from its chunks if need be; none: it is deleted, or they are not there.
async fn value(store: &SharedKeyValue, attempt: Attempt, item: &Item) -> Option<Bytes> {
    let Some(chunks) = item.integer("chunks") else {
        return item.bytes("value").cloned();
    };
    let write = item.integer("write").expect("a version's write") as u32;
    let mut value = Vec::new();
    for chunk in 0..chunks as u32 {
        let read = store
            .get(&layout::chunk(attempt, write, chunk))
            .await
            .expect("a calm store");
        value.extend_from_slice(read.value?.bytes("value").expect("a chunk's bytes"));
    }
    Some(value.into())
}

/// The value of a version item whose pack has it; none: there is no such pack.
async fn packed_value(house: &House, pack: PackId, item: &Item) -> Option<Bytes> {
    let home = house
        .world()
        .key_value()
        .get(&layout::packs_home())
        .await
        .expect("a calm store")
        .value?;
    let home = std::str::from_utf8(home.bytes("home")?)
        .expect("text")
        .to_owned();
    let (offset, bytes) = (
        item.integer("offset")? as u64,
        item.integer("bytes")? as u64,
    );
    match house
        .world()
        .objects()
        .get_range(&pack.path(&home), offset..offset + bytes)
        .await
    {
        Ok(value) => Some(value),
        Err(ObjectError::NotFound { .. }) => None,
        Err(error) => panic!("a calm world, and {error}"),
    }
}

async fn row(store: &SharedKeyValue, item: &Item) -> Row {
    let attempt = item
        .bytes("attempt")
        .and_then(|bytes| Attempt::from_bytes(bytes))
        .expect("a row's attempt");
    let decision = match item.integer("state") {
        None | Some(3) => Decision::Undecided,
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
        let read = store
            .get(&layout::write_set_part(attempt, part))
            .await
            .expect("a calm store");
        let item = read.value.expect("every part of a committed write set");
        let part = item.bytes("record").expect("a part's writes");
        writes.extend(decode::<Vec<Write>>(part, "a part of a write set").expect("a part of ours"));
    }
    writes
}

async fn partition(
    store: &SharedKeyValue,
    partition: Vec<u8>,
) -> Vec<(Bytes, std::sync::Arc<Item>)> {
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
