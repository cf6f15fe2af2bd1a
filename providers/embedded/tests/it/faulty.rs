//! A disk that can be full, that fails on request, and that outlives its process.

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use embedded::storage::{DiskStorage, Storage, StorageFile};

use taken::{FileId, Taken};

mod taken;

/// The faults that tests set.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// The bytes that all files may take together; zero: unbounded.
    pub(crate) capacity: AtomicU64,
    /// Syncs of journal segments fail.
    pub(crate) fail_journal_sync: AtomicBool,
    /// Writes to journal segments fail halfway.
    pub(crate) fail_journal_write: AtomicBool,
    /// The checkpoint store can neither grow nor change, for lack of room.
    pub(crate) no_room_for_checkpoints: AtomicBool,
    /// The checkpoint store cannot change, for another reason.
    pub(crate) fail_checkpoints: AtomicBool,
    /// The checkpoint store cannot be read.
    pub(crate) fail_checkpoint_reads: AtomicBool,
    /// The change to the disk in which the process dies, counted from one; zero: never. A write is
    /// done by half, any other change not at all, and nothing follows.
    pub(crate) dies_in: AtomicU64,
    changes: AtomicU64,
    /// Whether syncs of journal segments block until this is reset.
    is_slow: Mutex<bool>,
    is_quick: Condvar,
    waiting_syncs: AtomicU64,
    taken: Mutex<Taken>,
}

impl Faults {
    pub(crate) fn set(flag: &AtomicBool, on: bool) {
        flag.store(on, Ordering::SeqCst);
    }

    /// Makes syncs of journal segments block, or releases them.
    pub(crate) fn hold_syncs(&self, hold: bool) {
        *self.is_slow.lock().expect("no holder panics") = hold;
        self.is_quick.notify_all();
    }

    /// The number of blocked syncs.
    pub(crate) fn waiting_syncs(&self) -> u64 {
        self.waiting_syncs.load(Ordering::SeqCst)
    }

    fn wait_until_quick(&self) {
        let is_slow = self.is_slow.lock().expect("no holder panics");
        self.waiting_syncs.fetch_add(1, Ordering::SeqCst);
        drop(
            self.is_quick
                .wait_while(is_slow, |is_slow| *is_slow)
                .expect("no holder panics"),
        );
        self.waiting_syncs.fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts a change to the disk. Fails if the process is dead by then.
    fn change(&self) -> io::Result<()> {
        let number = self.changes.fetch_add(1, Ordering::SeqCst) + 1;
        let dies_in = self.dies_in.load(Ordering::SeqCst);
        if dies_in > 0 && number >= dies_in {
            Err(broken())
        } else {
            Ok(())
        }
    }

    /// Whether the process dies in the last counted change.
    fn is_dying(&self) -> bool {
        self.changes.load(Ordering::SeqCst) == self.dies_in.load(Ordering::SeqCst)
    }

    /// The bytes of all files.
    pub(crate) fn used(&self) -> u64 {
        self.taken().bytes()
    }

    /// The bytes of the files in one folder.
    pub(crate) fn used_in(&self, folder: &Path) -> u64 {
        self.taken().bytes_in(folder)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().expect("no holder panics")
    }

    fn take(&self, file: FileId, range: Range<u64>) -> io::Result<()> {
        self.taken()
            .take(file, range, self.capacity.load(Ordering::SeqCst))
    }
}

/// The disk.
#[derive(Debug)]
pub(crate) struct FaultyStorage(pub(crate) Arc<Faults>);

#[derive(Debug)]
struct FaultyFile {
    faults: Arc<Faults>,
    path: PathBuf,
    id: FileId,
    file: Arc<dyn StorageFile>,
}

impl FaultyFile {
    fn is_journal(&self) -> bool {
        self.path
            .parent()
            .is_some_and(|parent| parent.ends_with("journal"))
    }
}

fn broken() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl Storage for FaultyStorage {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        if !path.exists() {
            self.0.change()?;
        }
        let file = DiskStorage.open(path)?;
        let id = self.0.taken().file(path, file.len()?);
        Ok(Arc::new(FaultyFile {
            faults: Arc::clone(&self.0),
            path: path.to_owned(),
            id,
            file,
        }))
    }

    fn open_direct(&self, path: &Path) -> Option<Arc<dyn StorageFile>> {
        let id = self.0.taken().file(path, path.metadata().ok()?.len());
        Some(Arc::new(FaultyFile {
            faults: Arc::clone(&self.0),
            path: path.to_owned(),
            id,
            // Through the page cache, which takes torn writes too.
            file: DiskStorage.open(path).ok()?,
        }))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        DiskStorage.list(directory)
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        self.0.change()?;
        DiskStorage.create_directory(directory)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.change()?;
        self.0.taken().rename(from, to);
        DiskStorage.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.change()?;
        self.0.taken().remove(path);
        DiskStorage.remove(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        self.0.change()?;
        DiskStorage.sync_directory(directory)
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        match self.0.capacity.load(Ordering::SeqCst) {
            0 => Ok(u64::MAX),
            capacity => Ok(capacity.saturating_sub(self.0.used())),
        }
    }
}

impl StorageFile for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if !self.is_journal() && self.faults.fail_checkpoint_reads.load(Ordering::SeqCst) {
            return Err(broken());
        }
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let death = self.faults.change();
        let is_torn = self.is_journal() && self.faults.fail_journal_write.load(Ordering::SeqCst);
        if is_torn || (death.is_err() && self.faults.is_dying()) {
            self.file.write_at(&data[..data.len() / 2], offset)?;
            return Err(broken());
        }
        death?;
        // The heads have their room: a store that met a full disk is opened again.
        let is_new = !self.is_journal() && offset >= 16384;
        if is_new && self.faults.fail_checkpoints.load(Ordering::SeqCst) {
            return Err(broken());
        }
        if is_new && self.faults.no_room_for_checkpoints.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.faults
            .take(self.id, offset..offset + data.len() as u64)?;
        self.file.write_at(data, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.faults.change()?;
        self.faults.taken().cut(self.id, length);
        self.file.set_len(length)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.faults.change()?;
        if !self.is_journal() && self.faults.no_room_for_checkpoints.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.faults.take(self.id, 0..length)?;
        self.file.allocate(length)
    }

    fn disk_bytes(&self) -> io::Result<u64> {
        Ok(self.faults.taken().bytes_of(self.id))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.faults.change()?;
        if self.is_journal() {
            self.faults.wait_until_quick();
        }
        if self.is_journal() && self.faults.fail_journal_sync.load(Ordering::SeqCst) {
            return Err(broken());
        }
        self.file.sync_data()
    }
}
