//! The keys that one compare-and-set touches, and what it writes to each.

use bytes::Bytes;

/// One key to compare and set.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// The key.
    pub(crate) name: Bytes,
    /// The index of its partition. A key outside all partitions repeats its own name.
    pub(crate) index: Bytes,
    /// Its entry in the index.
    pub(crate) sort: Bytes,
    /// Whether it is compared and never written. It then takes no lock.
    pub(crate) is_only_compared: bool,
}

impl Target {
    /// A key without an index.
    pub(crate) fn apart(name: Bytes) -> Self {
        Self {
            index: name.clone(),
            name,
            sort: Bytes::new(),
            is_only_compared: false,
        }
    }
}

/// The write to one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    /// Nothing is written, but the stamp must match.
    Check,
    /// Writes these bytes and adds the key to the index.
    Enter(Bytes),
    /// Writes these bytes.
    Set(Bytes),
    /// Writes these bytes with a lifetime in milliseconds, and removes the key from the index.
    Tombstone(Bytes, u64),
    /// Removes the key, also from the index.
    Delete,
}
