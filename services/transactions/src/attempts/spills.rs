//! What an attempt has spilled.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::{
    Error,
    model::Key,
    storage::records::{CommitRecord, Write},
};

/// What an attempt has written ahead, or began to.
#[derive(Debug, Default)]
pub(crate) struct Spills {
    /// The slots that say so.
    pub(crate) slots: Vec<u64>,
    pub(crate) keys: BTreeSet<Key>,
    /// Every write in chunks, with their number; also those that a later write replaced.
    pub(crate) chunked: Vec<(u32, u32)>,
    /// Why one of them could not be written.
    pub(crate) failed: Option<Error>,
}

impl Spills {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn note(&mut self, writes: &[(Write, Bytes)]) {
        self.keys
            .extend(writes.iter().map(|(write, _)| write.key.clone()));
        let chunked = writes
            .iter()
            .map(|(write, _)| (write.write, write.place.chunks()));
        self.chunked
            .extend(chunked.filter(|(_, chunks)| *chunks > 0));
    }

    /// Its writes in chunks that `record` does not name.
    pub(crate) fn replaced(&self, record: &CommitRecord) -> Vec<(u32, u32)> {
        let named: BTreeSet<u32> = record.writes.iter().map(|write| write.write).collect();
        self.chunked
            .iter()
            .filter(|(write, _)| !named.contains(write))
            .copied()
            .collect()
    }
}
