//! The key version index: what is known of which versions there are. A cache of the store, not its only index.
//!
//! Invariants
//! - **I1** An entry is whole or not there: it begins with a load, and holds every committed version of its key that
//!   was in the store then or was heard of since. An entry of what was heard last alone could hide a newer version
//!   that was left out before.
//! - **I2** A commit is merged into an entry if there is one, remembered with the load if one is under way, and
//!   otherwise left out: a later load sees it.
//! - **I3** Merging is by version and idempotent; the order of arrival does not matter.
//! - **I4** No aborted or undecided attempt is ever in an entry.
//!
//! A record is large, and entries of all its keys hold it: they share one copy, whoever read it ([`in_use`]).
//!
//! Bounded by bytes: the coldest entries go, and the next read loads them again, so eviction never changes an answer.
//! From AFT, section 3.1, where the index is never evicted.

mod in_use;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use foldhash::fast::FixedState;
use in_use::InUse;
use ports::DurabilityPoint;
use quick_cache::{
    Weighter,
    unsync::{Cache, DefaultLifecycle},
};
use tokio::sync::watch;

use crate::{
    Error,
    model::{Attempt, Key},
    storage::{frontier::Heard, records::CommitRecord},
};

/// What an entry costs beside its versions.
const ENTRY_BYTES: usize = 160;
/// About how much an entry takes: sizes the cache's tables at birth, nothing more.
const ENTRY_BYTES_TYPICAL: u64 = 512;

/// All versions of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The records that wrote them, oldest version first, so that the newest one costs no move.
    pub versions: Vec<Arc<CommitRecord>>,
    /// What the entry says rests on nothing beyond this point (rule P4).
    pub point: DurabilityPoint,
    bytes: usize,
}

impl Entry {
    fn new(key: &Key, point: DurabilityPoint) -> Self {
        Self {
            versions: Vec::new(),
            point,
            bytes: ENTRY_BYTES + key.name().len(),
        }
    }

    fn merge(&mut self, record: &Arc<CommitRecord>) {
        self.point = self.point.max(record.point);
        if let Err(place) = self
            .versions
            .binary_search_by_key(&record.version, |other| other.version)
        {
            self.versions.insert(place, Arc::clone(record));
            self.bytes += version_bytes(record);
        }
    }

    /// Whether the version that `attempt` wrote is in it.
    pub(crate) fn holds(&self, attempt: Attempt) -> bool {
        self.versions.iter().any(|record| record.attempt == attempt)
    }

    fn drop_versions(&mut self, attempts: &BTreeSet<Attempt>) {
        let bytes = &mut self.bytes;
        self.versions.retain(|record| {
            let stays = !attempts.contains(&record.attempt);
            *bytes -= if stays { 0 } else { version_bytes(record) };
            stays
        });
    }
}

/// Records are shared by the entries of all they wrote: each bears its part.
fn version_bytes(record: &CommitRecord) -> usize {
    size_of::<Arc<CommitRecord>>() + record.bytes_len() / record.writes.len().max(1)
}

#[derive(Debug, Clone)]
struct Weigh;

impl Weighter<Key, Arc<Entry>> for Weigh {
    fn weight(&self, _: &Key, entry: &Arc<Entry>) -> u64 {
        entry.bytes as u64
    }
}

/// What a load came to; none while it is under way.
pub(crate) type Loaded = Option<Result<Arc<Entry>, Error>>;

/// A load under way.
#[derive(Debug)]
struct Load {
    heard: Vec<Arc<CommitRecord>>,
    /// What was collected meanwhile: the load may have seen it.
    dropped: BTreeSet<Attempt>,
    done: watch::Sender<Loaded>,
}

/// Who loads a key.
#[derive(Debug)]
pub(crate) enum Loading {
    /// The caller; it ends with [`Index::finish_load`] or [`Index::fail_load`].
    ByCaller(watch::Receiver<Loaded>),
    /// Somebody else does already.
    UnderWay(watch::Receiver<Loaded>),
}

/// The entries, and the loads under way.
#[derive(Debug)]
pub(crate) struct Index {
    entries: Cache<Key, Arc<Entry>, Weigh, FixedState>,
    loads: BTreeMap<Key, Load>,
    in_use: InUse,
}

