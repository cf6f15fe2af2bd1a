//! A client's cache of a volume: values with the slots at which they hold.
//!
//! ```text
//!  snapshot, or a read at the tail
//!    ──▶ changed_since(known): the keys that others wrote     one call, which returns the new slot
//!    ──▶ hot keys are read again, cold ones are dropped       (FaaSFS, section 4.2)
//!  a read at a slot ──▶ values that hold there; only the rest is read from the volume
//! ```
//!
//! A transaction that reads from the cache stays strictly serializable. The volume validates its
//! reads at the commit, and a read at a slot returns the value that the volume held at that slot.
//! The paper also leaves values stale and lets the commit abort, so that a doomed transaction reads
//! a mix of states. Here [`Policy::Lazy`] leaves a file stale until it is read, and then brings it
//! up to date.
//!
//! Invariants
//! - **C1** An entry holds at every slot from its own to the last one that is known for its group.
//! - **C2** A value enters only if it was read at the last known slot of its group: an earlier one
//!   may have changed since.
//! - **C3** When the server restarts on a store that went back, the cache is dropped.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use futures_util::future::{BoxFuture, join};
use parking_lot::Mutex;
use ports::{DurabilityPoint, Read};
use primitives::Mutant;
use transactions::{
    Result,
    serializable::{
        VolumeStore,
        model::{At, Changed, Groups, KEYS_MAX, Key, Slot, Snapshot, Values},
    },
};

use crate::{
    broken::Broken,
    entries::{Entries, Entry},
};

/// The most groups that are known apart under [`Policy::Lazy`]. Beyond it all entries are dropped.
const GROUPS_MAX: usize = 65_536;

/// When cached values are brought up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// All of them at each snapshot.
    #[default]
    Eager,
    /// Those of a group, so of a file, when a transaction first reads it.
    Lazy,
}

/// A volume with a cache in front of it. All clones of a client's handle share it.
#[derive(Debug)]
pub struct CachedVolume {
    inner: Arc<dyn VolumeStore>,
    policy: Policy,
    bytes_max: usize,
    mutant: Mutant<Broken>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// All entries hold from their slot to this one. None: nothing was read yet.
    known: Option<Slot>,
    /// Groups of which a later slot is known.
    groups: BTreeMap<Bytes, Slot>,
    entries: Entries,
    /// The point that all entries depend on.
    point: DurabilityPoint,
    /// How often the server has restarted. Answers to calls of an earlier generation are not kept.
    generation: u64,
    figures: CacheFigures,
}

/// A value, or that there is none.
#[derive(Debug)]
struct Found(Option<Bytes>);

/// Counts since the cache was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheFigures {
    /// Values that were found in it.
    pub hits: u64,
    /// Values that were read from the volume.
    pub misses: u64,
    /// Values that others changed, and that were read again at once.
    pub updated: u64,
    /// Values that others changed, and that were dropped.
    pub invalidated: u64,
    /// Bytes in it.
    pub bytes: u64,
}

impl State {
    fn known(&self, group: &Bytes) -> Option<Slot> {
        self.groups.get(group).copied().max(self.known)
    }

    /// The value of `key` at `at`, if the cache has it.
    fn hit(&mut self, key: &Key, at: Slot) -> Option<Found> {
        let is_known = self.known(key.group()).is_some_and(|known| at <= known);
        let entry = self.entries.get(key)?;
        if !is_known || entry.from > at {
            return None;
        }
        let entry = self.entries.read(key)?;
        Some(Found(entry.value.clone()))
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.groups.clear();
    }

    /// Notes the point of an answer. After a restart that lost writes, slots have another content.
    fn saw(&mut self, point: DurabilityPoint) {
        if self.point.incarnation < point.incarnation {
            self.clear();
            self.known = None;
            self.generation += 1;
        }
        self.point = self.point.max(point);
    }
}

impl CachedVolume {
    /// A cache of at most `bytes_max` bytes before `inner`.
    pub fn new(inner: Arc<dyn VolumeStore>, policy: Policy, bytes_max: usize) -> Self {
        Self::broken(inner, policy, bytes_max, Mutant::NONE)
    }

