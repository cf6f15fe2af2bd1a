//! A disk that holds a sync of the journal up, and then fails it.

use std::{
    io,
    path::Path,
    sync::{Arc, Condvar, Mutex},
};

use embedded::storage::{DiskStorage, Storage, StorageFile};

/// What becomes of syncs of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Syncs {
    /// They are made.
    #[default]
    Made,
    /// They wait.
    Held,
    /// The next one fails, and those behind it are made.
    FailOnce,
}

/// What the tests turn.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    syncs: Mutex<Syncs>,
    changed: Condvar,
}

impl Faults {
    /// Holds up every sync of the journal from now on.
    pub(crate) fn hold(&self) {
        self.turn(Syncs::Held);
    }

    /// Fails the sync that is held up, or the next one.
    pub(crate) fn fail_once(&self) {
        self.turn(Syncs::FailOnce);
    }

    fn turn(&self, syncs: Syncs) {
        *self.syncs.lock().expect("nobody panics holding it") = syncs;
        self.changed.notify_all();
    }

    fn pass(&self) -> io::Result<()> {
        let syncs = self.syncs.lock().expect("nobody panics holding it");
        let is_held = |syncs: &mut Syncs| *syncs == Syncs::Held;
        let mut syncs = self.changed.wait_while(syncs, is_held).expect("nobody panics holding it");
        match std::mem::take(&mut *syncs) {
            Syncs::FailOnce => Err(io::Error::other("the disk fails")),
            _ => Ok(()),
        }
    }
}

/// The disk.
#[derive(Debug)]
pub(crate) struct FaultyDisk(pub(crate) Arc<Faults>);

#[derive(Debug)]
struct JournalFile {
    faults: Arc<Faults>,
    file: Arc<dyn StorageFile>,
}

impl Storage for FaultyDisk {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        let file = DiskStorage.open(path)?;
        if !path.parent().is_some_and(|parent| parent.ends_with("journal")) {
            return Ok(file);
        }
        Ok(Arc::new(JournalFile { faults: Arc::clone(&self.0), file }))
    }
    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        DiskStorage.list(directory)
    }
    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        DiskStorage.create_directory(directory)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        DiskStorage.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        DiskStorage.remove(path)
    }
    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        DiskStorage.sync_directory(directory)
    }
}

impl StorageFile for JournalFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buffer, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(data, offset)
    }
    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }
    fn allocate(&self, length: u64) -> io::Result<()> {
        self.file.allocate(length)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.faults.pass()?;
        self.file.sync_data()
    }
}
