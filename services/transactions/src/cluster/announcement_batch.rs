//! What others announce becomes visible together, once what it supersedes has been read ahead.
//!
//! ```text
//!  announcements ──▶ gathered: until every member has told something, or for a while
//!                      the newest of each key that is read here ──▶ its value, from the store into the cache
//!                        all of them at one instant ──▶ index, what is heard
//! ```
//!
//! Whatever is announced supersedes values in the cache, and whoever reads such a key next waits for the store. Of many nodes
//! announcements come all the time, so a hot key would be waited for as often as there are nodes in each second. So they
//! are merged together, and nobody waits for a value whose last predecessors were read here ([`DataCache::warmth`]).
//!
//! [`DataCache::warmth`]: crate::cache::data_cache::DataCache::warmth
//!
//! Invariants
//! - What is gathered is not heard: begins, horizons and tokens of commits go by what is merged. It is said to have been received
//!   ([`Standing`](crate::cluster::messages::Standing)), so that nobody announces it again: what it supersedes may be left out of a later
//!   announcement, as that is merged no earlier.
//! - Announcements are merged in the order in which they came.
//! - What is merged together is pruned as one message is: a commit is passed over if every key of it has a newer version there.
//! - None waits longer than [`Config::gathered_for`] and [`READ_AHEAD_MAX`], whether or not the store answers. So a commit is
//!   seen everywhere within an announcement's second and that.

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
        frontier::Heard,
        records::{CommitRecord, Place, Write},
    },
};

#[allow(unused_imports, reason = "the page links to it")]
use crate::config::Config;

/// What is announced does not wait longer for values to be read ahead.
const READ_AHEAD_MAX: Duration = Duration::from_millis(250);
/// Values read ahead at a time, and in all before what is gathered is merged.
const AT_ONCE: usize = 64;
const VALUES_MAX: usize = 4_096;
/// About how much memory may be gathered; more is merged at once.
const BYTES_MAX: usize = 16 << 20;

/// What a node tells of its log.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) from: NodeId,
    /// All up to here is decided, and told of or heard; none: something before it was not.
    pub(crate) through: Option<u64>,
    pub(crate) records: Vec<Arc<CommitRecord>>,
}

/// What others have told, and is not merged.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    told: VecDeque<Told>,
    /// How many were merged before these.
    merged: u64,
    /// Up to where logs are told of, beyond what is heard.
    through: BTreeMap<NodeId, u64>,
    /// Who has announced something, or that there is nothing, since something was merged.
    announced: BTreeSet<NodeId>,
    bytes: usize,
    /// Somebody waits to merge them.
    is_awaited: bool,
}

impl Gathered {
    fn push(&mut self, told: Told) {
        if let Some(through) = told.through {
            let known = self.through.entry(told.from).or_default();
            *known = through.max(*known);
        }
        self.bytes += bytes_of(&told);
        self.told.push_back(told);
    }

    /// Up to where the logs are told of that are.
    pub(crate) fn through(&self) -> impl Iterator<Item = (NodeId, u64)> {
        self.through.iter().map(|(log, slot)| (*log, *slot))
    }

    fn end(&self) -> u64 {
        self.merged + self.told.len() as u64
    }

    /// The first ones, up to `end`.
    fn take(&mut self, end: u64) -> Vec<Told> {
        let count = end.saturating_sub(self.merged) as usize;
        let taken: Vec<Told> = self.told.drain(..count.min(self.told.len())).collect();
        self.merged += taken.len() as u64;
        self.announced.clear();
        self.bytes -= taken.iter().map(bytes_of).sum::<usize>();
        taken
    }
}

fn bytes_of(told: &Told) -> usize {
    told.records.iter().map(|record| record.bytes_len()).sum()
}

impl Cluster {
    /// Gathers what a node announces, if that is anything, and sees to it that it is merged.
    pub(crate) fn gather(self: &Arc<Self>, node: &Arc<Node>, from: NodeId, told: Option<Told>) {
        let others = self.others(node);
        let Some(mut cluster) = self.of(node.id) else {
            return;
        };
        let gathered = &mut cluster.gathered;
        gathered.announced.insert(from);
        if let Some(told) = told {
            gathered.push(told);
        }
        if gathered.told.is_empty() {
            return;
        }
        if gathered.bytes > BYTES_MAX
            || others
                .keys()
                .all(|other| gathered.announced.contains(other))
        {
            node.all_told.notify_one();
        }
        let is_awaited = std::mem::replace(&mut gathered.is_awaited, true);
        if gathered.bytes > 2 * BYTES_MAX {
            cluster.merge_gathered(node, &self.cache);
        }
        drop(cluster);
        if !is_awaited {
            let (this, node) = (Arc::clone(self), Arc::clone(node));
            self.context
                .spawn(async move { this.merge_in_time(&node).await });
        }
    }

    /// Merges what is gathered until nothing is.
    async fn merge_in_time(&self, node: &Arc<Node>) {
        let mut wait = self.context.config.gathered_for;
        loop {
            tokio::select! {
                biased;
                () = node.all_told.notified() => {}
                () = self.context.clock.sleep(wait) => {}
            }
            let end = self.lock().gathered.end();
            // What comes from now on waits until the next round, which begins only once this one's values are read.
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
            if cluster.gathered.told.is_empty() {
                cluster.gathered.is_awaited = false;
                return;
            }
            drop(cluster);
            let has_waited = self.context.clock.monotonic().since(closed);
            wait = self.context.config.gathered_for.saturating_sub(has_waited);
        }
    }

    /// Reads the values of what is gathered up to `end` where they supersede what was read here.
    async fn read_ahead(&self, node: &Arc<Node>, end: u64) {
        let wanted = self.lock().wanted(&self.cache, end);
        let reads = stream::iter(wanted).for_each_concurrent(
            AT_ONCE,
            |(attempt, write, warmth)| async move {
                // One that fails is read by whoever needs it.
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

/// Those of `records`, which go in one message, that their receiver needs; `is_superseded` says whether it knows of a version
/// of a key above another.
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
    /// Up to which slot `log` is applied, by the frontier `heard`, or announced.
    pub(crate) fn received(&self, heard: &Heard, log: NodeId) -> u64 {
        let gathered = self.gathered.through.get(&log).copied().unwrap_or(0);
        heard.through(log).max(gathered)
    }

    /// Merges all that is gathered.
    pub(crate) fn merge_gathered(&mut self, node: &Node, cache: &Cache) {
        self.merge_until(node, cache, self.gathered.end());
    }

    fn merge_until(&mut self, node: &Node, cache: &Cache, end: u64) {
        let told = self.gathered.take(end);
        let mut cache = cache.lock();
        let through: Vec<_> = told
            .iter()
            .filter_map(|told| Some((told.from, told.through?)))
            .collect();
        let unheard = told.into_iter().flat_map(|told| told.records);
        let unheard = unheard
            .filter(|record| !cache.heard.contains(record.position))
            .collect();
        let news = prune(unheard, |_, _| false);
        node.observe(&news);
        cache.merge(node.id, &news);
        for (log, through) in through {
            cache.advance(log, through);
        }
        self.gathered
            .through
            .retain(|log, slot| *slot > cache.heard.through(*log));
    }

    /// The newest values of what is gathered up to `end` that follow warm ones, and how warm those are.
    fn wanted(&self, cache: &Cache, end: u64) -> Vec<(Attempt, Write, u8)> {
        let count = end.saturating_sub(self.gathered.merged) as usize;
        let mut newest = BTreeMap::new();
        for record in self
            .gathered
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
