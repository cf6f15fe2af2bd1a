//! A disk that delays a sync of the journal and then fails it.

use std::{
    io,
    sync::{Arc, Condvar, Mutex},
};

use embedded::storage::{DiskStorage, Storage, StorageFile};

use self::intercepted::{Intercepted, Operation};

#[path = "../../../../providers/embedded/tests/it/intercepted.rs"]
mod intercepted;

/// How the disk treats syncs of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Syncs {
    /// They succeed.
    #[default]
    Made,
    /// They wait.
    Held,
    /// The next one fails, and later ones succeed.
    FailOnce,
}

/// The switch that tests use.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    syncs: Mutex<Syncs>,
    changed: Condvar,
}

impl Faults {
    /// Delays every sync of the journal from now on.
    pub(crate) fn hold(&self) {
        self.turn(Syncs::Held);
    }

    /// Fails the delayed sync, or the next one.
    pub(crate) fn fail_once(&self) {
        self.turn(Syncs::FailOnce);
    }

    fn turn(&self, syncs: Syncs) {
        *self.syncs.lock().expect("no panic while it is locked") = syncs;
        self.changed.notify_all();
    }

    fn pass(&self) -> io::Result<()> {
        let syncs = self.syncs.lock().expect("no panic while it is locked");
        let is_held = |syncs: &mut Syncs| *syncs == Syncs::Held;
        let mut syncs = self
            .changed
            .wait_while(syncs, is_held)
            .expect("no panic while it is locked");
        match std::mem::take(&mut *syncs) {
            Syncs::FailOnce => Err(io::Error::other("the disk fails")),
            _ => Ok(()),
        }
    }
}

/// The disk.
pub(crate) fn faulty_disk(faults: Arc<Faults>) -> Arc<dyn Storage> {
    Arc::new(Intercepted::new(DiskStorage, move |operation, path| {
        let is_journal = path
            .parent()
            .is_some_and(|parent| parent.ends_with("journal"));
        if is_journal && operation == Operation::SyncData {
            faults.pass()
        } else {
            Ok(())
        }
    }))
}
