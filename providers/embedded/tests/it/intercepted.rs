//! Storage with a hook before each operation, as `ports::faults` is for ports. A test can delay a
//! sync or fail an operation, and everything else is the disk's own behaviour.

use std::{
    fmt::{self, Debug, Formatter},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{Storage, StorageFile};

/// The operation about to run on the file or directory named beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// [`Storage::open`].
    Open,
    /// [`Storage::list`].
    List,
    /// [`Storage::create_directory`].
    CreateDirectory,
    /// [`Storage::rename`]; the name is the old one.
    Rename,
    /// [`Storage::remove`].
    Remove,
    /// [`Storage::sync_directory`].
    SyncDirectory,
    /// [`StorageFile::read_at`].
    Read,
    /// [`StorageFile::write_at`].
    Write,
    /// [`StorageFile::set_len`].
    SetLength,
    /// [`StorageFile::allocate`].
    Allocate,
    /// [`StorageFile::sync_data`].
    SyncData,
}

type Before = dyn Fn(Operation, &Path) -> io::Result<()> + Send + Sync;

/// Storage that runs an operation only if its hook allows it.
#[derive(Clone)]
pub(crate) struct Intercepted<S> {
    storage: S,
    before: Arc<Before>,
}

impl<S: Storage> Intercepted<S> {
    /// Calls `before` ahead of every operation on `storage`. The hook may wait, and its error
    /// becomes the operation's error.
    pub(crate) fn new(
        storage: S,
        before: impl Fn(Operation, &Path) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            storage,
            before: Arc::new(before),
        }
    }
}

impl<S: Debug> Debug for Intercepted<S> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("Intercepted")
            .field(&self.storage)
            .finish()
    }
}

impl<S: Storage> Storage for Intercepted<S> {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        (self.before)(Operation::Open, path)?;
        let file = self.storage.open(path)?;
        Ok(Arc::new(InterceptedFile {
            path: path.to_owned(),
            file,
            before: Arc::clone(&self.before),
        }))
    }

    fn open_direct(&self, path: &Path) -> Option<Arc<dyn StorageFile>> {
        let file = self.storage.open_direct(path)?;
        Some(Arc::new(InterceptedFile {
            path: path.to_owned(),
            file,
            before: Arc::clone(&self.before),
        }))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        (self.before)(Operation::List, directory)?;
        self.storage.list(directory)
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        (self.before)(Operation::CreateDirectory, directory)?;
        self.storage.create_directory(directory)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.before)(Operation::Rename, from)?;
        self.storage.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        (self.before)(Operation::Remove, path)?;
        self.storage.remove(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        (self.before)(Operation::SyncDirectory, directory)?;
        self.storage.sync_directory(directory)
    }

    fn free_bytes(&self, directory: &Path) -> io::Result<u64> {
        self.storage.free_bytes(directory)
    }
}

struct InterceptedFile {
    path: PathBuf,
    file: Arc<dyn StorageFile>,
    before: Arc<Before>,
}

impl Debug for InterceptedFile {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("InterceptedFile")
            .field(&self.path)
            .finish()
    }
}

impl StorageFile for InterceptedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        (self.before)(Operation::Read, &self.path)?;
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        (self.before)(Operation::Write, &self.path)?;
        self.file.write_at(data, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        (self.before)(Operation::SetLength, &self.path)?;
        self.file.set_len(length)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        (self.before)(Operation::Allocate, &self.path)?;
        self.file.allocate(length)
    }

    fn disk_bytes(&self) -> io::Result<u64> {
        self.file.disk_bytes()
    }

    fn sync_data(&self) -> io::Result<()> {
        (self.before)(Operation::SyncData, &self.path)?;
        self.file.sync_data()
    }
}
