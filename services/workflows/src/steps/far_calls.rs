//! Attempts that fail because their far store is away, through no fault of their step (W9).
//!
//! While a far store is away, requests to it fail or wait until it is back. Meanwhile the code gives
//! up, or its function reaches its time limit. So we record which requests of an attempt got no
//! response. If such an attempt fails, it uses up no retry, and is made again once the far store
//! responds, within the time limit of its run.
//!
//! Steps that code calls within its own step run in the same function and share this record. We do
//! not tell the code that such a step has failed for this reason, as the code would have to be told
//! the same whenever it runs again (W2). Instead the whole attempt ends and is made again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ports::ErrorKind;

use crate::{Error, Result};

/// The requests of one function's attempt to its far store.
#[derive(Debug, Default)]
pub(crate) struct FarCalls {
    /// Requests without a response: pending ones, and those that a caller gave up.
    unanswered: AtomicUsize,
    /// Whether a request failed because the store was away.
    failed: AtomicBool,
    /// Whether the attempt was ended for that reason.
    interrupted: AtomicBool,
}

impl FarCalls {
    /// Makes a request that the far store may have to answer.
    pub(super) async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        let answer = call.await;
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
        if answer.as_ref().is_err_and(is_outage) {
            self.fail();
        }
        answer
    }

    /// Notes that the far store was away for a request.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Ends the attempt, even if its function returns a result.
    pub(crate) fn interrupt(&self) {
        self.fail();
        self.interrupted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn was_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Whether the far store was away for a request. A request without a response proves that only
    /// while the store `is_failing`.
    pub(crate) fn lacked_store(&self, is_failing: impl FnOnce() -> bool) -> bool {
        let is_unanswered = self.unanswered.load(Ordering::Relaxed) > 0;
        self.failed.load(Ordering::Relaxed) || is_unanswered && is_failing()
    }
}

fn is_outage(error: &Error) -> bool {
    use ErrorKind::{OutcomeUnknown, Unavailable};
    matches!(error, Error::Port(error) if matches!(error.kind(), Unavailable { .. } | OutcomeUnknown))
}
