//! The state of the store: decision rows, version items, and the announcements in the nodes' logs.
//!
//! It is read from the items, not through an engine, because the checks look for what an engine
//! would hide.

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
    cluster::Cluster,
    history::{Order, Writer},
    observer::{Observer, Seen},
};

/// The most items in one page.
const PAGE_ITEMS: usize = 1_000;

/// The decision in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// None yet.
    Undecided,
    /// Committed, with this record and these writes.
    Committed(StoredRecord, Vec<Write>),
    /// Never to be committed: aborted or expired.
    Closed,
}

/// A decision row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The attempt.
    pub attempt: Attempt,
    /// Its decision.
    pub decision: Decision,
}

/// A version item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredVersion {
    /// The attempt whose row decides about it.
    pub id: TransactionId,
    /// The value; none: the key is deleted, or one of its chunks or its pack is missing.
    pub value: Option<Bytes>,
    /// The pack that holds it.
    pub pack: Option<PackId>,
}

/// All stored state of transactions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredState {
    /// The decision rows.
    pub rows: BTreeMap<TransactionId, Row>,
    /// The version items, decided or not.
    pub versions: BTreeMap<(Key, Attempt), StoredVersion>,
    /// The attempts whose commits a log announces, and their writes.
    pub announced: BTreeMap<Attempt, TransactionId>,
    /// The attempts whose begins with a client id a log announces.
    pub began: BTreeSet<Attempt>,
    /// The attempts whose spilled values a log announces.
    pub spilled: BTreeSet<Attempt>,
    /// The chunks of each write.
    pub chunks: BTreeMap<(Attempt, u32), u32>,
    /// The objects that are packs.
    pub packs: BTreeSet<PackId>,
    /// The rows of packs, with the bytes of their values and the estimate of dead bytes.
    pub pack_rows: BTreeMap<PackId, (u64, u64)>,
    /// The client ids whose rows are kept for days.
    pub kept: BTreeSet<TransactionId>,
    /// The attempts with parts of write sets.
    pub with_parts: BTreeSet<Attempt>,
    /// All commits so far, including those whose rows are gone.
    pub seen: BTreeMap<Writer, Seen>,
    /// The attempts that ever stored effects in their own partitions.
    pub had_large_effects: BTreeSet<Attempt>,
    /// Records that were written before the data that they decide about.
    pub too_early: Vec<String>,
    /// The number of slots in the sequencer's log.
    pub sequenced: usize,
    /// The newest committed value of each key, as a node returns it at the end.
    pub shown: BTreeMap<Key, Option<Bytes>>,
}

impl StoredState {
    /// Reads the state of a calm, observed store. It does not yet contain the values that a node
    /// returns.
    pub async fn read(cluster: &Cluster) -> Self {
        let (store, observer) = (&cluster.world().key_value(), cluster.observer());
        let mut stored_state = Self {
            seen: observer.commits(store),
            had_large_effects: observer.had_large_effects(),
            too_early: observer.too_early(),
            ..Self::default()
        };
        stored_state.read_buckets(cluster, store).await;
        stored_state.read_kept_ids(store).await;
        stored_state.read_parts(store, observer).await;
        stored_state.read_sequencer(store).await;
        stored_state.read_packs(cluster).await;
        for (sort, _) in partition(store, layout::NODES.to_vec()).await {
            let node = layout::node_of(&sort).expect("a node's row");
            stored_state.read_log(store, node).await;
        }
        stored_state
    }

    /// Reads the decision rows and the version items.
    async fn read_buckets(&mut self, cluster: &Cluster, store: &SharedKeyValue) {
        for bucket in cluster.buckets().all() {
            for (sort, item) in partition(store, layout::decision_bucket(bucket).into()).await {
                let id = TransactionId::new(sort).expect("a row's id");
                let row = row(store, &item).await;
                self.rows.insert(id, row);
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
                    Some(pack) => packed_value(cluster, pack, &item).await,
                    None => value(store, place.1, &item).await,
                };
                self.versions
                    .insert(place, StoredVersion { id, value, pack });
            }
        }
    }

    /// Reads the client ids whose rows are kept for days.
    async fn read_kept_ids(&mut self, store: &SharedKeyValue) {
        for (sort, _) in partition(store, layout::PERIODS.to_vec()).await {
            let period = layout::period_of(&sort).expect("a period");
            let names = partition(store, layout::kept_names(period).to_vec()).await;
            self.kept.extend(
                names
                    .iter()
                    .filter_map(|(sort, _)| layout::kept_name_of(sort)),
            );
        }
    }

    /// Reads the parts of write sets, and the chunks of values.
    async fn read_parts(&mut self, store: &SharedKeyValue, observer: &Observer) {
        for attempt in observer.attempts_with_parts() {
            let part = layout::write_set_part(attempt, 0);
            if !partition(store, part.partition().to_vec()).await.is_empty() {
                self.with_parts.insert(attempt);
            }
        }
        for attempt in observer.attempts_with_chunks() {
            for (sort, _) in partition(store, layout::chunks(attempt).to_vec()).await {
                let (write, _) = sort.split_first_chunk::<4>().expect("a chunk's key");
                *self
                    .chunks
                    .entry((attempt, u32::from_be_bytes(*write)))
                    .or_default() += 1;
            }
        }
    }

    /// Reads the packs among the objects, and their rows.
    async fn read_packs(&mut self, cluster: &Cluster) {
        let listed = cluster
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
        for (sort, item) in partition(&cluster.world().key_value(), layout::PACKS.to_vec()).await {
            let id = PackId::from_bytes(&sort).expect("a pack's key");
            let bytes = |name| item.integer(name).unwrap_or(0) as u64;
            self.pack_rows.insert(id, (bytes("bytes"), bytes("dead")));
        }
    }

    /// The decisions in the sequencer's log, also those that are not in the rows yet.
    async fn read_sequencer(&mut self, store: &SharedKeyValue) {
        let log = FencedLog::new(store.clone(), layout::sequencer_log(KeyspaceId::default()));
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

    /// The announcements in the log of `node`.
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
                            drop(self.announced.insert(attempt, id));
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

    /// The commits and their order, from the present and past rows.
    pub fn order(&self) -> Order {
        let versions = self
            .records()
            .into_iter()
            .map(|(writer, record)| (writer, record.version));
        Order {
            committed: versions.collect(),
        }
    }

    /// The commits and their records, from the present and past rows.
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

    /// The writes of this attempt, if it committed.
    pub fn committed(&self, writer: &Writer) -> Option<&[Write]> {
        match self.rows.get(&writer.id) {
            Some(Row {
                attempt,
                decision: Decision::Committed(_, writes),
            }) if *attempt == writer.attempt => Some(writes),
            _ => self.seen.get(writer).map(|seen| &seen.writes[..]),
        }
    }

    /// Whether a newer commit than that of `version` wrote `key`.
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

/// The value of a version item, from its chunks if necessary; none: it is deleted, or chunks are
/// missing.
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

/// The value of a version item from its pack; none: the pack is missing.
async fn packed_value(cluster: &Cluster, pack: PackId, item: &Item) -> Option<Bytes> {
    let home = cluster
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
    match cluster
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
