//! The present values of keys that proposals use as numbers.
//!
//! Two generations: keys that are neither written nor loaded for long leave with the older one.

use std::collections::BTreeMap;

use crate::serializable::{apply::Base, model::Key};

/// A bounded cache.
#[derive(Debug)]
pub(super) struct Numbers {
    young: BTreeMap<Key, Base>,
    old: BTreeMap<Key, Base>,
    count_max: usize,
}

impl Numbers {
    pub(super) fn new(count_max: usize) -> Self {
        Self {
            young: BTreeMap::new(),
            old: BTreeMap::new(),
            count_max,
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Base> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub(super) fn set(&mut self, key: Key, base: Base) {
        self.old.remove(&key);
        self.young.insert(key, base);
        if self.young.len() >= self.count_max {
            self.old = std::mem::take(&mut self.young);
        }
    }

    pub(super) fn forget(&mut self, key: &Key) {
        self.young.remove(key);
        self.old.remove(key);
    }
}
