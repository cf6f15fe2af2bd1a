//! The observer of the store: records every commit that it ever held, also those whose rows are
//! gone.
//!
//! Rows and versions are collected during a scenario, so the final state does not show all commits.
//! A decision never changes, so one read of it at a point that was not lost is enough. Every
//! operation that drops a row reads it first, so the observer misses none.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ports::{
    DurabilityPoint, Item, Key, KeyValue, Result, Update,
    decorate::KeyValueDecorator,
    decorates,
    key_value::{
        Action, Change, Name, Outcome, Page, Read, Scan, SharedKeyValue, Transacted, Updated, Value,
    },
    objects::ObjectPath,
};
use transactions::{
    layout,
    model::PackId,
    model::{Attempt, KeyspaceId, NodeId, TransactionId},
    records::{Place, SequencedSlot, StoredRecord, Write, WriteSet, decode},
};

use super::history::Writer;

/// An observed commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The decision in its row.
    pub record: StoredRecord,
    /// Its writes.
    pub writes: Vec<Write>,
}

/// All observations. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Observer(Arc<Mutex<Observations>>);

#[derive(Debug, Default)]
struct Observations {
    commits: BTreeMap<Writer, (StoredRecord, Vec<DurabilityPoint>)>,
    /// The versions whose items were confirmed.
    confirmed: BTreeSet<(transactions::model::Key, Attempt)>,
    /// The confirmed chunks.
    confirmed_chunks: BTreeSet<Key>,
    /// The confirmed packs, by the ends of their names.
    confirmed_packs: BTreeSet<PackId>,
    /// The packs that items name as the place of their values.
    packed: BTreeMap<(transactions::model::Key, Attempt), PackId>,
    /// Records that were written before their data.
    too_early: Vec<String>,
    had_large_effects: BTreeSet<Attempt>,
    had_chunks: BTreeSet<Attempt>,
    /// Parts of write sets, by attempt and number.
    parts: BTreeMap<(Attempt, u32), Vec<Write>>,
}

impl Observer {
    /// Wraps `inner` so that its calls are observed.
    pub fn watch(&self, inner: SharedKeyValue) -> SharedKeyValue {
        Arc::new(Watched {
            inner,
            observer: self.clone(),
        })
    }

    /// Every commit that `store` has not lost.
    pub fn commits(&self, store: &SharedKeyValue) -> BTreeMap<Writer, Seen> {
        let observations = self.observations();
        let kept = observations
            .commits
            .iter()
            .filter(|(_, (_, points))| points.iter().any(|point| store.is_durable(*point)));
        kept.map(|(writer, (record, _))| {
            let writes = observations.writes(writer.attempt, record);
            (
                writer.clone(),
                Seen {
                    record: record.clone(),
                    writes,
                },
            )
        })
        .collect()
    }

    /// The attempts that ever had parts of a write set.
    pub fn attempts_with_parts(&self) -> Vec<Attempt> {
        let mut attempts: Vec<_> = self
            .observations()
            .parts
            .keys()
            .map(|(attempt, _)| *attempt)
            .collect();
        attempts.dedup();
        attempts
    }

    /// The attempts that ever put chunks.
    pub fn attempts_with_chunks(&self) -> BTreeSet<Attempt> {
        self.observations().had_chunks.clone()
    }

    /// Records a put of an object; it is a pack if its name ends like one's.
    pub fn confirm_object(&self, path: &ObjectPath) {
        let number = |part: Option<&str>| part.and_then(|part| part.parse::<u64>().ok());
        let mut parts = path.as_ref().rsplit('/');
        if let (Some(pack), Some(node)) = (number(parts.next()), number(parts.next())) {
            let id = PackId {
                node: NodeId(node as u32),
                number: pack,
            };
            self.observations().confirmed_packs.insert(id);
        }
    }

    fn observations(&self) -> MutexGuard<'_, Observations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a slot of the sequencer's log, read at `point`. Its transactions have committed,
    /// even before their rows say so.
    fn see_slot(&self, key: &Key, item: &Item, point: DurabilityPoint) {
        let Some(payload) = item.bytes("payload") else {
            return;
        };
        let index = key
            .sort()
            .last_chunk()
            .map(|index| u64::from_be_bytes(*index))
            .expect("a slot's number");
        let slot: SequencedSlot = decode(payload, "a slot").expect("a slot of ours");
        for (place, commit) in (0..).zip(&slot.commits) {
            self.note(
                &commit.id,
                commit.attempt,
                commit.record(index, place),
                point,
            );
        }
    }

