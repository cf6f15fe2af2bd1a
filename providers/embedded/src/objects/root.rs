//! Whether the directory of objects is still the one that was opened.
//!
//! Where a mount falls off, its path leads to the empty directory below it, which is as good as any other to whoever goes by
//! the path: what is written there is hidden once the mount is back, and what was written before is missing until then.
//!
//! Invariants
//! - A put is acknowledged, and an absence answered, once a look behind it has found the root that was opened.
//! - A put looks before it writes, too: the local store makes whatever directories it does not find.
//!
//! Device and inode tell directories apart that are there together; the time at which it was made, one from another that was
//! removed and whose inode it has. A handle that stays open would tell as much, and keep the file system from being unmounted.

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
    /// The last look has not found it.
    is_missing: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    /// Where the file system keeps it.
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

    /// Whether the last look has not found it.
    pub(super) fn is_missing(&self) -> bool {
        self.is_missing.load(Ordering::Relaxed)
    }

    /// Errors: what was opened is not there.
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
                "the directory of objects is not the one that was opened: nothing is written there, nor said to be missing, until it is back; mount it again, or put it back and start again"
            );
        }
        Err(io::Error::other(format!(
            "{directory} is not the directory that was opened ({why}): mount it again, or put it back"
        )))
    }

    /// The same behind a put of `file`. One that went elsewhere, while the root was away and before this look, is not found.
    pub(super) fn check_for(&self, file: &Path) -> io::Result<()> {
        self.check()?;
        file.symlink_metadata().map(|_| ())
    }
}
