//! Counts of runs since the start.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::storage::Status;

/// Counts of runs since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Active now.
    pub active: u64,
    /// Begun by this process; resumed runs of earlier starts are not among them.
    pub begun: u64,
    /// Ended with an output.
    pub succeeded: u64,
    /// Failed, or exceeded their time limit.
    pub failed: u64,
    /// Cancelled by a caller.
    pub cancelled: u64,
}

/// The counters behind [`Figures`]. Each is exact; together they are no snapshot.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    begun: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
}

impl Counters {
    /// Counts a run that has begun.
    pub(crate) fn began(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a run whose end was written.
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
