//! Rows that this process wrote last, so that one that is written again need not be read again.
//!
//! An entry is only a guess: another process may have changed the row, or the store may have lost
//! it. Its reader checks it with a condition of its write, or knows that it is the only writer.

use std::{borrow::Borrow, hash::Hash};

use foldhash::fast::FixedState;
use quick_cache::{
    Weighter,
    unsync::{Cache, DefaultLifecycle},
};

/// The memory of an entry beside its key's and its value's own bytes, in bytes: its place in a table
/// that may be half empty, and the headers of what it allocates.
const ENTRY_BYTES: usize = 512;

/// The typical length of an entry, which only sizes the tables at the start.
const ENTRY_BYTES_TYPICAL: u64 = 1 << 10;

/// The hash is the same in every run, so that a seed reproduces what is kept.
const HASH: u64 = 0x6c61_6e64_6661_7374;

/// The most recent values by key, within a number of bytes.
#[derive(Debug)]
pub struct Recent<K, V> {
    cache: Cache<K, V, Weight<K, V>, FixedState>,
}

/// The length of an entry on the heap, in bytes.
#[derive(Debug, Clone)]
struct Weight<K, V>(fn(&K, &V) -> usize);

impl<K, V> Weighter<K, V> for Weight<K, V> {
    fn weight(&self, key: &K, value: &V) -> u64 {
        (ENTRY_BYTES + (self.0)(key, value)) as u64
    }
}

impl<K: Eq + Hash, V: Clone> Recent<K, V> {
    /// Keeps values of `bytes_max` together, each as long as `weight` says.
    pub fn new(bytes_max: u64, weight: fn(&K, &V) -> usize) -> Self {
        let items = (bytes_max / ENTRY_BYTES_TYPICAL) as usize;
        let hash = FixedState::with_seed(HASH);
        let lifecycle = DefaultLifecycle::default();
        Self {
            cache: Cache::with(items, bytes_max, Weight(weight), hash, lifecycle),
        }
    }

    /// The value of `key`, if it is kept.
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.cache.get(key).cloned()
    }

    /// Keeps the new value of `key`. None if it was deleted.
    pub fn set<Q>(&mut self, key: &Q, value: Option<V>)
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let Some(value) = value else {
            self.cache.remove(key);
            return;
        };
        match self.cache.get_mut(key) {
            Some(mut kept) => *kept = value,
            None => return self.cache.insert(key.to_owned(), value),
        }
        // Only an insertion removes others.
        if self.cache.weight() > self.cache.capacity()
            && let Some((key, value)) = self.cache.remove(key)
        {
            self.cache.insert(key, value);
        }
    }

    /// Forgets the value of `key`, and returns it if it was kept.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.cache.remove(key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_what_is_kept_are_bounded() {
        let mut recent = Recent::new(64 << 10, |_: &String, value: &Vec<u8>| value.len());
        for number in 0..1000 {
            recent.set(format!("/{number}").as_str(), Some(vec![0; 1024]));
        }
        assert!(recent.cache.weight() <= 64 << 10);
        assert!(recent.cache.len() > 16);
        recent.set("/999", None);
        assert_eq!(recent.get("/999"), None);
        for number in 0..1000 {
            let longer = recent.get(format!("/{number}").as_str());
            let longer = longer.map(|value| [value, vec![0; 1024]].concat());
            recent.set(format!("/{number}").as_str(), longer);
        }
        assert!(recent.cache.weight() <= 64 << 10, "values that grow");
    }
}
