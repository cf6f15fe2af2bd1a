//! Values by the write that made them: they never change, so a value here is never stale.
//!
//! Bounded by bytes; the coldest go. Its hash is fixed, so that one seed gives the same evictions.

use bytes::Bytes;
use foldhash::fast::FixedState;
use quick_cache::{
    Weighter,
    unsync::{Cache, DefaultLifecycle},
};

use crate::model::Attempt;

/// Larger values are not kept.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// What a value costs beside its bytes.
const ENTRY_BYTES: u64 = 96;
/// About how many bytes a value has: sizes the cache's tables at birth, nothing more.
const VALUE_BYTES_TYPICAL: u64 = 1 << 10;

/// Which value: the attempt and its write.
type Name = (Attempt, u32);

#[derive(Debug, Clone)]
struct Weigh;

impl Weighter<Name, Bytes> for Weigh {
    fn weight(&self, _: &Name, value: &Bytes) -> u64 {
        ENTRY_BYTES + value.len() as u64
    }
}

/// Values that were written or read lately.
#[derive(Debug)]
pub struct DataCache(Cache<Name, Bytes, Weigh, FixedState>);

impl DataCache {
    /// A cache of at most about `bytes_max`.
    pub fn new(bytes_max: u64) -> Self {
        let typical = (bytes_max / VALUE_BYTES_TYPICAL) as usize;
        Self(Cache::with(typical, bytes_max, Weigh, FixedState::default(), DefaultLifecycle::default()))
    }

    /// The value of a write.
    pub fn get(&self, attempt: Attempt, write: u32) -> Option<Bytes> {
        self.0.get(&(attempt, write)).cloned()
    }

    /// Keeps a value.
    pub fn insert(&mut self, attempt: Attempt, write: u32, value: Bytes) {
        if value.len() <= VALUE_BYTES_MAX {
            self.0.insert((attempt, write), value);
        }
    }

    /// The version is collected.
    pub fn remove(&mut self, attempt: Attempt, write: u32) {
        self.0.remove(&(attempt, write));
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// How many bytes it holds.
    pub fn bytes(&self) -> u64 {
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
        let attempt = |sequence| Attempt { node: NodeId(1), sequence };
        for sequence in 0..1_000 {
            cache.insert(attempt(sequence), 1, Bytes::from(vec![0; 100]));
            assert!(cache.bytes() <= 10_000);
        }
        assert_eq!(cache.get(attempt(999), 2), None);
        let kept = (0..1_000).filter(|sequence| cache.get(attempt(*sequence), 1).is_some()).count();
        assert!(kept > 10, "{kept}");
        cache.clear();
        assert_eq!(cache.bytes(), 0);
    }
}
