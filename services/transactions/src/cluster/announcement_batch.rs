//! Announcement batches: announcements become visible together, after a prefetch of the values that
//! replace cached ones.
//!
//! ```text
//!  announcements ──▶ a batch: until every member has sent one, or for a bounded time
//!                      the newest version of each key that is read here
//!                        ──▶ its value, from the store into the cache
//!                      all of them at one instant ──▶ index, applied frontier
//! ```
//!
//! Announced commits supersede values in the cache, and the next reader of such a key waits for the
//! store. With many nodes announcements arrive all the time, so readers of a hot key would wait as
//! often per second as there are nodes. Announcements are therefore merged in batches, and the
//! values of keys that were read here recently are prefetched ([`DataCache::warmth`]).
//!
//! [`DataCache::warmth`]: crate::cache::data_cache::DataCache::warmth
//!
//! Invariants
//! - Announcements of a batch are not applied: begins, horizons and commit tokens use the merged
//!   frontier. This node reports them as received
//!   ([`NodeState`](crate::cluster::messages::NodeState)), so no node sends them again. A later
//!   announcement may omit what they supersede, because it is merged no earlier.
//! - Announcements are merged in the order in which they arrived.
//! - A batch is pruned like one message: a commit is passed over if every key of it has a newer
//!   version there.
//! - None waits longer than [`Config::batch_wait`] and [`READ_AHEAD_MAX`], whether or not the
//!   store answers. A commit is therefore visible everywhere within an announcement's second plus
//!   that time.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream};

use crate::{
    cache::Cache,
    cluster::{Cluster, ClusterState},
    model::{Attempt, Key, NodeId, Version},
    node::Node,
    storage::{
        frontier::Frontier,
        records::{CommitRecord, Place, Write},
    },
};

#[allow(unused_imports, reason = "the page links to it")]
use crate::config::Config;

/// The longest time that announcements wait for the prefetch.
const READ_AHEAD_MAX: Duration = Duration::from_millis(250);
/// The most values prefetched at a time, and the most in all for one batch.
const AT_ONCE: usize = 64;
const VALUES_MAX: usize = 4_096;
/// The approximate memory for a batch; beyond it they are merged at once.
const BYTES_MAX: usize = 16 << 20;

/// An announcement of a node's log.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) from: NodeId,
    /// Everything up to here is decided, and announced or applied; `None` if an earlier slot was
    /// missing.
    pub(crate) through: Option<u64>,
    pub(crate) records: Vec<Arc<CommitRecord>>,
}

/// Announcements of others that are not merged yet.
#[derive(Debug, Default)]
pub(crate) struct AnnouncementBatch {
    told: VecDeque<Received>,
    /// How many were merged before these.
    merged: u64,
    /// The slots up to which logs are announced, beyond the applied frontier.
    through: BTreeMap<NodeId, u64>,
    /// The nodes that have announced since the last merge, even if they had nothing.
    announced: BTreeSet<NodeId>,
    bytes: usize,
    /// Whether a task waits to merge them.
    is_awaited: bool,
}

impl AnnouncementBatch {
    fn push(&mut self, told: Received) {
        if let Some(through) = told.through {
            let known = self.through.entry(told.from).or_default();
            *known = through.max(*known);
        }
        self.bytes += bytes_of(&told);
        self.told.push_back(told);
    }

    /// The slots up to which logs are announced.
    pub(crate) fn through(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.through.iter().map(|(log, slot)| (*log, *slot))
    }

    fn end(&self) -> u64 {
        self.merged + self.told.len() as u64
    }

    /// The first ones, up to `end`.
    fn take(&mut self, end: u64) -> Vec<Received> {
        let count = end.saturating_sub(self.merged) as usize;
        let taken: Vec<Received> = self.told.drain(..count.min(self.told.len())).collect();
        self.merged += taken.len() as u64;
        self.announced.clear();
        self.bytes -= taken.iter().map(bytes_of).sum::<usize>();
        taken
    }
}

fn bytes_of(told: &Received) -> usize {
    told.records.iter().map(|record| record.bytes_len()).sum()
}

impl Cluster {
    /// Adds a node's announcement, if it has any commits, and ensures that it is merged.
    pub(crate) fn add_to_batch(
        self: &Arc<Self>,
        node: &Arc<Node>,
        from: NodeId,
        told: Option<Received>,
    ) {
        let others = self.others(node);
        let Some(mut cluster) = self.of(node.id) else {
            return;
        };
        let batch = &mut cluster.batch;
        batch.announced.insert(from);
        if let Some(told) = told {
            batch.push(told);
        }
        if batch.told.is_empty() {
            return;
        }
        if batch.bytes > BYTES_MAX || others.keys().all(|other| batch.announced.contains(other)) {
            node.all_told.notify_one();
        }
        let is_awaited = std::mem::replace(&mut batch.is_awaited, true);
        if batch.bytes > 2 * BYTES_MAX {
            cluster.merge_batch(node, &self.cache);
        }
        drop(cluster);
        if !is_awaited {
            let (this, node) = (Arc::clone(self), Arc::clone(node));
            self.context
                .spawn(async move { this.merge_in_time(&node).await });
        }
    }

