//! Which owners have locks, and until when each key was last locked.
//!
//! A transaction elides locks: it takes none, and its proposal says that none was in the way
//! (F-1). The table therefore remembers the slot at which each key was last locked. It lives in the
//! memory of the process that writes the volume's log.
//!
//! Invariants
//! - Locks of two owners on one byte, of one family, are both shared.
//! - `free` has exactly the keys without locks, so forgetting one costs no search.
//! - A key that the table has forgotten counts as locked up to the slot at which it was forgotten.
//!   So elision may fail needlessly, never the other way.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::serializable::model::{
    Granted, Key, Lock, LockBytes, LockFamily, LockMode, Owner, SessionId, Slot,
};

/// The most keys in the table. Beyond it, keys without locks are forgotten, those first that were
/// freed first. Locked keys stay: they are as many as the locks of clients.
pub const KEYS_MAX: usize = 100_000;

/// The locks of one volume.
#[derive(Debug, Default)]
pub struct LockTable {
    keys: BTreeMap<Key, Locked>,
    /// The keys without locks, by the slots at which they were last locked.
    free: BTreeSet<(Slot, Key)>,
    /// A key that is not in the table counts as locked up to this slot.
    unknown_until: Slot,
}

/// The locks of one key.
#[derive(Debug, Default)]
struct Locked {
    held: Vec<Held>,
    /// The last slot at which it was locked, unless it is locked now.
    until: Slot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    bytes: LockBytes,
    family: LockFamily,
    owner: Owner,
    mode: LockMode,
    pid: u32,
}

impl LockTable {
    /// An empty table. Every key counts as locked up to `slot`: an earlier table may have known.
    pub fn starting_at(slot: Slot) -> Self {
        Self {
            unknown_until: slot,
            ..Self::default()
        }
    }

    /// Whether `lock` would be granted.
    pub fn test(&self, owner: Owner, lock: &Lock) -> Granted {
        let held = self.keys.get(&lock.key).map_or(&[][..], |key| &key.held);
        let in_the_way = held.iter().find(|held| {
            let is_shared = held.mode == LockMode::Shared && lock.mode == LockMode::Shared;
            let is_other = held.owner != owner && held.family == lock.family;
            is_other && !is_shared && held.bytes.overlaps(lock.bytes)
        });
        match in_the_way {
            Some(held) if lock.mode != LockMode::Unlocked => Granted::No {
                bytes: held.bytes,
                mode: held.mode,
                pid: held.pid,
            },
            _ => Granted::Yes,
        }
    }

    /// Takes or frees the bytes of `lock`, if no other owner is in the way; `now` is the last slot.
    /// The owner's former locks on these bytes are replaced.
    pub fn take(&mut self, owner: Owner, lock: &Lock, now: Slot) -> Granted {
        let granted = self.test(owner, lock);
        if granted != Granted::Yes || lock.bytes.first > lock.bytes.last {
            return granted;
        }
        let unknown_until = self.unknown_until;
        let key = self.keys.entry(lock.key.clone()).or_insert_with(|| Locked {
            held: Vec::new(),
            until: unknown_until,
        });
        if key.held.is_empty() {
            self.free.remove(&(key.until, lock.key.clone()));
        } else {
            key.until = key.until.max(now);
        }
        let is_own = |held: &Held| held.owner == owner && held.family == lock.family;
        let (own, mut held): (Vec<Held>, Vec<Held>) = key.held.drain(..).partition(is_own);
        held.extend(own.iter().flat_map(|held| outside(*held, lock.bytes)));
        if lock.mode != LockMode::Unlocked {
            held.push(Held {
                bytes: lock.bytes,
                family: lock.family,
                owner,
                mode: lock.mode,
                pid: lock.pid,
            });
        }
        held.sort_unstable();
        key.held = held;
        if key.held.is_empty() {
            self.free.insert((key.until, lock.key.clone()));
        }
        self.forget();
        granted
    }

    /// Frees all locks of `session`; `now` is the last slot.
    pub fn end_session(&mut self, session: SessionId, now: Slot) {
        for (key, locked) in &mut self.keys {
            let before = locked.held.len();
            locked.held.retain(|held| held.owner.session != session);
            if locked.held.len() < before {
                locked.until = locked.until.max(now);
                if locked.held.is_empty() {
                    self.free.insert((locked.until, key.clone()));
                }
            }
        }
        self.forget();
    }

    /// Whether no owner has a lock on `key`, and none has had one after slot `at`.
    pub fn is_free_since(&self, key: &Key, at: Slot) -> bool {
        match self.keys.get(key) {
            Some(key) => key.held.is_empty() && key.until <= at,
            None => self.unknown_until <= at,
        }
    }

    fn forget(&mut self) {
        while self.keys.len() > KEYS_MAX {
            let Some((until, key)) = self.free.pop_first() else {
                return;
            };
            self.unknown_until = self.unknown_until.max(until);
            self.keys.remove(&key);
        }
    }
}

/// The parts of `held` that are not in `bytes`.
fn outside(held: Held, bytes: LockBytes) -> impl Iterator<Item = Held> {
    let part = |first: Option<u64>, last: Option<u64>| {
        let bytes = LockBytes {
            first: first?,
            last: last?,
        };
        (bytes.first <= bytes.last).then_some(Held { bytes, ..held })
    };
    let (first, last) = (held.bytes.first, held.bytes.last);
    let left_end = bytes.first.checked_sub(1).map(|end| end.min(last));
    let right_start = bytes.last.checked_add(1).map(|start| start.max(first));
    let left = part(Some(first), left_end);
    let right = part(right_start, Some(last));
    left.into_iter().chain(right)
}
