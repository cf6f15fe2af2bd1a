//! Detects that the directory of objects is no longer the one that was opened.
//!
//! After an unmount, the path of a mount leads to the empty directory below it. By the path alone,
//! that looks valid. Files written there are hidden once the mount is back, and earlier files are
//! missing until then.
//!
//! Invariants
//! - A put is acknowledged, and an object reported missing, only after a check has found the opened
//!   root.
//! - A put also checks before it writes, because the local store creates missing directories.
//!
//! Device and inode tell apart directories that exist together. The creation time tells a directory
//! apart from a removed one whose inode it took. An open handle would tell as much, but would keep
//! the file system from being unmounted.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::SystemTime,
};

/// The directory that was opened.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    identity: Identity,
    /// Whether the last check did not find it.
    is_missing: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    /// The creation time, if the file system records it.
    made: Option<SystemTime>,
}

impl Identity {
    fn of(directory: &Path) -> io::Result<Self> {
        let found = fs::metadata(directory)?;
        Ok(Self {
            device: found.dev(),
            inode: found.ino(),
            made: found.created().ok(),
        })
    }
}

impl Root {
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let identity = Identity::of(&path)?;
        Ok(Self {
            path,
            identity,
            is_missing: AtomicBool::new(false),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the last check did not find it.
    pub(super) fn is_missing(&self) -> bool {
        self.is_missing.load(Ordering::Relaxed)
    }

    /// Errors: the path does not lead to the opened directory.
    pub(super) fn check(&self) -> io::Result<()> {
        let why = match Identity::of(&self.path) {
            Ok(found) if found == self.identity => {
                if self.is_missing.swap(false, Ordering::Relaxed) {
                    tracing::info!(directory = %self.path.display(), "the directory of objects is back");
                }
                return Ok(());
            }
            Ok(_) => "another directory is in its place".to_owned(),
            Err(error) => error.to_string(),
        };
        let directory = self.path.display();
        if !self.is_missing.swap(true, Ordering::Relaxed) {
            tracing::error!(
                %directory,
                why,
                "the directory of objects is not the one that was opened: until it is back, no object is written or reported missing; mount it again, or put it back and restart"
            );
        }
        Err(io::Error::other(format!(
            "{directory} is not the directory that was opened ({why}): mount it again, or put it back"
        )))
    }

    /// As [`Root::check`], after a put of `file`. A file written elsewhere while the root was away
    /// is not found.
    pub(super) fn check_for(&self, file: &Path) -> io::Result<()> {
        self.check()?;
        file.symlink_metadata().map(|_| ())
    }
}
