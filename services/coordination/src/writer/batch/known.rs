//! The states that the writers of one process installed last.
//!
//! An optimistic batch plans from them without reading, and the conditions of its decision check
//! them. They help only if no other process installs states: each state that another process has
//! replaced would cost a failed decision.

use std::sync::{Mutex, MutexGuard};

use crate::{
    records::NodeState,
    storage::{node::Seen, recent::Recent},
};

/// The most bytes of states that are kept.
const BYTES_MAX: u64 = 4 << 20;

/// The length of a decoded state without its ACL, in bytes.
const STATE_BYTES: usize = 128;

/// A row and its state.
type Installed = (Seen, NodeState);

#[derive(Debug)]
pub(in crate::writer) struct Known(Mutex<Recent<String, Installed>>);

impl Known {
    pub(in crate::writer) fn new() -> Self {
        let weight = |path: &String, (row, state): &Installed| {
            path.len() + row.bytes_len() + state.acl.len() + STATE_BYTES
        };
        Self(Mutex::new(Recent::new(BYTES_MAX, weight)))
    }

    pub(super) fn get(&self, path: &str) -> Option<Installed> {
        self.recent().get(path)
    }

    pub(super) fn set<'batch>(
        &self,
        installed: impl Iterator<Item = (&'batch String, Seen, Option<&'batch NodeState>)>,
    ) {
        let mut recent = self.recent();
        for (path, row, state) in installed {
            recent.set(path.as_str(), state.map(|state| (row, state.clone())));
        }
    }

    pub(super) fn forget<'path>(&self, paths: impl Iterator<Item = &'path String>) {
        let mut recent = self.recent();
        for path in paths {
            recent.remove(path);
        }
    }

    fn recent(&self) -> MutexGuard<'_, Recent<String, Installed>> {
        self.0.lock().expect("no panic while it is locked")
    }
}
