//! The fragments that came into memory or left it, until their rows are written.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    fragment::{Fragment, FragmentName},
    function::Partition,
};

/// The rows. Further fragments are loaded when they are read.
pub(crate) const ROWS_MAX: usize = 100_000;
/// The changes that wait to be written. Further ones are not: a start then finds a row too many,
/// which it removes, or one too few.
const PENDING_MAX: usize = 100_000;

/// The changes of memory that have no row yet.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// None: the fragment is not in memory.
    pending: Mutex<BTreeMap<FragmentName, Option<(Fragment, Partition)>>>,
    changed: Notify,
}

impl Changes {
    /// Notes that a fragment came into memory.
    pub(crate) fn came(&self, fragment: Fragment, partition: Partition) {
        self.note(fragment.name, Some((fragment, partition)));
    }

    /// Notes that a fragment left memory.
    pub(crate) fn left(&self, name: FragmentName) {
        self.note(name, None);
    }

    /// Waits for a change.
    pub(crate) async fn wait(&self) {
        self.changed.notified().await;
    }

    /// Takes all changes.
    pub(crate) fn take(&self) -> BTreeMap<FragmentName, Option<(Fragment, Partition)>> {
        std::mem::take(&mut *self.pending.lock())
    }

    fn note(&self, name: FragmentName, present: Option<(Fragment, Partition)>) {
        let mut pending = self.pending.lock();
        if pending.len() < PENDING_MAX || pending.contains_key(&name) {
            pending.insert(name, present);
        }
        drop(pending);
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fragment::SegmentId;

    #[test]
    fn no_more_changes_wait_than_the_bound() {
        let changes = Changes::default();
        for segment in 0..=PENDING_MAX as u128 {
            changes.left(FragmentName {
                segment: SegmentId(segment),
                index: 0,
            });
        }
        assert_eq!(changes.take().len(), PENDING_MAX);
        assert!(changes.take().is_empty());
    }
}
