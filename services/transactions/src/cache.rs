//! What a node keeps in memory of the store: versions, values, recent commits, and the frontiers that go with them.
//!
//! Invariants
//! - It is a cache of the store: evicting from it never changes an answer.
//! - Everything at or below the applied frontier is in the index, or was superseded and collected.
//! - Only the node that serves changes it. A task of an earlier start finds no [`Cache::of`] its node.
//!
//! Its lock is held for map operations alone, and is the last of the crate's locks to be taken: the attempt's, then
//! those of the open attempts or of the cluster, then this one.

pub(crate) mod data_cache;
pub(crate) mod recent_commits;
pub(crate) mod version_index;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    Config, Error,
    cache::{data_cache::DataCache, recent_commits::RecentCommits, version_index::Index},
    model::{Attempt, NodeId},
    storage::{frontier::Heard, records::CommitRecord},
};

/// The memory of one process; it is emptied when its node starts over.
#[derive(Debug)]
pub(crate) struct Cache(Mutex<Contents>);

/// What the cache holds.
#[derive(Debug)]
pub(crate) struct Contents {
    /// Whose it is. None: no node serves.
    serving: Option<NodeId>,
    pub(crate) index: Index,
    pub(crate) data: DataCache,
    pub(crate) recent: RecentCommits,
    /// The applied frontier: everything up to here is in the index.
    pub(crate) heard: Arc<Heard>,
    /// Up to where deletions may be gone from the store.
    pub(crate) dropped: Arc<Heard>,
    /// What every node has applied, whatever runs there. Alone: nothing.
    pub(crate) agreed: Heard,
    /// Up to which slot of the own log superseded versions are collected.
    pub(crate) collected: u64,
    /// About how many bytes the commits that are known here have superseded.
    pub(crate) superseded_bytes: u64,
}

impl Cache {
    pub(crate) fn new(config: &Config) -> Self {
        Self(Mutex::new(Contents {
            serving: None,
            index: Index::new(config.index_bytes_max),
            data: DataCache::new(config.data_cache_bytes_max),
            recent: RecentCommits::new(config.recent_bytes_max),
            heard: Arc::default(),
            dropped: Arc::default(),
            agreed: Heard::default(),
            collected: 0,
            superseded_bytes: 0,
        }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The contents, to be changed on behalf of `node`. None: it serves no longer, or not yet.
    pub(crate) fn of(&self, node: NodeId) -> Option<MutexGuard<'_, Contents>> {
        let contents = self.lock();
        (contents.serving == Some(node)).then_some(contents)
    }

    /// `node` serves from now on, with what it takes for applied and which deletions may be gone.
    pub(crate) fn start(&self, node: NodeId, heard: Heard, dropped: Heard) {
        let mut contents = self.lock();
        contents.serving = Some(node);
        contents.heard = Arc::new(heard);
        contents.dropped = Arc::new(dropped);
        contents.agreed = Heard::default();
    }

    /// No node serves. Loads under way end with `why`.
    pub(crate) fn stop(&self, why: &Error) {
        let mut contents = self.lock();
        contents.serving = None;
        contents.index.clear(why);
        contents.data.clear();
        contents.recent.clear();
        contents.collected = 0;
    }

    /// The applied frontier, and how many bytes were superseded by then.
    pub(crate) fn frontier(&self) -> (Arc<Heard>, u64) {
        let contents = self.lock();
        (Arc::clone(&contents.heard), contents.superseded_bytes)
    }
}

impl Contents {
    /// A commit of this node has its decision row: its versions are visible.
    pub(crate) fn install(&mut self, record: &Arc<CommitRecord>) {
        self.superseded_bytes += self.index.superseded_by(record);
        self.index.hear(record);
        self.recent.note(record.position.slot, record);
    }

    /// Merges commits of other nodes or of the sequencer's log. Those at or below the frontier were merged before, and
    /// their versions may be collected.
    pub(crate) fn merge(&mut self, own: NodeId, records: &[Arc<CommitRecord>]) {
        for record in records {
            if self.heard.contains(record.position) {
                continue;
            }
            self.superseded_bytes += self.index.superseded_by(record);
            self.index.hear(record);
            let collected = self.collected;
            let is_mine =
                |other: &CommitRecord| other.position.log == own && other.position.slot > collected;
            for write in &record.writes {
                self.index.prune(&write.key, &self.agreed, is_mine);
            }
        }
    }

    /// Everything in `log` up to `slot` is applied.
    pub(crate) fn advance(&mut self, log: NodeId, slot: u64) {
        Arc::make_mut(&mut self.heard).advance(log, slot);
    }

    /// The sequencer's log was sealed in slot `sealed`, and everything before it is visible. Deletions before it may
    /// be collected.
    pub(crate) fn pass_sealed(&mut self, sealed: u64) {
        self.advance(NodeId::SEQUENCER, sealed);
        Arc::make_mut(&mut self.dropped).advance(NodeId::SEQUENCER, sealed);
    }

    /// The record of `attempt`, if it committed here lately or is in use.
    pub(crate) fn record(&self, attempt: Attempt) -> Option<Arc<CommitRecord>> {
        let recent = self.recent.get(attempt).cloned();
        recent.or_else(|| self.index.record(attempt))
    }
}
