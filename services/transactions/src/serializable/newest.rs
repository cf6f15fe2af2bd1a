//! The newest installed values of keys that were read or written lately.
//!
//! Invariants
//! - An entry is the value of its key at the installed slot. The installation that
//!   moves that slot replaces or removes the entries of the keys that it wrote.
//!
//! Bounded by bytes; the coldest are evicted. Its hash is fixed, so that one seed gives the same
//! evictions.

use bytes::Bytes;
use foldhash::fast::FixedState;
use quick_cache::{
    Weighter,
    unsync::{Cache, DefaultLifecycle},
};

use crate::{
    model::KeyspaceId,
    serializable::{
        model::{Key, Slot},
        rows::Place,
    },
};

/// The most bytes of values of one volume.
const BYTES_MAX: u64 = 64 << 20;
/// The overhead of an entry beside its key and value.
const ENTRY_BYTES: u64 = 160;
/// The typical bytes of an entry: only sizes the cache's tables at creation.
const ENTRY_BYTES_TYPICAL: u64 = 4 << 10;

/// A value, or where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Here(Bytes),
    /// In an object of the volume with this keyspace.
    Placed(KeyspaceId, Place),
}

impl Content {
    pub(crate) fn bytes_len(&self) -> usize {
        match self {
            Self::Here(value) => value.len(),
            Self::Placed(_, place) => place.bytes as usize,
        }
    }
}

/// The value of a key in its rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) value: Option<Content>,
    /// The slot that wrote it.
    pub(crate) since: Slot,
    /// The deltas since the last whole value.
    pub(crate) deltas: usize,
}

impl Stored {
    /// Its value, unless that lies in an object.
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        match &self.value {
            Some(Content::Here(value)) => Some(value),
            Some(Content::Placed(..)) | None => None,
        }
    }
}

#[derive(Debug, Clone)]
struct Weigh;

impl Weighter<Key, Stored> for Weigh {
    fn weight(&self, key: &Key, stored: &Stored) -> u64 {
        let value = stored.bytes().map_or(0, Bytes::len);
        ENTRY_BYTES + (key.bytes_len() + value) as u64
    }
}

/// The cache of one volume.
#[derive(Debug)]
pub(crate) struct Newest(Cache<Key, Stored, Weigh, FixedState>);

impl Newest {
    pub(crate) fn new() -> Self {
        let typical = (BYTES_MAX / ENTRY_BYTES_TYPICAL) as usize;
        let hash = FixedState::default();
        let lifecycle = DefaultLifecycle::default();
        Self(Cache::with(typical, BYTES_MAX, Weigh, hash, lifecycle))
    }

    /// The value of `key` at slot `at`, which is installed, if it is known.
    pub(crate) fn get(&self, key: &Key, at: Slot) -> Option<&Stored> {
        self.0.get(key).filter(|stored| stored.since <= at)
    }

    /// Keeps the value of `key` at the installed slot.
    pub(crate) fn insert(&mut self, key: Key, stored: Stored) {
        self.0.insert(key, stored);
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        self.0.remove(key);
    }
}
