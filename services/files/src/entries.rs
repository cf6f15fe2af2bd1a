//! Values of keys in memory, up to a number of bytes.

use std::{collections::BTreeMap, ops::Bound};

use bytes::Bytes;
use transactions::serializable::model::{Key, KeyRange, Slot};

/// The bytes that an entry counts beside its key and value.
const ENTRY_BYTES: usize = 96;

/// The values, by their keys.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    all: BTreeMap<Key, Entry>,
    bytes: usize,
    /// Where the next eviction looks first.
    hand: Option<Key>,
}

/// A value, or that there is none.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) value: Option<Bytes>,
    /// The first slot at which it is known to hold.
    pub(crate) from: Slot,
    /// It was read since it came in, or since the hand last passed.
    pub(crate) is_used: bool,
}

impl Entry {
    /// One that was not read yet.
    pub(crate) fn new(value: Option<Bytes>, from: Slot) -> Self {
        let is_used = false;
        Self {
            value,
            from,
            is_used,
        }
    }

    fn bytes(&self, key: &Key) -> usize {
        ENTRY_BYTES + key.bytes_len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

impl Entries {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.all.contains_key(key)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Entry> {
        self.all.get(key)
    }

    /// Notes that the entry is read.
    pub(crate) fn read(&mut self, key: &Key) -> Option<&Entry> {
        let entry = self.all.get_mut(key)?;
        entry.is_used = true;
        Some(entry)
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.all.remove(key)?;
        self.bytes -= entry.bytes(key);
        Some(entry)
    }

    /// Removes all of a group.
    pub(crate) fn remove_group(&mut self, group: &Bytes) {
        let Ok(range) = KeyRange::all(group.clone()) else {
            return;
        };
        let found = self.all.range(range.first()..).map(|(key, _)| key);
        let found = found.take_while(|key| key.group() == group);
        let keys: Vec<Key> = found.cloned().collect();
        for key in keys {
            self.remove(&key);
        }
    }

    /// Adds an entry, or replaces it. Then others go until all have at most `bytes_max` bytes.
    pub(crate) fn insert(&mut self, key: Key, entry: Entry, bytes_max: usize) {
        self.remove(&key);
        self.bytes += entry.bytes(&key);
        self.all.insert(key, entry);
        self.evict(bytes_max);
    }

    /// Removes entries until the rest fits: the next ones after the hand that were not used since it
    /// last passed.
    fn evict(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max {
            let after = self.hand.take().map_or(Bound::Unbounded, Bound::Excluded);
            let mut following = self.all.range_mut((after, Bound::Unbounded));
            let Some((key, entry)) = following.next() else {
                continue;
            };
            let key = key.clone();
            if !std::mem::take(&mut entry.is_used) {
                self.remove(&key);
            }
            self.hand = Some(key);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
