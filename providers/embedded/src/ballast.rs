//! Ballast: disk space held to get out of a full disk.
//!
//! A deletion frees space only after a checkpoint has applied it. The checkpoint store copies the
//! pages it changes before it frees the old ones, and a full journal needs another segment. A file
//! without content therefore holds some disk space. It is released while a checkpoint or a new
//! segment needs the space.
//!
//! While it is released, no other part of the store may take the space: the journal allocates
//! nothing ([`Ballast::is_held`]).

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::storage::{Storage, StorageFile};

/// The smallest ballast that carries a checkpoint: the checkpoint store copies a dozen pages for
/// any change.
const BYTES_MIN: u64 = 1 << 20;

/// The ballast is one part of this many of a journal segment.
const SEGMENT_PART: u64 = 4;

/// The ballast file and its present size.
#[derive(Debug)]
pub(crate) struct Ballast {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    whole: u64,
    bytes: AtomicU64,
    is_held: AtomicBool,
    /// Serializes changes of the file.
    changing: Mutex<()>,
}

impl Ballast {
    /// A ballast that holds nothing yet.
    pub(crate) fn new(storage: Arc<dyn Storage>, path: PathBuf, segment_bytes: u64) -> Self {
        let whole = (segment_bytes / SEGMENT_PART).max(BYTES_MIN);
        Self {
            storage,
            path,
            whole,
            bytes: AtomicU64::new(0),
            is_held: AtomicBool::new(false),
            changing: Mutex::default(),
        }
    }

    /// The size of the whole ballast.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.whole
    }

    /// The present size.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the ballast is held. The journal may allocate space only while it is.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Relaxed)
    }

    /// Takes as much of the ballast as the disk has room for.
    pub(crate) fn acquire(&self) {
        let _one = self.changing.lock();
        self.fill();
        self.is_held.store(true, Ordering::Relaxed);
    }

    /// Takes the missing rest of the ballast, unless it is released.
    pub(crate) fn refill(&self) {
        let _one = self.changing.lock();
        if self.is_held() {
            self.fill();
        }
    }

    fn fill(&self) {
        let missing = self.whole - self.bytes();
        if missing > 0 {
            let taken = self
                .storage
                .open(&self.path)
                .and_then(|file| self.extend(&*file));
            if let Err(error) = taken {
                tracing::warn!(%error, "the ballast could not be allocated");
            }
        }
    }

    /// Extends the file, in pieces that halve after each refusal.
    fn extend(&self, file: &dyn StorageFile) -> io::Result<()> {
        let mut piece = self.whole - self.bytes();
        while piece >= self.whole / 16 && self.bytes() < self.whole {
            let longer = (self.bytes() + piece).min(self.whole);
            if file.allocate(longer).is_ok() {
                self.bytes.store(longer, Ordering::Relaxed);
            } else {
                // A file system may keep the part that it could allocate.
                file.set_len(self.bytes())?;
                piece /= 2;
            }
        }
        Ok(())
    }

    /// Gives the whole ballast back to the disk, until [`Ballast::acquire`].
    pub(crate) fn release(&self) -> io::Result<()> {
        let _one = self.changing.lock();
        self.is_held.store(false, Ordering::Relaxed);
        self.storage.open(&self.path)?.set_len(0)?;
        self.bytes.store(0, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::DiskStorage;

    /// P6: the caller that released the ballast keeps the space for as long as it needs it.
    #[test]
    fn released_ballast_stays_free_until_it_is_acquired_again() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let ballast = Ballast::new(Arc::new(DiskStorage), directory.path().join("ballast"), 0);
        ballast.acquire();
        assert!(ballast.is_held() && ballast.bytes() == BYTES_MIN);
        ballast.release().expect("it goes");
        ballast.refill();
        assert_eq!(
            (ballast.is_held(), ballast.bytes()),
            (false, 0),
            "the journal and others keep away"
        );
        ballast.acquire();
        assert!(ballast.is_held() && ballast.bytes() == BYTES_MIN);
    }
}
