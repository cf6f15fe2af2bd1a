//! Per-key pipelining: orders this process's updates of a key, and remembers the key's last known
//! value.
//!
//! An update holds the key's lock until its command is sent, and leaves the value that it expects
//! to write. The next update builds on this value and sends its command at once. The server runs
//! the commands of a connection in order, and its script compares the present stamp with the
//! expected one. Many updates of one item are in flight together, and a chain of them costs one
//! round trip. A wrong expectation costs a second round trip, never correctness.
//!
//! An update holds its locks until the reply where optimism does not pay: after its own expectation
//! was wrong, for some updates after another process won a race, and while an item is too large to
//! remember.

use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use quick_cache::{Weighter, sync::Cache};
use tokio::sync::{Mutex, MutexGuard};

use super::{Target, Write};
use crate::codec::stamp;

/// The number of locks; keys share them by hash.
const LOCK_STRIPES: usize = 4096;

/// The largest item that is remembered for the next update.
const REMEMBERED_ITEM_BYTES_MAX: usize = 16 << 10;

/// The memory for all remembered items, and about how many there are.
const MEMORY_BYTES: u64 = 64 << 20;
const MEMORY_ITEMS: usize = 64 << 10;

/// How many updates of a key hold their locks until the reply, after another process won a race.
const SERIALIZED_AFTER_RACE: u8 = 64;

/// The last known value of a target.
#[derive(Debug, Clone)]
struct LastKnown {
    /// None: it is too large to remember.
    bytes: Option<Bytes>,
    /// Whether a server has confirmed it. Otherwise a command that will write it is in flight.
    is_confirmed: bool,
    /// How many further updates hold their locks until the reply.
    serialized_for: u8,
}

impl LastKnown {
    fn of(bytes: &Bytes, is_confirmed: bool, serialized_for: u8) -> Self {
        let bytes = (bytes.len() <= REMEMBERED_ITEM_BYTES_MAX).then(|| bytes.clone());
        Self {
            bytes,
            is_confirmed,
            serialized_for,
        }
    }
}

#[derive(Debug, Clone)]
struct Weight;

impl Weighter<Bytes, LastKnown> for Weight {
    fn weight(&self, name: &Bytes, recent: &LastKnown) -> u64 {
        (name.len() + recent.bytes.as_ref().map_or(0, Bytes::len) + 128) as u64
    }
}

/// The locks and the last known values of this process.
#[derive(Debug)]
pub(crate) struct KeyPipelines {
    locks: Vec<Mutex<()>>,
    hasher: RandomState,
    recent: Cache<Bytes, LastKnown, Weight>,
}

/// The locks that an update holds.
pub(crate) type KeyLocks<'a> = Vec<MutexGuard<'a, ()>>;

impl Default for KeyPipelines {
    fn default() -> Self {
        Self {
            locks: (0..LOCK_STRIPES).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            recent: Cache::with_weighter(MEMORY_ITEMS, MEMORY_BYTES, Weight),
        }
    }
}

impl KeyPipelines {
    fn stripe(&self, target: &Target) -> usize {
        self.hasher.hash_one(&target.name) as usize % LOCK_STRIPES
    }

    /// Locks all targets that may be written. All callers lock in the same order.
    pub(crate) async fn lock(&self, targets: &[Target]) -> KeyLocks<'_> {
        let set = targets.iter().filter(|target| !target.is_only_compared);
        let mut wanted: Vec<usize> = set.map(|target| self.stripe(target)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut locked = Vec::with_capacity(wanted.len());
        for stripe in wanted {
            locked.push(self.locks[stripe].lock().await);
        }
        locked
    }

    /// The expected value of each target; empty for an absent one.
    pub(crate) fn expected(&self, targets: &[Target]) -> Vec<Bytes> {
        let recent = |target: &Target| self.recent.get(&target.name)?.bytes;
        targets
            .iter()
            .map(|target| recent(target).unwrap_or_default())
            .collect()
    }

