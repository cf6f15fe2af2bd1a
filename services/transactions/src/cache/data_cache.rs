//! The data cache: values by the write that made them. A value never changes, so a cached one is
//! never stale.
//!
//! Bounded by bytes; the coldest are evicted. Its hash is fixed, so that one seed gives the same
//! evictions.

use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use foldhash::fast::FixedState;
use quick_cache::{
    Weighter,
    unsync::{Cache, DefaultLifecycle},
};

use crate::model::Attempt;

/// Larger values are not kept.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// The overhead of a value beside its bytes.
const ENTRY_BYTES: u64 = 96;
/// The typical bytes of a value: only sizes the cache's tables at creation.
const VALUE_BYTES_TYPICAL: u64 = 1 << 10;

type Name = (Attempt, u32);

/// The warmth of a value that was written or read here: this many successors of it are prefetched
/// before the next read.
const WARM: u8 = 4;

/// A value, and its warmth.
#[derive(Debug)]
struct Held {
    value: Bytes,
    warmth: AtomicU8,
}

#[derive(Debug, Clone)]
struct Weigh;

impl Weighter<Name, Held> for Weigh {
    fn weight(&self, _: &Name, held: &Held) -> u64 {
        ENTRY_BYTES + held.value.len() as u64
    }
}

/// Values that were written or read lately.
#[derive(Debug)]
pub(crate) struct DataCache(Cache<Name, Held, Weigh, FixedState>);

impl DataCache {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let typical = (bytes_max / VALUE_BYTES_TYPICAL) as usize;
        let hash = FixedState::default();
        let lifecycle = DefaultLifecycle::default();
        Self(Cache::with(typical, bytes_max, Weigh, hash, lifecycle))
    }

    pub(crate) fn get(&self, attempt: Attempt, write: u32) -> Option<Bytes> {
        let held = self.0.get(&(attempt, write))?;
        held.warmth.store(WARM, Ordering::Relaxed);
        Some(held.value.clone())
    }

    /// The warmth of a write's value: zero if it is not here, or if neither it nor its recent
    /// predecessors were read.
    pub(crate) fn warmth(&self, attempt: Attempt, write: u32) -> u8 {
        let held = self.0.peek(&(attempt, write));
        held.map_or(0, |held| held.warmth.load(Ordering::Relaxed))
    }

    pub(crate) fn insert(&mut self, attempt: Attempt, write: u32, value: Bytes) {
        self.insert_ahead(attempt, write, value, WARM + 1);
    }

    /// Keeps a prefetched value that no reader has asked for yet, and that follows one of some
    /// warmth.
    pub(crate) fn insert_ahead(&mut self, attempt: Attempt, write: u32, value: Bytes, warmth: u8) {
        if value.len() <= VALUE_BYTES_MAX {
            let warmth = warmth.saturating_sub(1).into();
            self.0.insert((attempt, write), Held { value, warmth });
        }
    }

    /// The version is collected.
    pub(crate) fn remove(&mut self, attempt: Attempt, write: u32) {
        self.0.remove(&(attempt, write));
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.weight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeId;

    #[test]
    fn it_stays_within_its_bytes() {
        let mut cache = DataCache::new(10_000);
        let attempt = |sequence| Attempt {
            node: NodeId(1),
            sequence,
        };
        for sequence in 0..1_000 {
            cache.insert(attempt(sequence), 1, Bytes::from(vec![0; 100]));
            assert!(cache.bytes() <= 10_000);
        }
        assert_eq!(cache.get(attempt(999), 2), None);
        let kept = (0..1_000)
            .filter(|sequence| cache.get(attempt(*sequence), 1).is_some())
            .count();
        assert!(kept > 10, "{kept}");
        cache.clear();
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn what_follows_a_value_cools_until_it_is_read() {
        let mut cache = DataCache::new(10_000);
        let attempt = |sequence| Attempt {
            node: NodeId(1),
            sequence,
        };
        cache.insert(attempt(0), 1, Bytes::new());
        for sequence in 0..6 {
            let warmth = cache.warmth(attempt(sequence), 1);
            assert_eq!(u64::from(warmth), 4_u64.saturating_sub(sequence));
            cache.insert_ahead(attempt(sequence + 1), 1, Bytes::new(), warmth);
        }
        cache.get(attempt(6), 1);
        assert_eq!(
            (cache.warmth(attempt(6), 1), cache.warmth(attempt(7), 1)),
            (4, 0)
        );
    }
}
