//! The few file operations that durability rests on, as a seam.
//!
//! The journal, the checkpoint store and the `format` record reach the disk only through [`Storage`], so that
//! a test can count syncs, fill the disk or fail a write at any place. [`DiskStorage`] is the real one.
//!
//! Invariants
//! - `write_at` and `set_len` promise nothing before `sync_data` returned `Ok`.
//! - A created, renamed or removed name is durable only after `sync_directory`. Who finds a name does not know whether it is:
//!   whoever gave it may have died in between. So a start syncs each directory before anything rests on what is there.
//! - After a failed sync nothing is known about what was written before it: the kernel may have dropped the
//!   dirty pages and marked them clean. Nobody here rests on a later sync of the same file, or of the same directory of objects.

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

mod intercepted;

pub use intercepted::{Intercepted, Operation};

/// An open file, read and written at given places.
pub trait StorageFile: Debug + Send + Sync {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether it has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Fills `buffer` from `offset`; an error if the file ends before.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `data` at `offset`.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts or extends it; new bytes are zero.
    fn set_len(&self, length: u64) -> io::Result<()>;
    /// Gives it `length` bytes of disk, so that writing there cannot fail for lack of room.
    fn allocate(&self, length: u64) -> io::Result<()>;
    /// How many bytes of disk it has, which are fewer than its length where it has holes.
    fn disk_bytes(&self) -> io::Result<u64> {
        self.len()
    }
    /// Makes its bytes durable, and as much metadata as reading them back needs.
    fn sync_data(&self) -> io::Result<()>;
}

/// Where files live.
pub trait Storage: Debug + Send + Sync {
    /// Opens the file for reading and writing, making it if it is not there.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>>;
    /// The names in a directory, sorted.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Makes a directory and those above it.
    fn create_directory(&self, directory: &Path) -> io::Result<()>;
    /// Gives a file another name, replacing what has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// How many bytes of disk files in this directory may still take; the most there is where that is not known.
    fn free_bytes(&self, _directory: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

/// Whether `error` is about the room on the disk.
pub(crate) fn is_about_room(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Makes a directory and those above it, and their names durable: from the top, each before the next is made. So of what an
/// earlier call left when its process died only the lowest name may not be durable, and that one is synced again. Returns those that
/// it has made, the lowest first.
pub(crate) fn make_directory(storage: &dyn Storage, directory: &Path) -> io::Result<Vec<PathBuf>> {
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
            // Nothing was made there now, and who may not list it, or whose file system knows no such sync, cannot do more.
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
    Ok(directory
        .ancestors()
        .take(missing)
        .map(Path::to_owned)
        .collect())
}

/// What is where `directory` or one above it would be, and is not one.
pub fn in_the_way(directory: &Path) -> Option<PathBuf> {
    let there = directory
        .ancestors()
        .find(|path| path.symlink_metadata().is_ok())?;
    (!there.is_dir()).then(|| there.to_owned())
}

/// Whether it is for who asks, or for the file system, that a directory is not synced.
pub(crate) fn cannot_be_asked(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    )
}

/// The working directory has the empty path.
fn is_there(directory: &Path) -> bool {
    directory.as_os_str().is_empty() || directory.is_dir()
}

/// The local file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskStorage;

#[derive(Debug)]
struct DiskFile(File);

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
        // SAFETY: the path ends in a zero byte, and `found` has room for what the call writes there.
        if unsafe { libc::statvfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has succeeded, so it has filled it in.
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
    use super::*;

    #[test]
    fn a_directory_that_was_there_needs_nothing_of_the_one_above() {
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
