//! The lock of a data directory: one process at a time has it open.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    path::Path,
};

use super::layout;
use crate::{config::Config, error::OpenError, storage::make_directory};

/// The lock of a directory. Dropping it, or the end of the process, releases it.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    file: File,
}

impl DirectoryLock {
    /// Takes the lock of the configured directory, which is created if it is missing.
    pub(crate) fn take_or_make(config: &Config) -> Result<Self, OpenError> {
        let made = make_directory(&*config.storage, &config.data_dir);
        made.map_err(OpenError::making(&config.data_dir))?;
        Self::take(&config.data_dir)
    }

    /// Takes the lock of `directory`, or reports the process that holds it.
    pub(crate) fn take(directory: &Path) -> Result<Self, OpenError> {
        let path = directory.join(layout::LOCK);
        let attempted = || format!("lock {}", path.display());
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(OpenError::io(attempted()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                return Err(OpenError::Locked {
                    pid: pid.trim().parse().unwrap_or(0),
                });
            }
            Err(std::fs::TryLockError::Error(error)) => {
                return Err(OpenError::io(attempted())(error));
            }
        }
        // Only the lock matters. On a full disk the process id may be missing.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { file })
    }
}

impl Drop for DirectoryLock {
    /// Unlocks explicitly: a process that is being started may hold a copy of the descriptor for a
    /// moment.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}
