//! Locks of flock(2) and fcntl(2). They are the volume's, so they hold across mounts.

use std::{collections::BTreeSet, sync::Arc};

use files::{Ino, file_system::lock_key};
use parking_lot::Mutex;
use transactions::serializable::model::{Granted, Lock, LockBytes, LockFamily, LockMode, Wait};

use super::{
    Node,
    answer::{Answer, Outcome},
};
use crate::wire::{Errno, FileLock, LockKind, LockRequest, LockStyle, Reply};

/// The owners that may have locks. A close asks for an unlock only if its owner is among them.
#[derive(Debug, Default)]
pub(super) struct Locks(Mutex<BTreeSet<(Ino, LockFamily, u64)>>);

impl Locks {
    /// Whether the process may have locks of fcntl on the inode.
    pub(super) fn has(&self, ino: Ino, owner: u64) -> bool {
        self.0.lock().contains(&(ino, LockFamily::Posix, owner))
    }
}

impl Node {
    pub(super) async fn get_lock(self: Arc<Self>, ino: Ino, request: LockRequest) -> Outcome {
        let granted = self.lock(ino, &request, Wait::Test).await?;
        let lock = match granted {
            Granted::Yes => FileLock {
                kind: LockKind::Unlocked,
                ..request.lock
            },
            Granted::No { bytes, mode, pid } => FileLock {
                start: bytes.first,
                end: bytes.last,
                kind: kind(mode),
                pid,
            },
        };
        Ok(Answer::Reply(Reply::Lock(lock)))
    }

    pub(super) async fn set_lock(self: Arc<Self>, ino: Ino, request: LockRequest) -> Outcome {
        match self.lock(ino, &request, Wait::Never).await? {
            Granted::Yes => Ok(Answer::Done),
            Granted::No { .. } => Err(Errno::EAGAIN),
        }
    }

    pub(super) async fn wait_for_lock(self: Arc<Self>, ino: Ino, request: LockRequest) -> Outcome {
        match self.lock(ino, &request, Wait::UntilGranted).await? {
            Granted::Yes => Ok(Answer::Done),
            Granted::No { .. } => Err(Errno::EAGAIN),
        }
    }

    /// Drops the locks of fcntl that a process has on a file, at any close of it.
    pub(super) async fn unlock_process(self: Arc<Self>, ino: Ino, owner: u64) -> Outcome {
        self.unlock(ino, LockFamily::Posix, owner).await?;
        Ok(Answer::Done)
    }

    /// Drops the lock of flock of an open file.
    pub(super) async fn unlock_file(&self, ino: Ino, owner: u64) -> Result<(), Errno> {
        self.unlock(ino, LockFamily::Flock, owner).await
    }

    async fn unlock(&self, ino: Ino, family: LockFamily, owner: u64) -> Result<(), Errno> {
        if !self.locks.0.lock().remove(&(ino, family, owner)) {
            return Ok(());
        }
        let lock = Lock {
            key: lock_key(ino),
            family,
            bytes: LockBytes::ALL,
            mode: LockMode::Unlocked,
            pid: 0,
            wait: Wait::Never,
        };
        self.calls.lock(owner, lock).await?;
        Ok(())
    }

    async fn lock(&self, ino: Ino, request: &LockRequest, wait: Wait) -> Result<Granted, Errno> {
        let FileLock {
            start,
            end,
            kind,
            pid,
        } = request.lock;
        let (family, bytes) = match request.style {
            LockStyle::Flock => (LockFamily::Flock, LockBytes::ALL),
            LockStyle::Posix => (
                LockFamily::Posix,
                LockBytes {
                    first: start,
                    last: end,
                },
            ),
        };
        let mode = match kind {
            LockKind::Shared => LockMode::Shared,
            LockKind::Exclusive => LockMode::Exclusive,
            LockKind::Unlocked => LockMode::Unlocked,
        };
        if mode != LockMode::Unlocked && wait != Wait::Test {
            // Before the call: an owner too many costs an unlock, one too few a lock that stays.
            let owner = (ino, family, request.owner);
            self.locks.0.lock().insert(owner);
        }
        let lock = Lock {
            key: lock_key(ino),
            family,
            bytes,
            mode,
            pid,
            wait,
        };
        Ok(self.calls.lock(request.owner, lock).await?)
    }
}

fn kind(mode: LockMode) -> LockKind {
    match mode {
        LockMode::Shared => LockKind::Shared,
        LockMode::Exclusive => LockKind::Exclusive,
        LockMode::Unlocked => LockKind::Unlocked,
    }
}