    /// Merges until the batch is empty.
    async fn merge_in_time(&self, node: &Arc<Node>) {
        let mut wait = self.context.config.batch_wait;
        loop {
            tokio::select! {
                biased;
                () = node.all_told.notified() => {}
                () = self.context.clock.sleep(wait) => {}
            }
            let end = self.lock().batch.end();
            // Later arrivals wait until the next round, which begins only once this one's values
            // are read.
            let closed = self.context.clock.monotonic();
            tokio::select! {
                biased;
                () = self.read_ahead(node, end) => {}
                () = self.context.clock.sleep(READ_AHEAD_MAX) => {}
            }
            let Some(mut cluster) = self.of(node.id) else {
                return;
            };
            cluster.merge_until(node, &self.cache, end);
            if cluster.batch.told.is_empty() {
                cluster.batch.is_awaited = false;
                return;
            }
            drop(cluster);
            let has_waited = self.context.clock.monotonic().since(closed);
            wait = self.context.config.batch_wait.saturating_sub(has_waited);
        }
    }

    /// Prefetches the values of the announcements up to `end` where they supersede values that were read here.
    async fn read_ahead(&self, node: &Arc<Node>, end: u64) {
        let wanted = self.lock().wanted(&self.cache, end);
        let reads = stream::iter(wanted).for_each_concurrent(
            AT_ONCE,
            |(attempt, write, warmth)| async move {
                // If one fails, the next reader reads it.
                let Ok(Some(item)) = node.store.version(&write.key, attempt).await else {
                    return;
                };
                if let Some(value) = item.value
                    && item.write == write.write
                    && let Some(mut cache) = self.cache.of(node.id)
                {
                    cache.data.insert_ahead(attempt, write.write, value, warmth);
                }
            },
        );
        reads.await;
    }
}

/// The records of one message that their receiver needs; `is_superseded` says whether the receiver
/// knows a higher version of a key.
pub(crate) fn prune(
    records: Vec<Arc<CommitRecord>>,
    is_superseded: impl Fn(&Key, Version) -> bool,
) -> Vec<Arc<CommitRecord>> {
    let mut newest: BTreeMap<&Key, Version> = BTreeMap::new();
    for record in &records {
        for write in &record.writes {
            let newest = newest.entry(&write.key).or_default();
            *newest = record.version.max(*newest);
        }
    }
    let is_needed = |record: &CommitRecord| {
        !record.writes.iter().all(|write| {
            newest[&write.key] > record.version || is_superseded(&write.key, record.version)
        })
    };
    let needed: Vec<bool> = records.iter().map(|record| is_needed(record)).collect();
    records
        .into_iter()
        .zip(needed)
        .filter_map(|(record, needed)| needed.then_some(record))
        .collect()
}

impl ClusterState {
    /// The slot up to which `log` is applied, by the frontier `applied`, or announced.
    pub(crate) fn received(&self, applied: &Frontier, log: NodeId) -> u64 {
        let batch = self.batch.through.get(&log).copied().unwrap_or(0);
        applied.through(log).max(batch)
    }

    /// Merges the whole batch.
    pub(crate) fn merge_batch(&mut self, node: &Node, cache: &Cache) {
        self.merge_until(node, cache, self.batch.end());
    }

    fn merge_until(&mut self, node: &Node, cache: &Cache, end: u64) {
        let told = self.batch.take(end);
        let mut cache = cache.lock();
        let through: Vec<_> = told
            .iter()
            .filter_map(|told| Some((told.from, told.through?)))
            .collect();
        let unapplied = told.into_iter().flat_map(|told| told.records);
        let unapplied = unapplied
            .filter(|record| !cache.applied.contains(record.position))
            .collect();
        let news = prune(unapplied, |_, _| false);
        cache.on_commits_elsewhere(node, &news);
        for (log, through) in through {
            cache.advance(log, through);
        }
        self.batch
            .through
            .retain(|log, slot| *slot > cache.applied.through(*log));
    }

    /// The newest values of the announcements up to `end` that follow warm ones, and their warmth.
    fn wanted(&self, cache: &Cache, end: u64) -> Vec<(Attempt, Write, u8)> {
        let count = end.saturating_sub(self.batch.merged) as usize;
        let mut newest = BTreeMap::new();
        for record in self
            .batch
            .told
            .iter()
            .take(count)
            .flat_map(|told| &told.records)
        {
            for write in &record.writes {
                let newest = newest.entry(&write.key).or_insert((record, write));
                if newest.0.version < record.version {
                    *newest = (record, write);
                }
            }
        }
        let cache = cache.lock();
        let wanted = newest.into_values().filter_map(|(record, write)| {
            let present = cache.index.newest(&write.key)?;
            let is_news =
                present.version < record.version && matches!(write.place, Place::Inline { .. });
            let warmth = cache
                .data
                .warmth(present.attempt, present.write_of(&write.key)?.write);
            (is_news && warmth > 0).then(|| (record.attempt, write.clone(), warmth))
        });
        wanted.take(VALUES_MAX).collect()
    }
}