impl Index {
    /// An index of at most about `bytes_max`.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let typical = (bytes_max / ENTRY_BYTES_TYPICAL) as usize;
        let hash = FixedState::default();
        let entries = Cache::with(typical, bytes_max, Weigh, hash, DefaultLifecycle::default());
        Self {
            entries,
            loads: BTreeMap::new(),
            in_use: InUse::default(),
        }
    }

    /// What is known of `key`; none: it has to be loaded.
    pub(crate) fn entry(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.entries.get(key)
    }

    /// The newest version of `key`, as far as it is known.
    pub(crate) fn newest(&self, key: &Key) -> Option<&Arc<CommitRecord>> {
        self.entries.peek(key)?.versions.last()
    }

    /// What `attempt` committed, if somebody has it.
    pub(crate) fn record(&self, attempt: Attempt) -> Option<Arc<CommitRecord>> {
        self.in_use.get(attempt)
    }

    /// Joins the load of `key`, or begins it.
    pub(crate) fn load(&mut self, key: &Key) -> Loading {
        if let Some(load) = self.loads.get(key) {
            return Loading::UnderWay(load.done.subscribe());
        }
        let (done, waiter) = watch::channel(None);
        self.loads.insert(
            key.clone(),
            Load {
                heard: Vec::new(),
                dropped: BTreeSet::new(),
                done,
            },
        );
        Loading::ByCaller(waiter)
    }

    /// Ends a load that found `records`, as of `point`. Nothing happens if the index was cleared meanwhile.
    pub(crate) fn finish_load(
        &mut self,
        key: &Key,
        records: &[Arc<CommitRecord>],
        point: DurabilityPoint,
    ) {
        let Some(load) = self.loads.remove(key) else {
            return;
        };
        let mut entry = Entry::new(key, point);
        for record in records.iter().chain(&load.heard) {
            entry.merge(&self.in_use.share(record));
        }
        entry.drop_versions(&load.dropped);
        let entry = Arc::new(entry);
        self.entries.insert(key.clone(), Arc::clone(&entry));
        // Even if the entry is too large to be kept, those who wait are answered by it.
        load.done.send_replace(Some(Ok(entry)));
    }

    /// Ends a load that failed.
    pub(crate) fn fail_load(&mut self, key: &Key, error: Error) {
        if let Some(load) = self.loads.remove(key) {
            load.done.send_replace(Some(Err(error)));
        }
    }

    /// A commit is known (I2).
    pub(crate) fn hear(&mut self, record: &Arc<CommitRecord>) {
        let record = &self.in_use.share(record);
        for write in &record.writes {
            if let Some(load) = self.loads.get_mut(&write.key) {
                load.heard.push(Arc::clone(record));
            } else if let Some(mut entry) = self.entries.get_mut(&write.key) {
                Arc::make_mut(&mut entry).merge(record);
            }
        }
        self.keep_bounds(record);
    }

    /// Entries grow in place, which evicts nothing; putting one in again does.
    fn keep_bounds(&mut self, record: &CommitRecord) {
        for write in &record.writes {
            if self.entries.weight() <= self.entries.capacity() {
                return;
            }
            if let Some((key, entry)) = self.entries.remove(&write.key) {
                self.entries.insert(key, entry);
            }
        }
    }

    /// About how many bytes `record`, which is news, supersedes: of a key that is not known, as many as it has now.
    pub(crate) fn superseded_by(&self, record: &CommitRecord) -> u64 {
        let superseded = record
            .writes
            .iter()
            .map(|write| match self.entries.peek(&write.key) {
                Some(entry) => entry
                    .versions
                    .last()
                    .map_or(0, |newest| newest.value_bytes(&write.key)),
                None => write.value_bytes(),
            });
        superseded.sum()
    }

    /// Versions of `key` are collected.
    pub(crate) fn drop_versions(&mut self, key: &Key, attempts: &BTreeSet<Attempt>) {
        if let Some(load) = self.loads.get_mut(key) {
            load.dropped.extend(attempts);
        }
        if let Some(mut entry) = self.entries.get_mut(key) {
            Arc::make_mut(&mut entry).drop_versions(attempts);
        }
    }

    /// Drops versions of `key` that nobody who has heard `agreed`, or more, may need, and that others collect: all but
    /// those for which `is_mine` says that this node does.
    pub(crate) fn prune(
        &mut self,
        key: &Key,
        agreed: &Heard,
        is_mine: impl Fn(&CommitRecord) -> bool,
    ) {
        let Some(entry) = self.entries.peek(key) else {
            return;
        };
        let Some(floor) = entry
            .versions
            .iter()
            .rposition(|record| agreed.contains(record.position))
        else {
            return;
        };
        // What an own version supersedes goes when its slot is collected, and it with it.
        let last_own = entry.versions[..=floor]
            .iter()
            .rposition(|record| is_mine(record));
        let others =
            last_own.map_or(0, |own| own + 1)..floor.max(last_own.map_or(0, |own| own + 1));
        let gone: BTreeSet<Attempt> = entry.versions[others]
            .iter()
            .map(|record| record.attempt)
            .collect();
        if !gone.is_empty()
            && let Some(mut entry) = self.entries.get_mut(key)
        {
            Arc::make_mut(&mut entry).drop_versions(&gone);
        }
    }

    /// What is known of `key`, for whom a look does not warm it.
    pub(crate) fn peek(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.entries.peek(key)
    }

    /// Forgets the entry of `key`: it named a version that is gone.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.entries.remove(key);
    }

    /// Forgets everything; loads under way fail with `error`.
    pub(crate) fn clear(&mut self, error: &Error) {
        self.entries.clear();
        self.in_use = InUse::default();
        for load in std::mem::take(&mut self.loads).into_values() {
            load.done.send_replace(Some(Err(error.clone())));
        }
    }

    /// How many bytes the entries hold.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.weight()
    }
}
