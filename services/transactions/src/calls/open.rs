//! The open attempts of this node, for an operator who looks for a client that holds one.

use std::time::Duration;

use ports::Monotonic;

use crate::{
    attempts::transaction::{Phase, Transaction},
    calls::Calls,
    model::{Attempt, Isolation, TransactionId},
};

/// The most attempts in one page.
pub const OPEN_PAGE_MAX: usize = 1000;

/// An attempt that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenAttempt {
    /// Its transaction.
    pub id: TransactionId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// Whether its commit is under way.
    pub is_committing: bool,
    /// Its isolation.
    pub isolation: Isolation,
    /// The time since its begin.
    pub age: Duration,
    /// The time since its last call.
    pub idle: Duration,
    /// The keys that it has written.
    pub writes: usize,
    /// Its place among the begins of this node. A page continues after it.
    pub place: u64,
}

impl Calls {
    /// The oldest attempts that began after the one at `after`; at most [`OPEN_PAGE_MAX`].
    pub(crate) fn open_attempts(&self, after: u64) -> Vec<OpenAttempt> {
        let now = self.context.clock.monotonic();
        let found = self.attempts.lock().page(after, OPEN_PAGE_MAX);
        found.iter().map(|found| shown(found, now)).collect()
    }
}

fn shown(attempt: &Transaction, now: Monotonic) -> OpenAttempt {
    let state = attempt.state();
    OpenAttempt {
        id: attempt.id.clone(),
        attempt: attempt.attempt,
        is_committing: state.phase == Phase::Committing,
        isolation: if attempt.is_serializable() {
            Isolation::Serializable
        } else {
            Isolation::ReadAtomic
        },
        age: now.since(attempt.start.at),
        idle: now.since(state.last_call),
        writes: state.buffer.len(),
        place: attempt.start.place,
    }
}
