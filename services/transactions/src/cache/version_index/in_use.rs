//! Shared commit records, one copy of each: a record of ten thousand keys is not held ten thousand
//! times, once for each key that was loaded separately.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use crate::{model::Attempt, storage::records::CommitRecord};

/// The least number of records before dropped ones are purged.
const LOOKED_THROUGH_MIN: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct InUse {
    records: BTreeMap<Attempt, Weak<CommitRecord>>,
    /// The number of records at which dropped ones are purged.
    full_at: usize,
}

impl InUse {
    pub(super) fn get(&self, attempt: Attempt) -> Option<Arc<CommitRecord>> {
        self.records.get(&attempt)?.upgrade()
    }

    pub(super) fn share(&mut self, record: &Arc<CommitRecord>) -> Arc<CommitRecord> {
        if let Some(held) = self.get(record.attempt) {
            return held;
        }
        if self.records.len() >= self.full_at.max(LOOKED_THROUGH_MIN) {
            self.records.retain(|_, record| record.strong_count() > 0);
            self.full_at = 2 * self.records.len();
        }
        self.records.insert(record.attempt, Arc::downgrade(record));
        Arc::clone(record)
    }

    /// How many it keeps, including dropped ones.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }
}
