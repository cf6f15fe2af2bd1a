//! Get: own writes, the choice, the load of what is not known, the value.
//!
//! A load is one scan and, for each version found, its decision row, read after the version was: a commit decided in
//! between is either seen in its row or heard of like any other. One load of a key serves all who wait for it, and
//! goes on if they do not.
//!
//! A value in chunks is put together in memory that all such reads share: it counts there until the last who holds it lets
//! it go.
//!
//! A version that is chosen and whose item is gone means that the entry is stale: it is loaded again, three times at
//! most, and then `NoValidVersion` is the answer, never absent. Nor is it the answer of a node that does not count any more:
//! its successor collects what transactions here still need, and no horizon of theirs holds it (T6).

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use ports::DurabilityPoint;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::{
    Error, Result,
    attempts::{
        read_set::{Choice, Read, ReadSet, Seen},
        snapshot,
        transaction::{Phase, Transaction},
        write_buffer::Held,
    },
    broken::Broken,
    cache::version_index::{Entry, Loaded, Loading},
    engine::Core,
    model::{Attempt, Call, Key, KeyspaceId, Shown},
    node::Node,
    storage::{
        frontier::Heard,
        node_registry,
        records::{CommitRecord, Place, Write},
        store::{Decision, State, VersionItem},
    },
};

/// Decision rows read at a time.
const ROWS_AT_ONCE: usize = 64;
/// How often a version that is gone is looked for again.
const STALE_MAX: usize = 3;