    /// Replaces the values in `found` by newer confirmed ones. Returns whether any of them changed.
    pub(crate) fn refresh(&self, targets: &[Target], found: &mut [Bytes]) -> bool {
        let mut is_changed = false;
        for (target, found) in targets.iter().zip(found) {
            if let Some(LastKnown {
                bytes: Some(bytes),
                is_confirmed: true,
                ..
            }) = self.recent.get(&target.name)
                && stamp(&bytes) != stamp(found)
            {
                (*found, is_changed) = (bytes, true);
            }
        }
        is_changed
    }

    /// Whether an update of these targets must hold its locks until the reply.
    pub(crate) fn are_serialized(&self, targets: &[Target]) -> bool {
        let is_serialized = |target: &Target| {
            let recent = self.recent.get(&target.name);
            recent.is_some_and(|recent| recent.serialized_for > 0 || recent.bytes.is_none())
        };
        targets
            .iter()
            .any(|target| !target.is_only_compared && is_serialized(target))
    }

    /// Remembers the result of a command that is about to be sent, in case it succeeds.
    pub(crate) fn assume(&self, targets: &[Target], writes: &[Write]) {
        for (target, writes) in targets.iter().zip(writes) {
            match writes {
                Write::Check => {}
                Write::Enter(bytes) | Write::Set(bytes) => {
                    let serialized_for = self
                        .recent
                        .get(&target.name)
                        .map_or(0, |recent| recent.serialized_for);
                    let recent = LastKnown::of(bytes, false, serialized_for.saturating_sub(1));
                    self.recent.insert(target.name.clone(), recent);
                }
                // A tombstone expires by itself; expect an absent key from now on.
                Write::Tombstone(..) | Write::Delete => _ = self.recent.remove(&target.name),
            }
        }
    }

    /// Records that a command found `expected` and performed its writes.
    pub(crate) fn confirm(&self, targets: &[Target], expected: &[Bytes], writes: &[Write]) {
        for (number, (target, expected)) in targets.iter().zip(expected).enumerate() {
            let recent = self.recent.get(&target.name);
            let bytes = match (writes.get(number).unwrap_or(&Write::Check), &recent) {
                (Write::Check, None) if !expected.is_empty() => expected,
                (
                    Write::Enter(bytes) | Write::Set(bytes),
                    Some(LastKnown {
                        bytes: Some(kept), ..
                    }),
                ) if stamp(kept) == stamp(bytes) => bytes,
                _ => continue,
            };
            let serialized_for = recent.map_or(0, |recent| recent.serialized_for);
            self.recent.insert(
                target.name.clone(),
                LastKnown::of(bytes, true, serialized_for),
            );
        }
    }

    /// Records that a command expected `expected` and found `found`. Values that later updates
    /// assumed on top of it will not be written.
    pub(crate) fn correct(&self, targets: &[Target], expected: &[Bytes], found: &[Bytes]) {
        for ((target, expected), found) in targets.iter().zip(expected).zip(found) {
            let recent = self.recent.get(&target.name);
            let is_race = !expected.is_empty() && stamp(expected) != stamp(found);
            let serialized_for = recent.as_ref().map_or(0, |recent| recent.serialized_for);
            let serialized_for = if is_race {
                SERIALIZED_AFTER_RACE
            } else {
                serialized_for
            };
            match recent {
                Some(recent) if recent.is_confirmed => {
                    self.recent.insert(
                        target.name.clone(),
                        LastKnown {
                            serialized_for,
                            ..recent
                        },
                    );
                }
                _ if found.is_empty() => _ = self.recent.remove(&target.name),
                _ => self.recent.insert(
                    target.name.clone(),
                    LastKnown::of(found, true, serialized_for),
                ),
            }
        }
    }

    /// Forgets the last known values of these targets.
    pub(crate) fn forget(&self, targets: &[Target]) {
        for target in targets {
            self.recent.remove(&target.name);
        }
    }
}
