//! A volume in memory: the reference for the engine, and a volume for tests of its users.
//!
//! It keeps every version of every key and decides each proposal by looking at all of them. It
//! shares no code with the engine beyond the types and the lock table, so that a fault is not in
//! both.

mod commit;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, Range},
};

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _, ready};
use parking_lot::Mutex;
use ports::{DurabilityPoint, Incarnation, Position, Read};
use tokio::sync::Notify;

use crate::{
    Error, Result,
    serializable::{
        lock_table::LockTable,
        model::{
            At, BlockBytes, Changed, Entry, Granted, Groups, KEYS_MAX, Key, KeyRange, Lock,
            NUMBERS_RESERVED, Owner, PAGE_BYTES_MAX, Page, PageLimits, PinName, Proposal,
            SessionId, Slot, Snapshot, StageId, Usage, Values, Verdict, Wait,
            proposal::{PART_BYTES_MAX, PARTS_MAX},
        },
        volume_store::VolumeStore,
    },
};

/// The versions of a key by their slots; `None`: it was deleted.
type Versions = BTreeMap<Slot, Option<Bytes>>;

/// A volume in memory. Calls answer at once, except a lock that waits.
#[derive(Debug)]
pub struct ModelVolume {
    block_bytes: BlockBytes,
    state: Mutex<State>,
    /// Locks were freed.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    incarnation: u64,
    slot: Slot,
    /// The last slot that a crash keeps.
    durable: Slot,
    /// Reads before it are too old, except at pins.
    horizon: Slot,
    versions: BTreeMap<Key, Versions>,
    /// Ids that have committed or are closed, with the slot.
    decided: BTreeMap<Bytes, (Slot, u64, Verdict)>,
    stages: BTreeMap<StageId, BTreeMap<u32, Bytes>>,
    pins: BTreeMap<PinName, Slot>,
    locks: LockTable,
    holds: BTreeSet<(Key, SessionId)>,
    ranges_reserved: u64,
    quota_bytes: Option<u64>,
}

impl ModelVolume {
    /// An empty volume.
    pub fn new(block_bytes: BlockBytes) -> Self {
        Self {
            block_bytes,
            state: Mutex::default(),
            freed: Notify::new(),
        }
    }

    /// Sets the most bytes that it may take.
    pub fn set_quota(&self, bytes: Option<u64>) {
        self.state.lock().quota_bytes = bytes;
    }

    /// Forgets the versions that only snapshots before `horizon` need. Pins keep theirs.
    pub fn collect(&self, horizon: Slot) {
        let state = &mut *self.state.lock();
        state.horizon = state.horizon.max(horizon.min(state.slot));
        let kept: Vec<Slot> = state.pins.values().copied().collect();
        for versions in state.versions.values_mut() {
            let newest = |at: Slot| versions.range(..=at).next_back().map(|(slot, _)| *slot);
            let readable: BTreeSet<Slot> = kept.iter().filter_map(|at| newest(*at)).collect();
            let oldest = newest(state.horizon).unwrap_or_default();
            versions.retain(|slot, _| *slot >= oldest || readable.contains(slot));
        }
    }

    /// A volume with the content of this one at `at` (`None`: now), and no history. Errors:
    /// `SnapshotTooOld`.
    pub(super) fn cloned_at(&self, at: Option<Slot>) -> Result<Self> {
        let state = &*self.state.lock();
        let slot = state.slot_of(at.map_or(At::Tail, At::Slot))?;
        let present = state.versions.keys().filter_map(|key| {
            let value = state.get(key, slot)?.clone();
            Some((key.clone(), BTreeMap::from([(slot, Some(value))])))
        });
        let content = State {
            slot,
            durable: slot,
            horizon: slot,
            versions: present.collect(),
            ranges_reserved: state.ranges_reserved,
            ..State::default()
        };
        Ok(Self {
            block_bytes: self.block_bytes,
            state: Mutex::new(content),
            freed: Notify::new(),
        })
    }

    /// Loses all that no call of `externalize` has made durable, and all sessions.
    pub fn crash(&self) {
        let state = &mut *self.state.lock();
        let durable = state.durable;
        for versions in state.versions.values_mut() {
            versions.retain(|slot, _| *slot <= durable);
        }
        state.decided.retain(|_, (slot, ..)| *slot <= durable);
        state.incarnation += 1;
        // The successor's seal takes a slot, so no slot has two meanings.
        state.slot.0 += 1;
        state.durable = state.slot;
        state.locks = LockTable::starting_at(state.slot);
        state.holds.clear();
        self.freed.notify_waiters();
    }
}

