//! The health of a shard's owner, and why an owner ends.

use std::time::Duration;

use ports::{Error, ErrorKind, Monotonic};

/// How it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Records that are not yet far-durable.
    pub pending_records: usize,
    /// What they hold.
    pub pending_bytes: usize,
    /// How long the oldest of them has waited.
    pub pending_for: Duration,
    /// Lanes that a permanent error has stopped.
    pub poisoned_lanes: usize,
    /// How long ago the last write or renewal was sent that the far store has answered; who has nothing to do there sends none.
    pub answered: Option<Duration>,
    /// The far store does not answer as it should.
    pub failing: Option<Failing>,
    /// Why this instance serves nobody any more, if so.
    pub ended: Option<ErrorKind>,
}

/// An outage of the far store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// For how long.
    pub since: Monotonic,
    /// How many attempts have failed.
    pub attempts: u64,
    /// Why the last one did.
    pub reason: String,
}

/// Why an instance serves nobody any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The range has another owner.
    Deposed,
    /// The near store went back or restarted: open anew.
    NearLost,
    /// It was given up.
    Closed,
}

impl Ended {
    pub(crate) fn kind(self) -> ErrorKind {
        match self {
            Self::Deposed | Self::NearLost => ErrorKind::Lost,
            Self::Closed => ErrorKind::Unavailable {
                retry_after_ms: None,
            },
        }
    }

    pub(crate) fn error(self) -> Error {
        let why = match self {
            Self::Deposed => "use a shard that has another owner now",
            Self::NearLost => "use a shard whose near store has gone back or restarted",
            Self::Closed => "use a shard that was given up",
        };
        Error::new(self.kind(), why)
    }
}
