//! The key version index: the known versions of keys. It is a cache of the store, not the only
//! index.
//!
//! Invariants
//! - **I1** An entry is whole or absent. It begins with a load, and holds every committed version
//!   of its key that was in the store then or was merged since. An entry of merged commits alone
//!   could hide a newer version that was omitted before.
//! - **I2** A commit is merged into an entry if there is one, remembered with the load if one is
//!   under way, and otherwise dropped: a later load sees it.
//! - **I3** Merging is by version and idempotent; the order of arrival does not matter.
//! - **I4** No aborted or undecided attempt is ever in an entry.
//!
//! A record is large, and entries of all its keys hold it: they share one copy, whichever load read
//! it ([`in_use`]).
//!
//! Bounded by bytes: the coldest entries are evicted, and the next read loads them again, so
//! eviction never changes an answer. From AFT, section 3.1, where the index is never evicted.

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
    storage::{frontier::Frontier, records::CommitRecord},
};

/// The overhead of an entry beside its versions.
const ENTRY_BYTES: usize = 160;
/// The typical bytes of an entry: only sizes the cache's tables at creation.
const ENTRY_BYTES_TYPICAL: u64 = 512;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The records that wrote them, oldest version first, so that appending the newest one moves
    /// none.
    pub versions: Vec<Arc<CommitRecord>>,
    /// The entry depends on nothing beyond this point (rule P4).
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

    /// Whether it holds the version that `attempt` wrote.
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

/// Entries of all its keys share a record, so each bears a part of its bytes.
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

/// The result of a load; `None` while it is under way.
pub(crate) type Loaded = Option<Result<Arc<Entry>, Error>>;

#[derive(Debug)]
struct Load {
    applied: Vec<Arc<CommitRecord>>,
    /// Versions that were collected meanwhile: the load may have read them.
    dropped: BTreeSet<Attempt>,
    done: watch::Sender<Loaded>,
}

/// Which task loads a key.
#[derive(Debug)]
pub(crate) enum Loading {
    /// The caller; it ends with [`Index::finish_load`] or [`Index::fail_load`].
    ByCaller(watch::Receiver<Loaded>),
    /// Another task, already.
    UnderWay(watch::Receiver<Loaded>),
}

#[derive(Debug)]
pub(crate) struct Index {
    entries: Cache<Key, Arc<Entry>, Weigh, FixedState>,
    loads: BTreeMap<Key, Load>,
    in_use: InUse,
}

impl Index {
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

    pub(crate) fn entry(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.entries.get(key)
    }

    pub(crate) fn newest(&self, key: &Key) -> Option<&Arc<CommitRecord>> {
        self.entries.peek(key)?.versions.last()
    }

    pub(crate) fn record(&self, attempt: Attempt) -> Option<Arc<CommitRecord>> {
        self.in_use.get(attempt)
    }

    pub(crate) fn load(&mut self, key: &Key) -> Loading {
        if let Some(load) = self.loads.get(key) {
            return Loading::UnderWay(load.done.subscribe());
        }
        let (done, waiter) = watch::channel(None);
        self.loads.insert(
            key.clone(),
            Load {
                applied: Vec::new(),
                dropped: BTreeSet::new(),
                done,
            },
        );
        Loading::ByCaller(waiter)
    }

    /// Ends a load that found `records`, as of `point`. Does nothing if the index was cleared
    /// meanwhile.
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
        for record in records.iter().chain(&load.applied) {
            entry.merge(&self.in_use.share(record));
        }
        entry.drop_versions(&load.dropped);
        let entry = Arc::new(entry);
        self.entries.insert(key.clone(), Arc::clone(&entry));
        // Even if the entry is too large to be kept, the waiting readers receive it.
        load.done.send_replace(Some(Ok(entry)));
    }

    pub(crate) fn fail_load(&mut self, key: &Key, error: Error) {
        if let Some(load) = self.loads.remove(key) {
            load.done.send_replace(Some(Err(error)));
        }
    }

    /// A commit is known (I2).
    pub(crate) fn apply(&mut self, record: &Arc<CommitRecord>) {
        let record = &self.in_use.share(record);
        for write in &record.writes {
            if let Some(load) = self.loads.get_mut(&write.key) {
                load.applied.push(Arc::clone(record));
            } else if let Some(mut entry) = self.entries.get_mut(&write.key) {
                Arc::make_mut(&mut entry).merge(record);
            }
        }
        self.keep_bounds(record);
    }

    /// Entries grow in place, which evicts nothing; inserting one again does.
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

    /// The approximate bytes that the new commit `record` supersedes; for an unknown key, as many
    /// as it writes.
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

    pub(crate) fn drop_versions(&mut self, key: &Key, attempts: &BTreeSet<Attempt>) {
        if let Some(load) = self.loads.get_mut(key) {
            load.dropped.extend(attempts);
        }
        if let Some(mut entry) = self.entries.get_mut(key) {
            Arc::make_mut(&mut entry).drop_versions(attempts);
        }
    }

    /// Drops versions of `key` that no reader at frontier `agreed` or later may need and that other
    /// nodes collect. It keeps those for which `is_mine` says that this node collects them.
    pub(crate) fn prune(
        &mut self,
        key: &Key,
        agreed: &Frontier,
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
        // A version that an own commit supersedes is kept until the collector reaches that commit's
        // slot, and is deleted then.
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

    /// The entry of `key`, without warming it.
    pub(crate) fn peek(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.entries.peek(key)
    }

    /// Forgets the entry of `key`: it named a version that is gone.
    pub(crate) fn forget(&mut self, key: &Key) {
        self.entries.remove(key);
    }

    /// Forgets everything; running loads fail with `error`.
    pub(crate) fn clear(&mut self, error: &Error) {
        self.entries.clear();
        self.in_use = InUse::default();
        for load in std::mem::take(&mut self.loads).into_values() {
            load.done.send_replace(Some(Err(error.clone())));
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.entries.weight()
    }
}