    fn note(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        record: StoredRecord,
        point: DurabilityPoint,
    ) {
        let mut observations = self.observations();
        let writer = Writer {
            id: id.clone(),
            attempt,
        };
        let seen = observations
            .commits
            .entry(writer)
            .or_insert_with(|| (record, Vec::new()));
        seen.1.push(point);
    }

    /// Records an item, read at `point`.
    fn see(&self, key: &Key, item: &Item, point: DurabilityPoint) {
        if *key.partition() == layout::sequencer_log(KeyspaceId::default())[..] {
            return self.see_slot(key, item, point);
        }
        if !key.partition().starts_with(layout::DECISIONS) || item.integer("state") != Some(1) {
            return;
        }
        let attempt = item
            .bytes("attempt")
            .and_then(|bytes| Attempt::from_bytes(bytes))
            .expect("a row's attempt");
        let record = item.bytes("record").expect("a committed row's record");
        let record: StoredRecord = decode(record, "a commit record").expect("a record of ours");
        let id = TransactionId::new(key.sort()).expect("a row's id");
        self.note(&id, attempt, record, point);
    }

    /// P6: records that were written before all data that they decide about was confirmed.
    pub fn too_early(&self) -> Vec<String> {
        self.observations().too_early.clone()
    }

    /// Checks that a record is written only after its data is confirmed.
    fn judge(&self, update: &Update) {
        if *update.key.partition() == layout::sequencer_log(KeyspaceId::default())[..] {
            return self.judge_slot(update);
        }
        let Change::Modify(actions) = &update.change else {
            return;
        };
        let record = actions.iter().find_map(|action| match action {
            Action::Set(name, Value::Bytes(record)) if *name == Name::from("record") => {
                Some(record)
            }
            _ => None,
        });
        let Some(record) = record.filter(|_| update.key.partition().starts_with(layout::DECISIONS))
        else {
            return;
        };
        let attempt = actions.iter().find_map(|action| match action {
            Action::Set(name, Value::Bytes(attempt)) if *name == Name::from("attempt") => {
                Attempt::from_bytes(attempt)
            }
            _ => None,
        });
        let attempt = attempt.expect("a record says whose it is");
        let record: StoredRecord = decode(record, "a commit record").expect("a record of ours");
        self.judge_record(attempt, &record);
    }

    /// The same for a slot of the sequencer's log, which decides before any row.
    fn judge_slot(&self, update: &Update) {
        let Change::Modify(actions) = &update.change else {
            return;
        };
        let payload = actions.iter().find_map(|action| match action {
            Action::Set(name, Value::Bytes(payload)) if name.as_str() == "payload" => Some(payload),
            _ => None,
        });
        let Some(payload) = payload else { return };
        let slot: SequencedSlot = decode(payload, "a slot").expect("a slot of ours");
        for (place, commit) in (0..).zip(&slot.commits) {
            self.judge_record(commit.attempt, &commit.record(0, place));
        }
    }

    fn judge_record(&self, attempt: Attempt, record: &StoredRecord) {
        let mut observations = self.observations();
        for write in observations.writes(attempt, record) {
            let mut chunks =
                (0..write.place.chunks()).map(|chunk| layout::chunk(attempt, write.write, chunk));
            let version = (write.key.clone(), attempt);
            let is_packed = matches!(write.place, Place::Packed { .. });
            let pack = observations.packed.get(&version).filter(|_| is_packed);
            let is_there = observations.confirmed.contains(&version)
                && chunks.all(|chunk| observations.confirmed_chunks.contains(&chunk))
                && pack.is_none_or(|pack| observations.confirmed_packs.contains(pack));
            if !is_there {
                let violation = format!(
                    "{attempt} was committed before what it wrote to {:?} was there",
                    write.key
                );
                observations.too_early.push(violation);
            }
        }
    }