    /// As [`new`](Self::new), with a rule dropped; only for tests.
    #[doc(hidden)]
    pub fn broken(
        inner: Arc<dyn VolumeStore>,
        policy: Policy,
        bytes_max: usize,
        mutant: Mutant<Broken>,
    ) -> Self {
        Self {
            inner,
            policy,
            bytes_max,
            mutant,
            state: Mutex::default(),
        }
    }

    /// Its counts.
    pub fn figures(&self) -> CacheFigures {
        let state = self.state.lock();
        CacheFigures {
            bytes: state.entries.bytes() as u64,
            ..state.figures
        }
    }

    fn answer<T>(&self, value: T) -> Read<T> {
        let point = self.state.lock().point;
        Read { value, point }
    }

    /// Brings the entries of `groups` up to date. Returns the slot at which they are.
    async fn refresh(&self, groups: &Groups) -> Result<Slot> {
        let (known, generation) = {
            let state = self.state.lock();
            let known = match groups {
                Groups::All => state.known,
                Groups::Of(groups) => {
                    let known = groups.iter().map(|group| state.known(group));
                    known.min().flatten()
                }
            };
            (known, state.generation)
        };
        let Some(known) = known else {
            return self.first().await;
        };
        let changed = self.inner.changed_since(known, groups).await?;
        let (to, hot) = self.apply(changed, groups, generation);
        if !hot.is_empty() {
            let answer = self.inner.get_many(At::Slot(to), &hot).await?;
            let updated = answer.value.found.len() as u64;
            self.fill(&hot, &answer, generation);
            self.state.lock().figures.updated += updated;
        }
        Ok(to)
    }

    /// The first slot that the cache knows.
    async fn first(&self) -> Result<Slot> {
        let Read { value, point } = self.inner.snapshot().await?;
        let state = &mut *self.state.lock();
        state.saw(point);
        if state.known.is_none() {
            state.known = Some(value.slot);
        }
        Ok(value.slot)
    }

    /// Removes changed values. Returns the slot of the answer, and the removed keys that are worth
    /// reading again.
    fn apply(&self, changed: Read<Changed>, groups: &Groups, generation: u64) -> (Slot, Vec<Key>) {
        let state = &mut *self.state.lock();
        state.saw(changed.point);
        let (to, keys) = match changed.value {
            Changed::Keys { to, keys } => (to, Some(keys)),
            Changed::Everything { to } => (to, None),
        };
        if state.generation != generation {
            return (to, Vec::new());
        }
        let hot = if let Some(keys) = keys {
            self.drop_changed(state, keys)
        } else {
            state.clear();
            Vec::new()
        };
        match groups {
            Groups::All => state.known = state.known.max(Some(to)),
            Groups::Of(groups) => {
                if state.groups.len() + groups.len() > GROUPS_MAX {
                    state.clear();
                }
                for group in groups {
                    let known = state.groups.entry(group.clone()).or_default();
                    *known = to.max(*known);
                }
            }
        }
        (to, hot)
    }

    fn drop_changed(&self, state: &mut State, keys: Vec<Key>) -> Vec<Key> {
        if self.mutant.breaks(Broken::KeepsChanged) {
            return Vec::new();
        }
        let mut hot = Vec::new();
        for key in keys {
            let Some(entry) = state.entries.remove(&key) else {
                continue;
            };
            if entry.is_used && hot.len() < KEYS_MAX {
                hot.push(key);
            } else {
                state.figures.invalidated += 1;
            }
        }
        hot
    }

    /// Keeps values that were read from the volume.
    fn fill(&self, keys: &[Key], answer: &Read<Values>, generation: u64) {
        let state = &mut *self.state.lock();
        state.saw(answer.point);
        if state.generation != generation {
            return;
        }
        let from = answer.value.slot;
        for (key, value) in keys.iter().zip(&answer.value.found) {
            let is_last = state.known(key.group()) == Some(from);
            if is_last || self.mutant.breaks(Broken::KeepsOldReads) {
                let entry = Entry::new(value.clone(), from);
                state.entries.insert(key.clone(), entry, self.bytes_max);
            }
        }
    }

