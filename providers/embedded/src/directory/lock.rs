//! The lock of a data directory: one process at a time has it open.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    path::Path,
};

use super::layout;
use crate::error::OpenError;

/// The directory's lock; dropping it, or dying, gives it back.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    file: File,
}

impl DirectoryLock {
    /// Takes the lock of `directory` or says who holds it.
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
        // The lock is the promise, the number a courtesy: on a full disk it may be missing.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { file })
    }
}

impl Drop for DirectoryLock {
    /// Given back by name: a process being started beside us may hold a copy of the descriptor for a moment.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}
