//! Attempts that end for want of their far store: those fail by no fault of their step (W9).
//!
//! While a far store is away, what is asked of it is refused, or waits until it is back; meanwhile code gives up, or its function is
//! at the end of its time. So it is noted what an attempt asked and was not answered. An attempt that fails then uses up no retry: it
//! is made again once the far store answers, as long as its run may take.
//!
//! Steps that code calls within its own are of the same function, and share what is noted. Such a step that fails for that reason is
//! not said to have failed, since its code would be told so whenever it is run again (W2): the whole attempt ends, and is made again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ports::ErrorKind;

use crate::{
    Broken, Error, Result,
    run::{Failure, Run},
    service::Inner,
    step::Attempt,
};

/// What one function's attempt has asked of its far store.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// What it waits for.
    waiting: AtomicUsize,
    /// Something was not waited for any longer.
    gave_up: AtomicBool,
    /// Something was refused, for now.
    was_refused: AtomicBool,
    /// It ended for that.
    was_interrupted: AtomicBool,
}

/// One thing that is waited for.
#[derive(Debug)]
struct Waiting<'a> {
    asked: &'a Asked,
    is_over: bool,
}

impl Asked {
    /// The answer to `call`, which the far store may have to give.
    async fn of<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut waiting = Waiting {
            asked: self,
            is_over: false,
        };
        let answer = call.await;
        waiting.is_over = true;
        if answer.as_ref().is_err_and(is_outage) {
            self.lacked();
        }
        answer
    }

    /// The far store was away for something that it has asked.
    pub(crate) fn lacked(&self) {
        self.was_refused.store(true, Ordering::Relaxed);
    }

    pub(crate) fn interrupt(&self) {
        self.lacked();
        self.was_interrupted.store(true, Ordering::Relaxed);
    }

    /// Whether it ended whatever its function says.
    pub(crate) fn was_interrupted(&self) -> bool {
        self.was_interrupted.load(Ordering::Relaxed)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.asked.waiting.fetch_sub(1, Ordering::Relaxed);
        if !self.is_over {
            self.asked.gave_up.store(true, Ordering::Relaxed);
        }
    }
}

fn is_outage(error: &Error) -> bool {
    matches!(error, Error::Port(error) if matches!(error.kind(), ErrorKind::Unavailable { .. } | ErrorKind::OutcomeUnknown))
}

impl Attempt {
    /// The answer to what its code asks, noted if the far store is to give it.
    pub(crate) async fn of_far<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        if self.run.store.is_apart() {
            self.asked.of(call).await
        } else {
            call.await
        }
    }
}

impl Run {
    /// Whether the far store was away for what `attempt` has asked. What is waited for while the far store answers is none of that.
    pub(crate) fn lacked_far(&self, service: &Inner, attempt: &Attempt) -> bool {
        let asked = &attempt.asked;
        let went_unanswered =
            || asked.gave_up.load(Ordering::Relaxed) || asked.waiting.load(Ordering::Relaxed) > 0;
        let lacked = asked.was_refused.load(Ordering::Relaxed)
            || went_unanswered() && service.homes.is_failing(&self.home);
        lacked && !service.options.breaks(Broken::CountsOutages)
    }

    /// Ends once the far store answers, and has what the run has written so far. Errors: `Stopped` if another has the run now.
    pub(crate) async fn far_is_back(&self, service: &Inner) -> Result<(), Failure> {
        let mut delays = None;
        loop {
            match self.externalize().await {
                Ok(()) if !service.homes.is_failing(&self.home) => return Ok(()),
                Err(error) if error.means_anew() => return Err(Failure::Stopped),
                // What it refuses for good the next attempt is told.
                Err(error) if !error.passes() => return Ok(()),
                _ => service.pause(&mut delays).await,
            }
        }
    }
}