impl State {
    fn point(&self) -> DurabilityPoint {
        DurabilityPoint {
            incarnation: Incarnation(self.incarnation),
            position: Position(self.slot.0),
        }
    }

    fn answer<T>(&self, value: T) -> Read<T> {
        let point = self.point();
        Read { value, point }
    }

    fn slot_of(&self, at: At) -> Result<Slot> {
        match at {
            At::Tail => Ok(self.slot),
            At::Slot(slot) if slot > self.slot => {
                Err(Error::Invalid("the slot of a read is not written yet"))
            }
            At::Slot(slot)
                if slot < self.horizon && !self.pins.values().any(|pin| *pin == slot) =>
            {
                Err(Error::SnapshotTooOld)
            }
            At::Slot(slot) => Ok(slot),
        }
    }

    fn get(&self, key: &Key, at: Slot) -> Option<&Bytes> {
        let versions = self.versions.get(key)?;
        let (_, newest) = versions.range(..=at).next_back()?;
        newest.as_ref()
    }

    fn get_many(&self, at: At, keys: &[Key]) -> Result<Values> {
        if keys.len() > KEYS_MAX {
            return Err(Error::TooLarge("one call reads at most 1,000 keys"));
        }
        let slot = self.slot_of(at)?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        for key in keys {
            let value = self.get(key, slot);
            bytes += value.map_or(0, Bytes::len);
            if bytes > PAGE_BYTES_MAX && !found.is_empty() {
                break;
            }
            found.push(value.cloned());
        }
        Ok(Values { slot, found })
    }

    fn scan(&self, at: At, range: &KeyRange, limits: PageLimits) -> Result<Page> {
        let slot = self.slot_of(at)?;
        let (mut entries, mut bytes, mut next) = (Vec::new(), 0, None);
        let keys = self.versions.range(range.first()..).map(|(key, _)| key);
        for key in keys.take_while(|key| !range.is_before(key)) {
            let Some(value) = self.get(key, slot) else {
                continue;
            };
            let more = key.name().len() + value.len();
            if !limits.admit(entries.len(), bytes, more) {
                next = Some(key.name().clone());
                break;
            }
            bytes += more;
            entries.push(Entry {
                name: key.name().clone(),
                value: value.clone(),
            });
        }
        Ok(Page {
            slot,
            entries,
            next,
        })
    }

    fn changed_since(&self, slot: Slot, groups: &Groups) -> Changed {
        let to = self.slot;
        let after = (Bound::Excluded(slot), Bound::Unbounded);
        let is_changed = |versions: &Versions| slot < to && versions.range(after).next().is_some();
        let changed = self
            .versions
            .iter()
            .filter(|(_, versions)| is_changed(versions));
        let changed = changed
            .map(|(key, _)| key)
            .filter(|key| groups.contain(key));
        let keys: Vec<Key> = changed.cloned().collect();
        let bytes: usize = keys.iter().map(Key::bytes_len).sum();
        if slot < self.horizon || bytes > PAGE_BYTES_MAX {
            Changed::Everything { to }
        } else {
            Changed::Keys { to, keys }
        }
    }

    fn usage(&self) -> Usage {
        let newest = self.versions.iter().filter_map(|(key, versions)| {
            let value = versions.values().next_back()?.as_ref()?;
            Some((key.name().len() + value.len()) as u64)
        });
        let (keys, bytes) = newest.fold((0, 0), |(keys, sum), bytes| (keys + 1, sum + bytes));
        Usage {
            bytes,
            keys,
            quota_bytes: self.quota_bytes,
        }
    }
}

/// An answer that is there at once.
fn now<'a, T: Send + 'a>(answer: Result<T>) -> BoxFuture<'a, Result<T>> {
    ready(answer).boxed()
}

