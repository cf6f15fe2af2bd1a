//! Counts of runs since the start.

use parking_lot::Mutex;

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

/// The counters behind [`Figures`].
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<Figures>);

impl Counters {
    pub(crate) fn began(&self) {
        self.0.lock().begun += 1;
    }

    pub(crate) fn ended(&self, status: Status) {
        let mut figures = self.0.lock();
        match status {
            Status::Running => {}
            Status::Succeeded => figures.succeeded += 1,
            Status::Failed => figures.failed += 1,
            Status::Cancelled => figures.cancelled += 1,
        }
    }

    pub(crate) fn figures(&self, active: u64) -> Figures {
        Figures {
            active,
            ..*self.0.lock()
        }
    }
}