/// What a look at memory came to.
enum Looked {
    /// The transaction wrote it itself; none: it deleted it.
    Own(Option<Bytes>),
    /// The same, and it has left memory.
    Spilled(Write),
    /// It was chosen: now, or by an earlier read.
    Chosen(Read, Age),
    /// The versions have to be loaded first.
    Unknown(watch::Receiver<Loaded>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Age {
    New,
    Old,
}

/// What is behind a choice.
enum Found {
    Value(Option<Bytes>),
    /// The item should be there, and is not.
    Missing,
}

/// What a load found.
pub(crate) struct Versions {
    pub(crate) records: Vec<Arc<CommitRecord>>,
    values: Vec<(Attempt, u32, Bytes)>,
    point: DurabilityPoint,
}

/// A large value, and its part of the memory for those.
struct Reading {
    value: Bytes,
    _held: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Reading {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

/// Keeps from being collected whatever is heard now, for reads without a transaction.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    core: &'a Core,
    place: u64,
}

impl<'a> Pin<'a> {
    pub(crate) fn new(core: &'a Core) -> Self {
        let mut attempts = core.attempts.lock();
        let (heard, superseded_bytes) = core.cache.frontier();
        let place = attempts.pin(heard, superseded_bytes);
        drop(attempts);
        Self { core, place }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.core.attempts.lock().unpin(self.place);
    }
}

impl Core {
    pub(crate) async fn get(
        self: &Arc<Self>,
        call: &Call,
        key: &Key,
    ) -> Result<Shown<Option<Bytes>>> {
        let transaction = self.here(call).await?;
        transaction.check_keyspace(key)?;
        let read = self.get_of(&transaction, key).await;
        self.tell(&transaction.node, read).await
    }

    pub(crate) async fn get_now(self: &Arc<Self>, key: &Key) -> Result<Shown<Option<Bytes>>> {
        let node = self.serving.node()?;
        let read = self.get_newest(&node, key).await;
        self.tell(&node, read).await
    }

    /// What a read came to. That a version or a value is missing can only be said by who counts, asked after it was missed: else it
    /// is gone because this node was taken for dead.
    async fn tell<T>(&self, node: &Node, read: Result<T>) -> Result<T> {
        if let Err(error @ (Error::NoValidVersion | Error::SnapshotTooOld | Error::Corrupt(_))) =
            &read
        {
            if !self
                .context
                .config
                .is_broken(Broken::MissesWhatSuccessorTook)
            {
                self.still_counts(node).await?;
            }
            if *error == Error::NoValidVersion {
                self.context.counters.no_valid_version();
            }
        }
        read
    }

    /// Errors: `Unavailable`: this node was taken for dead, and falls.
    pub(crate) async fn still_counts(&self, node: &Node) -> Result<()> {
        self.may_answer(node)?;
        // Nobody else counts it among several: the lease says it.
        if self.context.is_alone() && !node_registry::is_live(&node.store, node.id).await? {
            node.store.fall();
        }
        node.store.standing()
    }

    async fn get_of(
        self: &Arc<Self>,
        transaction: &Arc<Transaction>,
        key: &Key,
    ) -> Result<Shown<Option<Bytes>>> {
        let mut loaded = None;
        let mut stale = 0;
        loop {
            let (read, age) = match self.look(transaction, key, loaded.take().as_ref())? {
                Looked::Own(value) => return Ok(Shown::durable(value)),
                Looked::Spilled(write) => {
                    let Transaction { node, attempt, .. } = &**transaction;
                    if let Some(value) = self.stored_value(node, *attempt, &write).await? {
                        return Ok(Shown::durable(Some(value)));
                    }
                    // It was written anew meanwhile, or the attempt has ended; nothing else takes it away.
                    stale += 1;
                    if stale > STALE_MAX {
                        return Err(Error::Corrupt(
                            format!("a value of {attempt} is gone").into(),
                        ));
                    }
                    continue;
                }
                Looked::Chosen(read, age) => (read, age),
                Looked::Unknown(waiter) => {
                    loaded = Some(wait_for_load(waiter).await?);
                    continue;
                }
            };
            match self.value(&transaction.node, key, &read.choice).await? {
                Found::Value(value) => {
                    if self
                        .context
                        .config
                        .is_broken(Broken::ChoosesBeforeRecording)
                    {
                        transaction
                            .state()
                            .reads
                            .record(key.clone(), read.choice, read.point);
                    }
                    self.may_answer(&transaction.node)?;
                    return Ok(Shown {
                        value,
                        point: read.point,
                    });
                }
                // Whoever has ended keeps nothing, and hears that.
                Found::Missing if transaction.state().phase != Phase::Open => {
                    transaction.state().touch(self.context.clock.monotonic())?;
                }
                Found::Missing if transaction.is_overtaken() => return Err(too_late(transaction)),
                Found::Missing if age == Age::New && stale < STALE_MAX => {
                    transaction.state().reads.take_back(key);
                    self.cache.lock().index.forget(key);
                    stale += 1;
                }
                Found::Missing => return Err(damaged(key, &read.choice)),
            }
        }
    }

    async fn get_newest(
        self: &Arc<Self>,
        node: &Arc<Node>,
        key: &Key,
    ) -> Result<Shown<Option<Bytes>>> {
        let mut pin = None;
        let mut missed = Choice::Absent;
        for _ in 0..STALE_MAX {
            let known = self
                .cache
                .lock()
                .index
                .entry(key)
                .map(|entry| newest(entry));
            let Read { choice, point } = match known {
                Some(newest) => newest,
                None => newest(&*wait_for_load(self.load(node, key)).await?),
            };
            if let Found::Value(value) = self.value(node, key, &choice).await? {
                self.may_answer(node)?;
                return Ok(Shown { value, point });
            }
            self.cache.lock().index.forget(key);
            missed = choice;
            // It was superseded and collected meanwhile: what is newest from here on stays until it is read.
            pin = pin.or_else(|| Some(Pin::new(self)));
        }
        Err(damaged(key, &missed))
    }

    /// What every node has acknowledged of `key` until now, whatever this one has heard.
    pub(crate) async fn get_stored(
        self: &Arc<Self>,
        node: &Arc<Node>,
        key: &Key,
    ) -> Result<Shown<Option<Bytes>>> {
        let mut missed = Choice::Absent;
        for _ in 0..STALE_MAX {
            let Versions { records, point, .. } = self.load_versions(node, key).await?;
            let newest = records.into_iter().max_by_key(|record| record.version);
            let choice = newest.map_or(Choice::Absent, Choice::Version);
            if let Found::Value(value) = self.value(node, key, &choice).await? {
                return Ok(Shown { value, point });
            }
            missed = choice;
        }
        Err(damaged(key, &missed))
    }

    /// Own writes, what was read before, or a choice; `loaded` if the index could not keep what was loaded. Choosing
    /// and recording are one step.
    fn look(
        self: &Arc<Self>,
        transaction: &Transaction,
        key: &Key,
        loaded: Option<&Arc<Entry>>,
    ) -> Result<Looked> {
        let mut state = transaction.state();
        state.touch(self.context.clock.monotonic())?;
        transaction.node.store.standing()?;
        if let Some(own) = state.buffer.get(key) {
            return Ok(match &own.held {
                Held::Stored => Looked::Spilled(Write {
                    key: key.clone(),
                    write: own.write,
                    place: own.place,
                }),
                Held::Memory(_) | Held::Leaving(_) | Held::Gone => {
                    Looked::Own(own.value().cloned())
                }
            });
        }
        if let Some(read) = state.reads.get(key) {
            return Ok(Looked::Chosen(read.clone(), Age::Old));
        }
        if state.reads.len() >= self.context.config.keys_read_max {
            return Err(Error::TooLarge("the transaction reads too many keys"));
        }
        let Some(Read { choice, point }) = self.choose(transaction, &state.reads, key, loaded)?
        else {
            return Ok(Looked::Unknown(self.load(&transaction.node, key)));
        };
        // Asked after the entry was looked at: what was absent before the attempt was overtaken is absent. Of a snapshot the
        // right version may be gone, and an older one there still.
        if transaction.is_overtaken() && (choice == Choice::Absent || transaction.is_serializable())
        {
            return Err(too_late(transaction));
        }
        let is_recorded = match &choice {
            Choice::Absent => !self.context.config.is_broken(Broken::ForgetsAbsence),
            Choice::Version(_) => true,
        };
        if is_recorded
            && !self
                .context
                .config
                .is_broken(Broken::ChoosesBeforeRecording)
        {
            state.reads.record(key.clone(), choice.clone(), point);
        }
        Ok(Looked::Chosen(Read { choice, point }, Age::New))
    }

    /// What `key` is read as; none: its versions have to be loaded first. Chosen where the entry lies: whoever held it beyond that
    /// would have the next commit of the key copy it, versions and all.
    fn choose(
        &self,
        transaction: &Transaction,
        reads: &ReadSet,
        key: &Key,
        loaded: Option<&Arc<Entry>>,
    ) -> Result<Option<Read>> {
        let cache = self.cache.lock();
        let Some(entry) = cache.index.entry(key).or(loaded) else {
            return Ok(None);
        };
        let choice = if let Some(slot) = transaction.read_at() {
            snapshot::choose(&entry.versions, slot)
        } else {
            let nothing = Heard::default();
            let revives = self.context.config.is_broken(Broken::RevivesCollected);
            let dropped = if revives { &nothing } else { &*cache.dropped };
            let seen = Seen {
                begin_heard: &transaction.start.heard,
                dropped,
            };
            let chosen = reads.choose(key, &entry.versions, &seen, self.context.config.broken);
            chosen.map_err(|_| Error::NoValidVersion)?
        };
        Ok(Some(Read {
            choice,
            point: entry.point,
        }))
    }

    /// The value behind a choice.
    async fn value(
        self: &Arc<Self>,
        node: &Arc<Node>,
        key: &Key,
        choice: &Choice,
    ) -> Result<Found> {
        let Choice::Version(record) = choice else {
            return Ok(Found::Value(None));
        };
        let write = record
            .write_of(key)
            .expect("a record was chosen for a key it wrote");
        if write.place == Place::Gone {
            return Ok(Found::Value(None));
        }
        if let Some(value) = self.stored_value(node, record.attempt, write).await? {
            return Ok(Found::Value(Some(value)));
        }
        Ok(Found::Missing)
    }

    /// The value of a write that is in the store, or was lately; none: it is not there. Errors: of damage, with the key, without
    /// which who reads a page of many could not read on behind it.
    pub(crate) async fn stored_value(
        self: &Arc<Self>,
        node: &Arc<Node>,
        attempt: Attempt,
        write: &Write,
    ) -> Result<Option<Bytes>> {
        let read = self.read_stored(node, attempt, write).await;
        read.map_err(|error| match error {
            Error::Corrupt(why) => {
                let name = write.key.name().escape_ascii();
                Error::Corrupt(format!("{why}: the value of \"{name}\"").into())
            }
            error => error,
        })
    }

    async fn read_stored(
        self: &Arc<Self>,
        node: &Arc<Node>,
        attempt: Attempt,
        write: &Write,
    ) -> Result<Option<Bytes>> {
        if let Some(value) = self.cache.lock().data.get(attempt, write.write) {
            return Ok(Some(value));
        }
        let (value, held) = if let Place::Chunks { bytes, .. } = write.place {
            let held = self.reserve_reading(bytes as usize).await?;
            (node.store.chunked_value(attempt, write).await?, Some(held))
        } else if let Place::Packed { bytes, .. } = write.place {
            let is_large = bytes as usize > self.context.config.inline_bytes_max;
            let held = if is_large {
                Some(self.reserve_reading(bytes as usize).await?)
            } else {
                None
            };
            (self.packed_value(node, attempt, write).await?, held)
        } else {
            let item = node.store.version(&write.key, attempt).await?;
            (
                item.filter(|item| item.write == write.write)
                    .and_then(|item| item.value),
                None,
            )
        };
        let Some(value) = value else { return Ok(None) };
        {
            if let Some(mut cache) = self.cache.of(node.id) {
                cache.data.insert(attempt, write.write, value.clone());
            }
        }
        Ok(Some(match held {
            Some(held) => Bytes::from_owner(Reading { value, _held: held }),
            None => value,
        }))
    }

    /// Room for a large value. Errors: `TooMuchBuffered` if others do not let go of theirs.
    pub(crate) async fn reserve_reading(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let bytes = bytes.min(self.context.config.read_bytes_max) as u32;
        let reading = Arc::clone(&self.reading);
        tokio::select! {
            biased;
            held = reading.acquire_many_owned(bytes) => Ok(held.expect("it is never closed")),
            () = self.context.clock.sleep(self.context.config.read_wait_max) => Err(Error::TooMuchBuffered),
        }
    }

    /// Loads the versions of `key`, or joins who does.
    pub(crate) fn load(self: &Arc<Self>, node: &Arc<Node>, key: &Key) -> watch::Receiver<Loaded> {
        let waiter = {
            let Some(mut cache) = self.cache.of(node.id) else {
                return watch::channel(Some(Err(Error::unavailable("the node starts over")))).1;
            };
            match cache.index.load(key) {
                Loading::UnderWay(waiter) => return waiter,
                Loading::ByCaller(waiter) => waiter,
            }
        };
        self.context.counters.loaded();
        let (core, node, key) = (Arc::clone(self), Arc::clone(node), key.clone());
        self.context.spawn(async move {
            let found = core.load_versions(&node, &key).await;
            // Another node's loads are its own.
            let Some(mut cache) = core.cache.of(node.id) else {
                return;
            };
            match found {
                Ok(Versions {
                    records,
                    values,
                    point,
                }) => {
                    for record in &records {
                        node.log.observe(record.version.timed());
                    }
                    for (attempt, write, value) in values {
                        cache.data.insert(attempt, write, value);
                    }
                    cache.index.finish_load(&key, &records, point);
                    // What they wrote to other keys may be news, too.
                    for record in &records {
                        if !cache.heard.contains(record.position) {
                            cache.index.hear(record);
                        }
                    }
                }
                Err(error) => cache.index.fail_load(&key, error),
            }
        });
        waiter
    }
}

/// The newest version of an entry.
fn newest(entry: &Entry) -> Read {
    let choice = entry
        .versions
        .last()
        .map_or(Choice::Absent, |newest| Choice::Version(Arc::clone(newest)));
    Read {
        choice,
        point: entry.point,
    }
}

/// What an attempt may need is collected.
fn too_late(transaction: &Transaction) -> Error {
    if transaction.is_serializable() {
        Error::SnapshotTooOld
    } else {
        Error::NoValidVersion
    }
}

/// What nobody may have collected is not there, however often it is looked for.
fn damaged(key: &Key, choice: &Choice) -> Error {
    if let Choice::Version(record) = choice {
        tracing::error!(?key, attempt = %record.attempt, "a committed version is not in the store");
    }
    Error::NoValidVersion
}

pub(crate) async fn wait_for_load(mut waiter: watch::Receiver<Loaded>) -> Result<Arc<Entry>> {
    match waiter.wait_for(Option::is_some).await {
        Ok(loaded) => loaded.clone().expect("waited for"),
        Err(_) => Err(Error::unavailable("the engine stops")),
    }
}

impl Core {
    /// The committed versions of `key` that are in the store. What this node has committed lately, or has in use, it knows without
    /// their rows.
    pub(crate) async fn load_versions(&self, node: &Arc<Node>, key: &Key) -> Result<Versions> {
        let (items, mut point) = node.store.versions(key).await?;
        let known: Vec<Option<Arc<CommitRecord>>> = {
            let cache = self.cache.lock();
            items
                .iter()
                .map(|(attempt, _)| cache.record(*attempt))
                .collect()
        };
        let rows = stream::iter(items.into_iter().zip(known))
            .map(|((attempt, item), known)| committed_version(node, key, attempt, item, known));
        let found: Vec<_> = rows.buffered(ROWS_AT_ONCE).try_collect().await?;
        let mut versions = Versions {
            records: Vec::new(),
            values: Vec::new(),
            point,
        };
        for (record, item, read_at) in found {
            point = point.max(read_at);
            let Some(record) = record else { continue };
            versions
                .values
                .extend(item.value.map(|value| (record.attempt, item.write, value)));
            versions.records.push(record);
        }
        self.check_succession(node, key.keyspace()).await?;
        Ok(Versions { point, ..versions })
    }

    /// A successor collects what snapshots of this node need: what was found in a sequenced keyspace is whole if there was none
    /// yet. Among several nodes that is what the lease is for.
    pub(crate) async fn check_succession(
        &self,
        node: &Arc<Node>,
        keyspace: KeyspaceId,
    ) -> Result<()> {
        if self.context.is_alone() && self.keyspaces.lock().is_sequenced(keyspace) {
            self.follow_sequencer(node).await?;
        }
        Ok(())
    }
}

/// The record of a version, if it counts: if its row is committed by the attempt that wrote it, as that write, or if it was
/// handed over to the sequencer and is in its log.
pub(crate) async fn committed_version(
    node: &Node,
    key: &Key,
    attempt: Attempt,
    item: VersionItem,
    known: Option<Arc<CommitRecord>>,
) -> Result<(Option<Arc<CommitRecord>>, VersionItem, DurabilityPoint)> {
    let is_its_write = |record: &CommitRecord| {
        record
            .write_of(key)
            .is_some_and(|write| write.write == item.write)
    };
    if let Some(record) = known {
        let point = record.point;
        return Ok((
            Some(record).filter(|record| is_its_write(record)),
            item,
            point,
        ));
    }
    let (mut decision, mut point) = node.store.decision(&item.id).await?;
    if decision
        .as_ref()
        .is_some_and(|row| row.attempt == attempt && row.state == State::Prepared)
    {
        if let Some(record) = node.followed.unsettled(attempt) {
            let point = point.max(record.point);
            return Ok((
                Some(record).filter(|record| is_its_write(record)),
                item,
                point,
            ));
        }
        // Settled since it was read; or not decided before this, and then it is heard of like any other.
        (decision, point) = node.store.decision(&item.id).await?;
    }
    let Some(Decision {
        attempt: decided,
        state: State::Committed(stored),
        ..
    }) = decision
    else {
        return Ok((None, item, point));
    };
    if decided != attempt {
        return Ok((None, item, point));
    }
    let record = Arc::new(node.store.record(&item.id, attempt, &stored, point).await?);
    let counts = is_its_write(&record);
    Ok((counts.then_some(record), item, point))
}
