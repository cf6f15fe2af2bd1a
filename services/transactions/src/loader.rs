//! Committed versions and values, from memory or from the store.
//!
//! A load is one scan and, for each version found, its decision row, read after the version was. A
//! commit decided in between is either seen in its row or announced like any other. One load of a
//! key serves all readers that wait for it, and continues if they are dropped.
//!
//! A value in chunks is assembled in memory that all such reads share. It counts there until its
//! last holder drops it.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use ports::{DurabilityPoint, Read};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::{
    Error, Result,
    attempts::{open_attempts::Attempts, read_set::Choice},
    cache::{
        Cache,
        version_index::{Entry, Loaded, Loading},
    },
    cluster::Cluster,
    context::Context,
    model::{Attempt, Key, KeyspaceId, TransactionId},
    node::Node,
    packing::Packing,
    sequencing::Sequencing,
    storage::{
        node_registry,
        records::{CommitRecord, Place, Write},
        store::{Decision, State, VersionItem},
    },
};

/// Decision rows read at a time.
const ROWS_AT_ONCE: usize = 64;
/// How often a missing version is looked up again.
pub(crate) const STALE_MAX: usize = 3;

/// The value of a chosen version.
pub(crate) enum Fetched {
    Value(Option<Bytes>),
    /// The item should exist, and does not.
    Missing,
}

pub(crate) struct Versions {
    pub(crate) records: Vec<Arc<CommitRecord>>,
    values: Vec<(Attempt, u32, Bytes)>,
    point: DurabilityPoint,
}

struct Reading {
    value: Bytes,
    _held: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Reading {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

/// Keeps versions within the present frontier from being collected, for reads without a
/// transaction.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    loader: &'a Loader,
    place: u64,
}

impl<'a> Pin<'a> {
    pub(crate) fn new(loader: &'a Loader) -> Self {
        let mut attempts = loader.attempts.lock();
        let (applied, superseded_bytes) = loader.cache.frontier();
        let place = attempts.pin(applied, superseded_bytes);
        drop(attempts);
        Self { loader, place }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.loader.attempts.lock().unpin(self.place);
    }
}

#[derive(Debug)]
pub(crate) struct Loader {
    pub(crate) context: Arc<Context>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) attempts: Arc<Attempts>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) sequencing: Arc<Sequencing>,
    pub(crate) packing: Arc<Packing>,
    /// Memory for values in chunks that are being read, in bytes.
    pub(crate) reading: Arc<Semaphore>,
}

impl Loader {
    /// Errors: `Unavailable`: this node was presumed dead, and is now fenced.
    pub(crate) async fn still_counts(&self, node: &Node) -> Result<()> {
        self.cluster.may_answer(node)?;
        // A single node reads its registration; among several, the lease decides.
        if self.context.is_alone() && !node_registry::is_live(&node.store, node.id).await? {
            node.store.fence();
        }
        node.store.check_fence()
    }

    /// The value of `key` as acknowledged by any node until now, even beyond this node's frontier.
    pub(crate) async fn get_stored(
        self: &Arc<Self>,
        node: &Arc<Node>,
        key: &Key,
    ) -> Result<Read<Option<Bytes>>> {
        let mut missed = Choice::Absent;
        for _ in 0..STALE_MAX {
            let Versions { records, point, .. } = self.load_versions(node, key).await?;
            let newest = records.into_iter().max_by_key(|record| record.version);
            let choice = newest.map_or(Choice::Absent, Choice::Version);
            if let Fetched::Value(value) = self.value(node, key, &choice).await? {
                return Ok(Read { value, point });
            }
            missed = choice;
        }
        Err(damaged(key, &missed))
    }

    /// The value of a chosen version.
    pub(crate) async fn value(
        self: &Arc<Self>,
        node: &Arc<Node>,
        key: &Key,
        choice: &Choice,
    ) -> Result<Fetched> {
        let Choice::Version(record) = choice else {
            return Ok(Fetched::Value(None));
        };
        let write = record
            .write_of(key)
            .expect("a record was chosen for a key it wrote");
        if write.place == Place::Gone {
            return Ok(Fetched::Value(None));
        }
        let value = self.stored_value(node, record.attempt, write).await?;
        Ok(value.map_or(Fetched::Missing, |value| Fetched::Value(Some(value))))
    }

