//! Turns: in which order this process changes an item, and what it last saw or made of it.
//!
//! Whoever changes an item has its turn until his command is on the wire, and leaves behind what the item will be if that
//! succeeds. Who comes next builds on it and sends right behind: the server runs commands of a connection in their order, and its
//! script compares what is there with what was built on. So many changes of one item are under way at once, and a chain of them
//! costs one round trip. What is hoped in vain costs a second one, never correctness.
//!
//! A turn is kept until the answer where building on hope does not pay: by whoever hoped in vain, by everybody for a
//! while after other processes have been faster, and while an item is too large to be kept here.

use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use quick_cache::{Weighter, sync::Cache};
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    codec::stamp,
    compare_and_set::{Place, Todo},
};

/// In how many places updates take turns.
const TURNS: usize = 4096;

/// The largest item that one turn hands on to the next.
const REMEMBERED_BYTES_MAX: usize = 16 << 10;

/// What all items take that are remembered, and about how many there are.
const MEMORY_BYTES: u64 = 64 << 20;
const MEMORY_ITEMS: usize = 64 << 10;

/// For how many changes nobody builds on hope, after another process was faster.
const KEPT_AFTER_A_RACE: u8 = 64;

/// What a place holds, as far as this process knows.
#[derive(Debug, Clone)]
struct Recent {
    /// None: it is too large to be kept.
    bytes: Option<Bytes>,
    /// Whether a server has said so; otherwise a command that will make it so is under way.
    is_certain: bool,
    /// For how many changes turns are kept until the answer.
    kept_for: u8,
}

impl Recent {
    fn of(bytes: &Bytes, is_certain: bool, kept_for: u8) -> Self {
        let bytes = (bytes.len() <= REMEMBERED_BYTES_MAX).then(|| bytes.clone());
        Self {
            bytes,
            is_certain,
            kept_for,
        }
    }
}

#[derive(Debug, Clone)]
struct Weight;

impl Weighter<Bytes, Recent> for Weight {
    fn weight(&self, name: &Bytes, recent: &Recent) -> u64 {
        (name.len() + recent.bytes.as_ref().map_or(0, Bytes::len) + 128) as u64
    }
}

/// The turns of this process, and what it remembers.
#[derive(Debug)]
pub(crate) struct Turns {
    locks: Vec<Mutex<()>>,
    hasher: RandomState,
    recent: Cache<Bytes, Recent, Weight>,
}

/// The turns that somebody has.
pub(crate) type Taken<'a> = Vec<MutexGuard<'a, ()>>;

impl Default for Turns {
    fn default() -> Self {
        Self {
            locks: (0..TURNS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            recent: Cache::with_weighter(MEMORY_ITEMS, MEMORY_BYTES, Weight),
        }
    }
}

impl Turns {
    fn of(&self, place: &Place) -> usize {
        self.hasher.hash_one(&place.name) as usize % TURNS
    }

    /// Takes the turns of all places that may be set, in the one order that everybody takes them in.
    pub(crate) async fn take(&self, places: &[Place]) -> Taken<'_> {
        let set = places.iter().filter(|place| !place.is_only_compared);
        let mut wanted: Vec<usize> = set.map(|place| self.of(place)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut taken = Vec::with_capacity(wanted.len());
        for turn in wanted {
            taken.push(self.locks[turn].lock().await);
        }
        taken
    }

    /// What to expect of each place; empty: nothing.
    pub(crate) fn guess(&self, places: &[Place]) -> Vec<Bytes> {
        let recent = |place: &Place| self.recent.get(&place.name)?.bytes;
        places
            .iter()
            .map(|place| recent(place).unwrap_or_default())
            .collect()
    }

    /// Brings what a server `found` up to what servers have said since; whether that is anything else.
    pub(crate) fn renew(&self, places: &[Place], found: &mut [Bytes]) -> bool {
        let mut is_other = false;
        for (place, found) in places.iter().zip(found) {
            if let Some(Recent {
                bytes: Some(bytes),
                is_certain: true,
                ..
            }) = self.recent.get(&place.name)
                && stamp(&bytes) != stamp(found)
            {
                (*found, is_other) = (bytes, true);
            }
        }
        is_other
    }

    /// Whether the turns of these places have to be kept until the answer.
    pub(crate) fn are_kept(&self, places: &[Place]) -> bool {
        let is_kept = |place: &Place| {
            let recent = self.recent.get(&place.name);
            recent.is_some_and(|recent| recent.kept_for > 0 || recent.bytes.is_none())
        };
        places
            .iter()
            .any(|place| !place.is_only_compared && is_kept(place))
    }

    /// A command leaves that will make of the places what `todo` says, if it finds what it expects.
    pub(crate) fn hope(&self, places: &[Place], todo: &[Todo]) {
        for (place, todo) in places.iter().zip(todo) {
            match todo {
                Todo::Check => {}
                Todo::Enter(bytes) | Todo::Set(bytes) => {
                    let kept_for = self
                        .recent
                        .get(&place.name)
                        .map_or(0, |recent| recent.kept_for);
                    let recent = Recent::of(bytes, false, kept_for.saturating_sub(1));
                    self.recent.insert(place.name.clone(), recent);
                }
                // It goes away by itself, and then nothing is what to expect.
                Todo::Tombstone(..) | Todo::Delete => _ = self.recent.remove(&place.name),
            }
        }
    }

    /// It found `expected`, and has done what `todo` says.
    pub(crate) fn confirm(&self, places: &[Place], expected: &[Bytes], todo: &[Todo]) {
        for (number, (place, expected)) in places.iter().zip(expected).enumerate() {
            let recent = self.recent.get(&place.name);
            let bytes = match (todo.get(number).unwrap_or(&Todo::Check), &recent) {
                (Todo::Check, None) if !expected.is_empty() => expected,
                (
                    Todo::Enter(bytes) | Todo::Set(bytes),
                    Some(Recent {
                        bytes: Some(kept), ..
                    }),
                ) if stamp(kept) == stamp(bytes) => bytes,
                _ => continue,
            };
            let kept_for = recent.map_or(0, |recent| recent.kept_for);
            self.recent
                .insert(place.name.clone(), Recent::of(bytes, true, kept_for));
        }
    }

    /// It expected `expected`, and `found` is there: what others hope may rest on that, and will not come.
    pub(crate) fn correct(&self, places: &[Place], expected: &[Bytes], found: &[Bytes]) {
        for ((place, expected), found) in places.iter().zip(expected).zip(found) {
            let recent = self.recent.get(&place.name);
            let is_race = !expected.is_empty() && stamp(expected) != stamp(found);
            let kept_for = recent.as_ref().map_or(0, |recent| recent.kept_for);
            let kept_for = if is_race { KEPT_AFTER_A_RACE } else { kept_for };
            match recent {
                Some(recent) if recent.is_certain => {
                    self.recent
                        .insert(place.name.clone(), Recent { kept_for, ..recent });
                }
                _ if found.is_empty() => _ = self.recent.remove(&place.name),
                _ => self
                    .recent
                    .insert(place.name.clone(), Recent::of(found, true, kept_for)),
            }
        }
    }

    /// Nothing is known of these places any more.
    pub(crate) fn forget(&self, places: &[Place]) {
        for place in places {
            self.recent.remove(&place.name);
        }
    }
}
