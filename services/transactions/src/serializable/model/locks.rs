//! Locks of files across clients, in the terms of keys: fcntl's on byte ranges, and flock's.

use serde::{Deserialize, Serialize};

use super::Key;

/// A client process's connection to a volume. Its locks and holds end with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// The owner of a lock, as the kernel names it within one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The session.
    pub session: SessionId,
    /// The owner within it.
    pub id: u64,
}

/// A request for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// The locked key.
    pub key: Key,
    /// The kind; locks of two families never conflict.
    pub family: LockFamily,
    /// The bytes; for flock all of them.
    pub bytes: LockBytes,
    /// The effect that the owner asks for.
    pub mode: LockMode,
    /// The process that asks, for `F_GETLK`.
    pub pid: u32,
    /// Whether the call waits.
    pub wait: Wait,
}

/// The system call that a lock is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockFamily {
    /// `fcntl`.
    Posix,
    /// `flock`.
    Flock,
}

/// A range of bytes. It is empty unless `first` is at most `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockBytes {
    /// The first byte.
    pub first: u64,
    /// The last byte.
    pub last: u64,
}

impl LockBytes {
    /// All bytes.
    pub const ALL: Self = Self {
        first: 0,
        last: u64::MAX,
    };

    /// Whether both have a byte in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.first.max(other.first) <= self.last.min(other.last)
    }
}

/// The effect of a lock on its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockMode {
    /// Others may share it.
    Shared,
    /// No other owner has a lock.
    Exclusive,
    /// The owner unlocks the bytes.
    Unlocked,
}

/// The behaviour of a call while another owner's lock is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wait {
    /// It only asks whether the lock would be granted, as `F_GETLK`.
    Test,
    /// It returns at once.
    Never,
    /// It waits until the lock is granted. Dropping the call ends the wait.
    UntilGranted,
}

/// The answer to a request for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Granted {
    /// The owner has it, or would be granted it.
    Yes,
    /// Another owner's lock is in the way.
    No {
        /// Its bytes.
        bytes: LockBytes,
        /// Its mode.
        mode: LockMode,
        /// The process that has it, as its session knows it.
        pid: u32,
    },
}
