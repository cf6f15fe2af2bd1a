//! Counts of runs since the start.

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

impl Figures {
    pub(crate) fn count_end(&mut self, status: Status) {
        match status {
            Status::Running => {}
            Status::Succeeded => self.succeeded += 1,
            Status::Failed => self.failed += 1,
            Status::Cancelled => self.cancelled += 1,
        }
    }
}