impl VolumeStore for ModelVolume {
    fn block_bytes(&self) -> BlockBytes {
        self.block_bytes
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Read<Snapshot>>> {
        let state = self.state.lock();
        now(Ok(state.answer(Snapshot { slot: state.slot })))
    }

    fn get_many<'a>(&'a self, at: At, keys: &'a [Key]) -> BoxFuture<'a, Result<Read<Values>>> {
        let state = self.state.lock();
        now(state.get_many(at, keys).map(|found| state.answer(found)))
    }

    fn scan<'a>(
        &'a self,
        at: At,
        range: &'a KeyRange,
        limits: PageLimits,
    ) -> BoxFuture<'a, Result<Read<Page>>> {
        let state = self.state.lock();
        now(state.scan(at, range, limits).map(|page| state.answer(page)))
    }

    fn changed_since<'a>(
        &'a self,
        slot: Slot,
        groups: &'a Groups,
    ) -> BoxFuture<'a, Result<Read<Changed>>> {
        let state = self.state.lock();
        now(Ok(state.answer(state.changed_since(slot, groups))))
    }

    fn stage(
        &self,
        stage: StageId,
        part: u32,
        writes: Bytes,
    ) -> BoxFuture<'_, Result<DurabilityPoint>> {
        let mut state = self.state.lock();
        if writes.len() > PART_BYTES_MAX || part >= PARTS_MAX {
            return now(Err(Error::TooLarge("a stage has 65,536 parts of 300 KiB")));
        }
        state.stages.entry(stage).or_default().insert(part, writes);
        now(Ok(state.point()))
    }

    fn commit(&self, proposal: Proposal) -> BoxFuture<'_, Result<Read<Verdict>>> {
        let state = &mut *self.state.lock();
        now(proposal.check().map(|()| {
            let verdict = state.decide(&proposal);
            state.answer(verdict)
        }))
    }

    fn externalize(&self, point: DurabilityPoint) -> BoxFuture<'_, Result<()>> {
        let state = &mut *self.state.lock();
        if point.incarnation.0 < state.incarnation && point != DurabilityPoint::DURABLE {
            return now(Err(Error::unavailable("the store has lost this point")));
        }
        state.durable = state.durable.max(Slot(point.position.0));
        now(Ok(()))
    }

    fn pin(&self, name: PinName, slot: Slot) -> BoxFuture<'_, Result<()>> {
        let state = &mut *self.state.lock();
        now(state.slot_of(At::Slot(slot)).map(|slot| {
            state.pins.insert(name, slot);
        }))
    }

    fn unpin<'a>(&'a self, name: &'a PinName) -> BoxFuture<'a, Result<()>> {
        self.state.lock().pins.remove(name);
        now(Ok(()))
    }

    fn pins(&self) -> BoxFuture<'_, Result<Vec<(PinName, Slot)>>> {
        let pins = self.state.lock().pins.clone();
        now(Ok(pins.into_iter().collect()))
    }

    fn lock(&self, owner: Owner, lock: Lock) -> BoxFuture<'_, Result<Granted>> {
        Box::pin(async move {
            loop {
                let freed = self.freed.notified();
                let granted = {
                    let state = &mut *self.state.lock();
                    match lock.wait {
                        Wait::Test => state.locks.test(owner, &lock),
                        _ => state.locks.take(owner, &lock, state.slot),
                    }
                };
                if granted != Granted::Yes && lock.wait == Wait::UntilGranted {
                    freed.await;
                    continue;
                }
                // An unlock frees bytes, and so does an exclusive lock that becomes shared.
                self.freed.notify_waiters();
                return Ok(granted);
            }
        })
    }

    fn hold(&self, session: SessionId, key: Key) -> BoxFuture<'_, Result<()>> {
        self.state.lock().holds.insert((key, session));
        now(Ok(()))
    }

    fn release<'a>(&'a self, session: SessionId, key: &'a Key) -> BoxFuture<'a, Result<()>> {
        self.state.lock().holds.remove(&(key.clone(), session));
        now(Ok(()))
    }

    fn is_held<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<bool>> {
        let state = self.state.lock();
        now(Ok(state.holds.iter().any(|(held, _)| held == key)))
    }

    fn end_session(&self, session: SessionId) -> BoxFuture<'_, Result<()>> {
        let state = &mut *self.state.lock();
        state.locks.end_session(session, state.slot);
        state.holds.retain(|(_, holder)| *holder != session);
        self.freed.notify_waiters();
        now(Ok(()))
    }

    fn reserve_numbers(&self) -> BoxFuture<'_, Result<Range<u64>>> {
        let state = &mut *self.state.lock();
        state.ranges_reserved += 1;
        let first = state.ranges_reserved * NUMBERS_RESERVED;
        now(Ok(first..first + NUMBERS_RESERVED))
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        now(Ok(self.state.lock().usage()))
    }
}
