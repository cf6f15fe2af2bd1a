//! The fragments that came into memory or left it, until their rows are written.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::fragment::{Fragment, FragmentName};

/// The rows. Further fragments are loaded when they are read.
pub(crate) const ROWS_MAX: usize = 100_000;
/// The changes of memory that have no row yet.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// None: the fragment is not in memory.
    pending: Mutex<BTreeMap<FragmentName, Option<Fragment>>>,
    changed: Notify,
}

impl Changes {
    /// Notes that a fragment came into memory.
    pub(crate) fn came(&self, fragment: Fragment) {
        self.note(fragment.name, Some(fragment));
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
    pub(crate) fn take(&self) -> BTreeMap<FragmentName, Option<Fragment>> {
        std::mem::take(&mut *self.pending.lock())
    }

    fn note(&self, name: FragmentName, present: Option<Fragment>) {
        self.pending.lock().insert(name, present);
        self.changed.notify_one();
    }
}
