//! The health of a shard's owner, and why an owner ends.

use std::time::Duration;

use ports::{Error, ErrorKind, Monotonic};

/// The health of a shard's owner.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// Records that are not yet durable far.
    pub pending_records: usize,
    /// The bytes of these records.
    pub pending_bytes: usize,
    /// How long the oldest of them has waited.
    pub pending_for: Duration,
    /// Lanes that a permanent error has stopped.
    pub poisoned_lanes: usize,
    /// The time since the last write or renewal was sent that the far store has answered. An idle
    /// owner sends none.
    pub answered: Option<Duration>,
    /// Set while the far store fails.
    pub failing: Option<Failing>,
    /// The cause, if this instance has ended.
    pub ended: Option<ErrorKind>,
}

/// An outage of the far store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// When it began.
    pub since: Monotonic,
    /// How many attempts have failed.
    pub attempts: u64,
    /// The error of the last attempt.
    pub reason: String,
}

/// Why an instance has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Another process owns the shard.
    Deposed,
    /// The near store went back or restarted: open the shard again.
    NearLost,
    /// The shard was released.
    Closed,
}

impl Ended {
    pub(crate) fn error(self) -> Error {
        match self {
            Self::Deposed => Error::new(ErrorKind::Lost, "use a shard that has another owner now"),
            Self::NearLost => {
                let why = "use a shard whose near store has gone back or restarted";
                Error::new(ErrorKind::Lost, why)
            }
            Self::Closed => Error::unavailable("use a shard that was given up"),
        }
    }
}
