//! Commit records that somebody holds, one copy of each: what has written ten thousand keys is not held ten thousand times, once for
//! each key that was loaded by itself.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use crate::{model::Attempt, storage::records::CommitRecord};

/// So many are there at least before it is looked which have gone.
const LOOKED_THROUGH_MIN: usize = 1024;

/// The records, by attempt.
#[derive(Debug, Default)]
pub(super) struct InUse {
    records: BTreeMap<Attempt, Weak<CommitRecord>>,
    /// With so many it is looked which have gone.
    full_at: usize,
}

impl InUse {
    /// What `attempt` committed, if anybody holds it.
    pub(super) fn get(&self, attempt: Attempt) -> Option<Arc<CommitRecord>> {
        self.records.get(&attempt)?.upgrade()
    }

    /// The copy of `record` that is held, which is this one if there was none.
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

    /// How many it keeps, gone ones included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }
}
