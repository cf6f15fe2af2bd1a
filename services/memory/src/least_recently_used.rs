//! The order in which entries were used, and their bytes: which one makes room for another.

use std::collections::BTreeMap;

/// Entries by their last use.
#[derive(Debug)]
pub struct LeastRecentlyUsed<K> {
    order: BTreeMap<u64, K>,
    /// The place in the order, and the size.
    entries: BTreeMap<K, (u64, u64)>,
    used: u64,
    bytes: u64,
}

impl<K> Default for LeastRecentlyUsed<K> {
    fn default() -> Self {
        Self {
            order: BTreeMap::new(),
            entries: BTreeMap::new(),
            used: 0,
            bytes: 0,
        }
    }
}

impl<K: Ord + Copy> LeastRecentlyUsed<K> {
    /// Notes a use. Whether the entry is there.
    pub fn touch(&mut self, entry: K) -> bool {
        let Some((at, _)) = self.entries.get_mut(&entry) else {
            return false;
        };
        self.order.remove(at);
        self.used += 1;
        *at = self.used;
        self.order.insert(self.used, entry);
        true
    }

    /// Adds an entry. Returns those that make room for it.
    pub fn add(&mut self, entry: K, bytes: u64, bytes_max: u64) -> Vec<K> {
        self.remove(entry);
        let mut gone = Vec::new();
        while self.bytes + bytes > bytes_max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.remove(oldest);
            gone.push(oldest);
        }
        self.used += 1;
        self.order.insert(self.used, entry);
        self.entries.insert(entry, (self.used, bytes));
        self.bytes += bytes;
        gone
    }

    /// Removes an entry.
    pub fn remove(&mut self, entry: K) {
        if let Some((at, bytes)) = self.entries.remove(&entry) {
            self.order.remove(&at);
            self.bytes -= bytes;
        }
    }

    /// The entries, the least recently used first.
    pub fn oldest(&self) -> impl DoubleEndedIterator<Item = K> {
        self.order.values().copied()
    }

    /// The number of entries.
    pub fn count(&self) -> usize {
        self.entries.len()
    }
}
