//! What is counted of runs since the start.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::records::Status;

/// Runs under way, and what became of others since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Under way now.
    pub active: u64,
    /// Begun here; one that earlier starts have left is none of these.
    pub begun: u64,
    /// Come to their end.
    pub succeeded: u64,
    /// Failed for good, or ran out of time.
    pub failed: u64,
    /// Ended by somebody.
    pub cancelled: u64,
}

/// Counts, each by itself.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    begun: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
}

impl Tally {
    /// A run was begun.
    pub(crate) fn began(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// The end of a run was written.
    pub(crate) fn ended(&self, status: Status) {
        let counter = match status {
            Status::Running => return,
            Status::Succeeded => &self.succeeded,
            Status::Failed => &self.failed,
            Status::Cancelled => &self.cancelled,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn figures(&self, active: u64) -> Figures {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            active,
            begun: read(&self.begun),
            succeeded: read(&self.succeeded),
            failed: read(&self.failed),
            cancelled: read(&self.cancelled),
        }
    }
}