    /// The cached values of `keys` at `at`, in their order.
    fn look_up(&self, keys: &[Key], at: Slot) -> Vec<Option<Found>> {
        let state = &mut *self.state.lock();
        let found: Vec<_> = keys.iter().map(|key| state.hit(key, at)).collect();
        let hits = found.iter().flatten().count() as u64;
        state.figures.hits += hits;
        state.figures.misses += keys.len() as u64 - hits;
        found
    }

    async fn read_at(&self, at: Slot, keys: &[Key]) -> Result<Read<Values>> {
        if self.policy == Policy::Lazy {
            self.freshen(at, keys).await?;
        }
        let mut found = self.look_up(keys, at);
        let missing = keys.iter().zip(&found).filter(|(_, found)| found.is_none());
        let missing: Vec<Key> = missing.map(|(key, _)| key.clone()).collect();
        if !missing.is_empty() {
            let generation = self.state.lock().generation;
            let answer = self.inner.get_many(At::Slot(at), &missing).await?;
            self.fill(&missing, &answer, generation);
            let mut values = answer.value.found.into_iter();
            let gaps = found.iter_mut().filter(|found| found.is_none());
            for (gap, value) in gaps.zip(&mut values) {
                *gap = Some(Found(value));
            }
        }
        // The volume may have answered fewer.
        let found = found.into_iter().map_while(|found| Some(found?.0));
        let found = found.collect();
        Ok(self.answer(Values { slot: at, found }))
    }

    /// Brings the groups of `keys` up to date that are not known at `at`.
    async fn freshen(&self, at: Slot, keys: &[Key]) -> Result<()> {
        let behind: BTreeSet<Bytes> = {
            let state = self.state.lock();
            let groups = keys.iter().map(Key::group);
            let is_behind = |group: &&Bytes| state.known(group).is_none_or(|known| known < at);
            groups.filter(is_behind).cloned().collect()
        };
        if !behind.is_empty() {
            let groups = Groups::Of(behind.into_iter().collect());
            self.refresh(&groups).await?;
        }
        Ok(())
    }

    async fn read_tail(&self, keys: &[Key]) -> Result<Read<Values>> {
        let (has_all, generation) = {
            let state = self.state.lock();
            let has_all = keys.iter().all(|key| state.entries.contains(key));
            (has_all, state.generation)
        };
        let groups = match self.policy {
            Policy::Eager => Groups::All,
            Policy::Lazy => {
                let groups: BTreeSet<Bytes> = keys.iter().map(Key::group).cloned().collect();
                Groups::Of(groups.into_iter().collect())
            }
        };
        if has_all && !keys.is_empty() {
            let at = self.refresh(&groups).await?;
            return self.read_at(at, keys).await;
        }
        // At once, so that a miss costs one round trip.
        let read = self.inner.get_many(At::Tail, keys);
        let (refreshed, answer) = join(self.refresh(&groups), read).await;
        refreshed?;
        let answer = answer?;
        self.fill(keys, &answer, generation);
        self.state.lock().figures.misses += keys.len() as u64;
        Ok(answer)
    }
}

impl VolumeStore for CachedVolume {
    fn snapshot(&self) -> BoxFuture<'_, Result<Read<Snapshot>>> {
        Box::pin(async move {
            let slot = match self.policy {
                Policy::Eager => self.refresh(&Groups::All).await?,
                Policy::Lazy => self.first().await?,
            };
            Ok(self.answer(Snapshot { slot }))
        })
    }

    fn get_many<'a>(&'a self, at: At, keys: &'a [Key]) -> BoxFuture<'a, Result<Read<Values>>> {
        Box::pin(async move {
            match at {
                At::Slot(slot) => self.read_at(slot, keys).await,
                At::Tail => self.read_tail(keys).await,
            }
        })
    }

    transactions::forward_volume_calls! {
        block_bytes, scan, changed_since, stage, commit, externalize, pin, unpin, pins, lock,
        hold, release, is_held, end_session, reserve_numbers, usage
    }
}
