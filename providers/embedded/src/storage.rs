//! The few file operations that durability depends on, as a seam for tests.
//!
//! The journal, the checkpoint store and the `format` record reach the disk only through
//! [`Storage`]. A test can therefore count syncs, fill the disk, or fail any write. [`DiskStorage`]
//! is the real implementation.
//!
//! Invariants
//! - `write_at` and `set_len` promise nothing before `sync_data` returned `Ok`.
//! - A created, renamed or removed name is durable only after `sync_directory`. A start cannot know
//!   whether a name it finds is durable, because the process that gave it may have died before the
//!   sync. Each start therefore syncs a directory before it depends on the names there.
//! - After a failed sync, the state of the earlier writes is unknown: the kernel may have dropped
//!   the dirty pages and marked them clean. No code depends on a later sync of the same file, or of
//!   the same directory of objects.

#![allow(unsafe_code)] // two calls: posix_fallocate and statvfs

use std::{
    ffi::CString,
    fmt::Debug,
    fs::{self, File, OpenOptions},
    io,
    mem::MaybeUninit,
    os::{
        fd::AsRawFd,
        unix::{
            ffi::OsStrExt,
            fs::{FileExt, MetadataExt},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
};

/// The granule of disk writes and of the page cache.
pub(crate) const PAGE_BYTES: u64 = 4096;

#[cfg(test)]
#[path = "../tests/it/intercepted.rs"]
pub(crate) mod intercepted;

#[cfg(test)]
#[path = "../tests/it/whole_pages.rs"]
pub(crate) mod whole_pages;

/// An open file with positioned reads and writes.
pub trait StorageFile: Debug + Send + Sync {
    /// The length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether it has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Fills `buffer` from `offset`. Fails if the file ends before.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `data` at `offset`.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts or extends the file. New bytes are zero.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// Allocates `length` bytes of disk, so that writes there cannot fail for lack of room.
    fn allocate(&self, length: u64) -> io::Result<()>;
    /// The allocated bytes of disk; fewer than the length if the file has holes.
    fn disk_bytes(&self) -> io::Result<u64> {
        self.len()
    }
    /// Makes the bytes durable, with the metadata needed to read them back.
    fn sync_data(&self) -> io::Result<()>;
}

/// A file system.
pub trait Storage: Debug + Send + Sync {
    /// Opens the file for reading and writing, and creates it if it is missing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>>;
    /// Opens an existing file for writes of whole pages around the page cache, from memory aligned
    /// like pages. None if the file system does not offer that.
    fn open_direct(&self, _path: &Path) -> Option<Arc<dyn StorageFile>> {
        None
    }
    /// The names in a directory, sorted.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Creates a directory and those above it.
    fn create_directory(&self, directory: &Path) -> io::Result<()>;
    /// Renames a file and replaces a file of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// How many bytes of disk the files in this directory may still take; `u64::MAX` if that is
    /// unknown.
    fn free_bytes(&self, _directory: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

/// Whether `error` says that the disk is full.
pub(crate) fn is_about_room(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Creates a directory and those above it, and makes their names durable. It works from the top and
/// syncs each name before it creates the next one. If an earlier call died, only its lowest name
/// may lack a sync, and this call syncs that name again.
pub(crate) fn make_directory(storage: &dyn Storage, directory: &Path) -> io::Result<()> {
    let missing = directory
        .ancestors()
        .take_while(|above| !is_there(above))
        .count();
    let row: Vec<&Path> = directory.ancestors().take(missing + 1).collect();
    for (made, directory) in row.into_iter().rev().enumerate() {
        if made > 0 {
            storage.create_directory(directory)?;
        }
        let Some(above) = directory.parent() else {
            continue;
        };
        let above = if above.as_os_str().is_empty() {
            Path::new(".")
        } else {
            above
        };
        match storage.sync_directory(above) {
            // Nothing was created there now. If this user may not list the directory, or the file
            // system cannot sync one, nothing more can be done.
            Err(error) if made == 0 && cannot_be_asked(&error) => {
                tracing::debug!(directory = %above.display(), %error, "the directory above is not synced");
            }
            Err(error) => {
                return Err(io::Error::other(format!(
                    "sync {}: {error}",
                    above.display()
                )));
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// The lowest existing path of `directory` and those above it, if it is not a directory.
pub fn in_the_way(directory: &Path) -> Option<PathBuf> {
    let there = directory
        .ancestors()
        .find(|path| path.symlink_metadata().is_ok())?;
    (!there.is_dir()).then(|| there.to_owned())
}

/// Whether the error is due to this user's rights or to the file system, so that the directory
/// cannot be synced.
pub(crate) fn cannot_be_asked(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    )
}

/// An empty path names the working directory.
fn is_there(directory: &Path) -> bool {
    directory.as_os_str().is_empty() || directory.is_dir()
}

/// The local file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskStorage;

#[derive(Debug)]
struct DiskFile(File);

/// A file that is open already.
pub(crate) fn opened(file: File) -> Arc<dyn StorageFile> {
    Arc::new(DiskFile(file))
}

impl Storage for DiskStorage {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        Ok(Arc::new(DiskFile(file)))
    }

    #[cfg(target_os = "linux")]
    fn open_direct(&self, path: &Path) -> Option<Arc<dyn StorageFile>> {
        use std::os::unix::fs::OpenOptionsExt;

        let mut options = OpenOptions::new();
        options.write(true).custom_flags(libc::O_DIRECT);
        let file = options.open(path).ok()?;
        Some(Arc::new(DiskFile(file)))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn free_bytes(&self, directory: &Path) -> io::Result<u64> {
        let path = CString::new(directory.as_os_str().as_bytes())?;
        let mut found = MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: the path ends in a zero byte, and `found` has room for the result of the call.
        if unsafe { libc::statvfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so it has filled the structure in.
        let found = unsafe { found.assume_init() };
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

impl StorageFile for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let length = libc::off_t::try_from(length)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: the descriptor is open for as long as `self.0` lives, and the call touches no memory of ours.
        match unsafe { libc::posix_fallocate(self.0.as_raw_fd(), 0, length) } {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }

    fn disk_bytes(&self) -> io::Result<u64> {
        const SECTOR_BYTES: u64 = 512;
        Ok(self.0.metadata()?.blocks() * SECTOR_BYTES)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        intercepted::{Intercepted, Operation},
        *,
    };

    #[test]
    fn an_existing_directory_needs_no_access_to_its_parent() {
        let above = tempfile::tempdir().expect("a temporary directory");
        let not_listed = above.path().to_owned();
        let storage = Intercepted::new(DiskStorage, move |operation, path| {
            let is_refused = operation == Operation::SyncDirectory && path == not_listed;
            if is_refused {
                Err(io::ErrorKind::PermissionDenied.into())
            } else {
                Ok(())
            }
        });
        let data = above.path().join("data");
        let refused = make_directory(&storage, &data).expect_err("its name may not last");
        assert!(
            refused
                .to_string()
                .contains(&above.path().display().to_string()),
            "{refused}"
        );
        make_directory(&storage, &data).expect("it is there");
        make_directory(&storage, &data.join("journal")).expect("below it nothing is refused");
    }
}