    /// The attempts that ever stored effects in their own partitions.
    pub fn had_large_effects(&self) -> BTreeSet<Attempt> {
        self.observations().had_large_effects.clone()
    }

    /// Records the put of a chunk, or of a part of a write set or of effects, whether or not it
    /// succeeds.
    fn expect(&self, update: &Update) {
        let effects_of = update.key.partition().strip_prefix(layout::EFFECTS);
        if let Some(attempt) = effects_of.and_then(Attempt::from_bytes) {
            self.observations().had_large_effects.insert(attempt);
        }
        let chunk_of = update.key.partition().strip_prefix(layout::CHUNKS);
        if let Some(attempt) = chunk_of.and_then(Attempt::from_bytes) {
            self.observations().had_chunks.insert(attempt);
        }
        let Some(attempt) = update.key.partition().strip_prefix(layout::WRITE_SETS) else {
            return;
        };
        let Change::Put(attributes) = &update.change else {
            return;
        };
        let [(_, Value::Bytes(writes))] = &attributes[..] else {
            return;
        };
        let attempt = Attempt::from_bytes(attempt).expect("an attempt");
        let part = u32::from_be_bytes(update.key.sort()[..].try_into().expect("a number"));
        let writes = decode(writes, "a part of a write set").expect("a part of ours");
        self.observations().parts.insert((attempt, part), writes);
    }
}

impl Observations {
    /// Records a stored item.
    fn confirm(&mut self, item: Key, attributes: &[(Name, Value)]) {
        if item.partition().starts_with(layout::CHUNKS) {
            self.confirmed_chunks.insert(item);
            return;
        }
        let long = attributes.iter().find_map(|(name, value)| match value {
            Value::Bytes(bytes) if name.as_str() == "key" => Some(bytes),
            _ => None,
        });
        let version = layout::version_of(&item, long);
        let pack = attributes.iter().find_map(|(name, value)| match value {
            Value::Bytes(bytes) if name.as_str() == "pack" => PackId::from_bytes(bytes),
            _ => None,
        });
        self.packed.extend(version.clone().zip(pack));
        self.confirmed.extend(version);
    }

    fn writes(&self, attempt: Attempt, record: &StoredRecord) -> Vec<Write> {
        match &record.writes {
            WriteSet::Inline(writes) => writes.clone(),
            WriteSet::Parts(parts) => {
                let parts = (0..*parts).filter_map(|part| self.parts.get(&(attempt, part)));
                parts.flatten().cloned().collect()
            }
        }
    }
}

#[derive(Debug)]
struct Watched {
    inner: SharedKeyValue,
    observer: Observer,
}

decorates!(Watched, dyn KeyValue, inner);

impl KeyValueDecorator for Watched {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        let read = self.inner.get(key).await?;
        if let Some(item) = &read.value {
            self.observer.see(key, item, read.point);
        }
        Ok(read)
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        let read = self.inner.scan(scan).await?;
        for (sort, item) in &read.value.items {
            self.observer
                .see(&Key::new(&scan.partition, sort), item, read.point);
        }
        Ok(read)
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        self.observer.expect(&update);
        self.observer.judge(&update);
        let put = match &update.change {
            Change::Put(attributes) => Some(attributes.clone()),
            _ => None,
        };
        let key = update.key.clone();
        let updated = self.inner.update(update).await?;
        if let Outcome::Done(Some(item)) | Outcome::Conflict(Some(item)) = &updated.outcome {
            self.observer.see(&key, item, updated.receipt.point);
        }
        if let Some(attributes) = put {
            self.observer.observations().confirm(key, &attributes);
        }
        Ok(updated)
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        for update in &updates {
            self.observer.expect(update);
        }
        let transacted = self.inner.transact(updates.clone()).await?;
        let Transacted::Done { items, receipt } = &transacted else {
            return Ok(transacted);
        };
        for update in &updates {
            if let Change::Put(attributes) = &update.change {
                self.observer
                    .observations()
                    .confirm(update.key.clone(), attributes);
            }
        }
        // Its data may be part of the same change.
        for (update, item) in updates.iter().zip(items) {
            self.observer.judge(update);
            if let Some(item) = item {
                self.observer.see(&update.key, item, receipt.point);
            }
        }
        Ok(transacted)
    }
}
