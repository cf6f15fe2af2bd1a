//! Ballast: disk that is kept for getting out of a full one.
//!
//! What a client deletes makes room only once a checkpoint has taken it in, and the checkpoint store copies what it
//! changes before it gives anything back; a journal goes on in another segment only if there is one. So some of the
//! disk is held in a file that nothing is kept in, and let go for as long as a checkpoint, or a new segment, needs it.
//!
//! While it is let go nobody else of ours may take the room: the journal asks for none ([`Ballast::is_held`]).

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

/// Less than this does not carry a checkpoint: the checkpoint store copies a dozen pages for any change.
const BYTES_MIN: u64 = 1 << 20;

/// It is this part of a journal segment.
const SEGMENT_PART: u64 = 4;

/// The file, and how much of it there is.
#[derive(Debug)]
pub(crate) struct Ballast {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    whole: u64,
    bytes: AtomicU64,
    is_held: AtomicBool,
    /// One changes it at a time.
    changing: Mutex<()>,
}

impl Ballast {
    /// None is held yet.
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

    /// How much there is when there is all of it.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.whole
    }

    /// How much there is.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether it is held: the journal may take room beside it.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Relaxed)
    }

    /// Takes as much of it as the disk has.
    pub(crate) fn take(&self) {
        let _one = self.changing.lock();
        self.fill();
        self.is_held.store(true, Ordering::Relaxed);
    }

    /// Takes more of it, unless somebody has let it go.
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
                tracing::warn!(%error, "the ballast for a full disk cannot be taken");
            }
        }
    }

    /// By halves.
    fn extend(&self, file: &dyn StorageFile) -> io::Result<()> {
        let mut piece = self.whole - self.bytes();
        while piece >= self.whole / 16 && self.bytes() < self.whole {
            let longer = (self.bytes() + piece).min(self.whole);
            if file.allocate(longer).is_ok() {
                self.bytes.store(longer, Ordering::Relaxed);
            } else {
                // A file system may keep what it could give.
                file.set_len(self.bytes())?;
                piece /= 2;
            }
        }
        Ok(())
    }

    /// Gives the disk all of it back, until [`Ballast::take`].
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

    /// P6: whoever let it go has the room for as long as he needs it.
    #[test]
    fn what_is_let_go_is_nobody_elses_until_it_is_taken_back() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let ballast = Ballast::new(Arc::new(DiskStorage), directory.path().join("ballast"), 0);
        ballast.take();
        assert!(ballast.is_held() && ballast.bytes() == BYTES_MIN);
        ballast.release().expect("it goes");
        ballast.refill();
        assert_eq!(
            (ballast.is_held(), ballast.bytes()),
            (false, 0),
            "the journal and others keep away"
        );
        ballast.take();
        assert!(ballast.is_held() && ballast.bytes() == BYTES_MIN);
    }
}
