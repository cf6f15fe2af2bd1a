//! A node's memory of the store: versions, values, recent commits, and their frontiers.
//!
//! Invariants
//! - It is a cache of the store: evicting from it never changes an answer.
//! - Everything at or below the applied frontier is in the index, or was superseded and collected.
//! - Only the node that serves changes it. A task of an earlier start finds no [`Cache::of`] its
//!   node.
//!
//! Its lock is held only for map operations. The order of locks is: the attempt's, then those of
//! the open attempts or of the cluster, then this one.

pub(crate) mod data_cache;
pub(crate) mod recent_commits;
pub(crate) mod version_index;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::{
    Config, Error,
    attempts::write_buffer::WriteBuffer,
    cache::{data_cache::DataCache, recent_commits::RecentCommits, version_index::Index},
    model::{Attempt, NodeId},
    node::Node,
    storage::{frontier::Frontier, records::CommitRecord},
};

/// The memory of one process; it is emptied when its node restarts.
#[derive(Debug)]
pub(crate) struct Cache(Mutex<Contents>);

/// The contents of the cache.
#[derive(Debug)]
pub(crate) struct Contents {
    /// The node that it belongs to; `None` if no node serves.
    serving: Option<NodeId>,
    pub(crate) index: Index,
    pub(crate) data: DataCache,
    pub(crate) recent: RecentCommits,
    /// The applied frontier: everything up to here is in the index.
    pub(crate) applied: Arc<Frontier>,
    /// The slots up to which deletions may be gone from the store.
    pub(crate) dropped: Arc<Frontier>,
    /// The frontier that every node has applied, including all its open transactions. Empty for a
    /// single node.
    pub(crate) agreed: Frontier,
    /// The slot of the own log up to which superseded versions are collected.
    pub(crate) collected: u64,
    /// The approximate number of bytes that the commits known here have superseded.
    pub(crate) superseded_bytes: u64,
}

impl Cache {
    pub(crate) fn new(config: &Config) -> Self {
        Self(Mutex::new(Contents {
            serving: None,
            index: Index::new(config.index_bytes_max),
            data: DataCache::new(config.data_cache_bytes_max),
            recent: RecentCommits::new(config.recent_bytes_max),
            applied: Arc::default(),
            dropped: Arc::default(),
            agreed: Frontier::default(),
            collected: 0,
            superseded_bytes: 0,
        }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock()
    }

    /// The contents, to be changed on behalf of `node`. `None` if that node does not serve.
    pub(crate) fn of(&self, node: NodeId) -> Option<MutexGuard<'_, Contents>> {
        let contents = self.lock();
        (contents.serving == Some(node)).then_some(contents)
    }

    /// `node` serves from now on, with its initial frontier and the deletions that may be gone.
    pub(crate) fn start(&self, node: NodeId, applied: Frontier, dropped: Frontier) {
        let mut contents = self.lock();
        contents.serving = Some(node);
        contents.applied = Arc::new(applied);
        contents.dropped = Arc::new(dropped);
        contents.agreed = Frontier::default();
    }

    /// No node serves. Running loads end with `why`.
    pub(crate) fn stop(&self, why: &Error) {
        let mut contents = self.lock();
        contents.serving = None;
        contents.index.clear(why);
        contents.data.clear();
        contents.recent.clear();
        contents.collected = 0;
    }

    /// A commit of `node` is decided, and was announced in `slot` of its log.
    pub(crate) fn on_commit(
        &self,
        node: NodeId,
        slot: u64,
        record: &Arc<CommitRecord>,
        written: &WriteBuffer,
    ) {
        let Some(mut contents) = self.of(node) else {
            return;
        };
        // One in a sequenced keyspace came with the sequencer's slot.
        if record.position.log == node {
            contents.superseded_bytes += contents.index.superseded_by(record);
            contents.index.apply(record);
        }
        contents.recent.note(slot, record);
        for (_, buffered) in written.iter() {
            if let Some(value) = buffered.value() {
                let (attempt, write) = (record.attempt, buffered.write);
                contents.data.insert(attempt, write, value.clone());
            }
        }
    }

    /// The applied frontier, and the bytes superseded by then.
    pub(crate) fn frontier(&self) -> (Arc<Frontier>, u64) {
        let contents = self.lock();
        (Arc::clone(&contents.applied), contents.superseded_bytes)
    }
}

impl Contents {
    /// Commits of other nodes or of the sequencer's log are known to `node`, which serves. Its
    /// timestamps lie above theirs from now on (T-1). Those at or below the frontier were merged
    /// before, and their versions may be collected.
    pub(crate) fn on_commits_elsewhere(&mut self, node: &Node, records: &[Arc<CommitRecord>]) {
        let own = node.id;
        for record in records {
            node.log.observe(record.version.timed());
            if self.applied.contains(record.position) {
                continue;
            }
            self.superseded_bytes += self.index.superseded_by(record);
            self.index.apply(record);
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
        Arc::make_mut(&mut self.applied).advance(log, slot);
    }

    /// The sequencer's log was sealed in slot `sealed`, and everything before it is visible.
    /// Deletions before it may be collected.
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