    /// The value of a write that is in the store, or was until lately; `None` if it is gone. A
    /// corruption error names the key, so that the reader of a page can continue after it.
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
        let large = match write.place {
            Place::Chunks { bytes, .. } => Some(bytes),
            Place::Packed { bytes, .. } => {
                Some(bytes).filter(|bytes| *bytes as usize > self.context.config.inline_bytes_max)
            }
            Place::Inline { .. } | Place::Gone => None,
        };
        let held = match large {
            Some(bytes) => Some(self.reserve_reading(bytes as usize).await?),
            None => None,
        };
        let value = match write.place {
            Place::Chunks { .. } => node.store.chunked_value(attempt, write).await?,
            Place::Packed { .. } => self.packing.packed_value(node, attempt, write).await?,
            Place::Inline { .. } | Place::Gone => {
                let item = node.store.version(&write.key, attempt).await?;
                let item = item.filter(|item| item.write == write.write);
                item.and_then(|item| item.value)
            }
        };
        let Some(value) = value else { return Ok(None) };
        if let Some(mut cache) = self.cache.of(node.id) {
            cache.data.insert(attempt, write.write, value.clone());
        }
        Ok(Some(match held {
            Some(held) => Bytes::from_owner(Reading { value, _held: held }),
            None => value,
        }))
    }

    /// Reserves memory for a large value. Errors: `TooMuchBuffered` if other reads do not release
    /// theirs.
    pub(crate) async fn reserve_reading(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let bytes = bytes.min(self.context.config.read_bytes_max) as u32;
        let reading = Arc::clone(&self.reading);
        tokio::select! {
            biased;
            held = reading.acquire_many_owned(bytes) => Ok(held.expect("it is never closed")),
            () = self.context.clock.sleep(self.context.config.read_wait_max) => Err(Error::TooMuchBuffered),
        }
    }

    /// Loads the versions of `key`, or joins a running load.
    pub(crate) fn load(self: &Arc<Self>, node: &Arc<Node>, key: &Key) -> watch::Receiver<Loaded> {
        let waiter = {
            let Some(mut cache) = self.cache.of(node.id) else {
                return watch::channel(Some(Err(Error::unavailable("the node restarts")))).1;
            };
            match cache.index.load(key) {
                Loading::UnderWay(waiter) => return waiter,
                Loading::ByCaller(waiter) => waiter,
            }
        };
        self.context.counters.lock().loads += 1;
        let (loader, node, key) = (Arc::clone(self), Arc::clone(node), key.clone());
        self.context.spawn(async move {
            let found = loader.load_versions(&node, &key).await;
            // Another node's loads are its own.
            let Some(mut cache) = loader.cache.of(node.id) else {
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
                    // Their writes to other keys may be news, too.
                    for record in &records {
                        if !cache.applied.contains(record.position) {
                            cache.index.apply(record);
                        }
                    }
                }
                Err(error) => cache.index.fail_load(&key, error),
            }
        });
        waiter
    }

    /// The committed versions of `key` in the store. For this node's recent commits, and those in
    /// use, it needs no rows.
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
        let (mut records, mut values) = (Vec::new(), Vec::new());
        for (record, item, read_at) in found {
            point = point.max(read_at);
            let Some(record) = record else { continue };
            values.extend(item.value.map(|value| (record.attempt, item.write, value)));
            records.push(record);
        }
        self.check_succession(node, key.keyspace()).await?;
        Ok(Versions {
            records,
            values,
            point,
        })
    }

    /// A successor collects versions that snapshots of this node need. A load in a sequenced
    /// keyspace is therefore complete only if there was no successor yet. Among several nodes the
    /// lease ensures that.
    pub(crate) async fn check_succession(
        &self,
        node: &Arc<Node>,
        keyspace: KeyspaceId,
    ) -> Result<()> {
        if self.context.is_alone() && self.sequencing.keyspaces.lock().is_sequenced(keyspace) {
            self.sequencing.follow_sequencer(node).await?;
        }
        Ok(())
    }
}

/// The error for a version that is missing although no node may have collected it.
pub(crate) fn damaged(key: &Key, choice: &Choice) -> Error {
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

/// The record of a version, if it is committed, and the write that made the version is the last of
/// its attempt.
pub(crate) async fn committed_version(
    node: &Node,
    key: &Key,
    attempt: Attempt,
    item: VersionItem,
    known: Option<Arc<CommitRecord>>,
) -> Result<(Option<Arc<CommitRecord>>, VersionItem, DurabilityPoint)> {
    let (record, point) = match known {
        Some(record) => (Some(Arc::clone(&record)), record.point),
        None => committed_record(node, &item.id, attempt).await?,
    };
    let is_its_write = |record: &Arc<CommitRecord>| {
        let last = record.write_of(key);
        last.is_some_and(|write| write.write == item.write)
    };
    Ok((record.filter(is_its_write), item, point))
}

/// The record of an attempt, if its row is committed, or the row was handed over and the attempt is
/// in the sequencer's log.
async fn committed_record(
    node: &Node,
    id: &TransactionId,
    attempt: Attempt,
) -> Result<(Option<Arc<CommitRecord>>, DurabilityPoint)> {
    let (mut decision, mut point) = node.store.decision(id).await?;
    let is_prepared = |row: &Decision| row.attempt == attempt && row.state == State::Prepared;
    if decision.as_ref().is_some_and(is_prepared) {
        if let Some(record) = node.followed.unsettled(attempt) {
            let point = point.max(record.point);
            return Ok((Some(record), point));
        }
        // Settled since it was read; or not decided before this, and then it is announced like any
        // other.
        (decision, point) = node.store.decision(id).await?;
    }
    let record = match decision.filter(|row| row.attempt == attempt) {
        Some(Decision {
            state: State::Committed(stored),
            ..
        }) => Some(node.store.record(id, attempt, &stored, point).await?),
        _ => None,
    };
    Ok((record.map(Arc::new), point))
}
