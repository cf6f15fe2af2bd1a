//! Retries that wait for a far store to come back (W9).

use super::Executor;
use crate::{Broken, env::RETRY, failure::Failure, run::Run, steps::Attempt};

impl Executor {
    /// Whether the far store was away for a request of `attempt`. A request that waits while the far
    /// store responds to others does not count.
    pub(crate) fn lacked_far(&self, attempt: &Attempt) -> bool {
        let is_failing = || self.placement.is_failing(&attempt.run.location);
        attempt.far_calls.lacked_store(is_failing) && !self.env.breaks(Broken::CountsOutages)
    }

    /// Waits until the far store responds and has all that the run has written so far.
    /// Errors: `Stopped` if another process executes the run now.
    pub(super) async fn wait_for_far(&self, run: &Run) -> Result<(), Failure> {
        let mut delays = RETRY.delays();
        loop {
            match run.externalize().await {
                Ok(()) if !self.placement.is_failing(&run.location) => return Ok(()),
                Err(error) if error.ends_execution() => return Err(Failure::Stopped),
                // The next attempt learns what the store refuses permanently.
                Err(error) if !error.is_transient() => return Ok(()),
                _ => self.env.pause(&mut delays).await,
            }
        }
    }
}
