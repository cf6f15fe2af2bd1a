//! One step: tried until it commits or has used up its retries. Retries wait for a far store to come
//! back (W9).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use functions::manifest::workflow::Step;
use ports::runtime::Invocation;
use primitives::{Backoff, Delays};

use super::Executor;
use crate::{
    Broken,
    env::RETRY,
    failure::{Failure, as_json},
    run::Run,
    steps::{Attempt, AttemptGuard},
};

impl Executor {
    /// Commits a step, with as many attempts as it takes. `around` is the attempt whose code waits
    /// for it.
    pub(crate) async fn step(
        &self,
        run: &Arc<Run>,
        step: &Step,
        path: String,
        input: Bytes,
        around: Option<&Attempt>,
    ) -> Result<Bytes, Failure> {
        if let Some(row) = run.committed(&path) {
            return row.result.map_err(Failure::Failed);
        }
        let (most, mut delays) = self.tries_of(step);
        // Of the attempts, those that fail because the far store is away are excused (W9).
        let (mut made, mut excused) = (0, 0);
        loop {
            made += 1;
            if around.is_none() {
                let _paused = run.pauses.paused();
                self.env.stop.unless_begun().await;
            }
            // The attempt around it counts for it.
            let at_work = around.is_none().then(|| run.pauses.at_work());
            // The caller may be code of a run that was cancelled meanwhile.
            if run.is_closed().await {
                return Err(Failure::Stopped);
            }
            let open = self.open(run, &path, made);
            let failure = match self.attempt_step(run, step, &open, input.clone()).await {
                Ok(output) => return Ok(output),
                Err(Failure::Stopped) => return Err(Failure::Stopped),
                Err(failure) => failure,
            };
            let lacked_far = self.lacked_far(&open.attempt);
            drop(open);
            self.check_may_retry(run).await?;
            if lacked_far {
                excused += 1;
                if let Some(around) = around {
                    around.far_calls.fail();
                }
            } else if made - excused >= most {
                return Err(failure);
            }
            drop(at_work);
            let _paused = around.is_none().then(|| run.pauses.paused());
            if lacked_far {
                self.wait_for_far(run).await?;
            }
            let wait = delays.next_wait(&*self.env.entropy);
            let wait = wait.unwrap_or(self.env.options.backoff_max);
            self.env.clock.sleep(wait).await;
        }
    }

    /// The most attempts of a step, and the waits between them.
    fn tries_of(&self, step: &Step) -> (u32, Delays) {
        let options = &self.env.options;
        let retries = step.retries.or_else(|| self.runner.retries(&step.function));
        let first = step.backoff_ms.map(Duration::from_millis);
        let first = first.unwrap_or(options.backoff);
        let backoff = Backoff {
            first,
            // The first wait may be longer than this bound; only later ones are limited.
            longest: options.backoff_max.max(first),
            attempts_max: u32::MAX,
        };
        (1 + retries.unwrap_or(0), backoff.delays())
    }

    /// Errors: `Stopped` if the attempt may have failed for a reason that lies in this process, where
    /// every further attempt would fail, too.
    async fn check_may_retry(&self, run: &Run) -> Result<(), Failure> {
        // The next attempt could not commit either.
        if run.lost.lock().is_some() {
            return Err(Failure::Stopped);
        }
        if !self.env.breaks(Broken::StaysInALostRange) {
            let serves = run.store.still_serves().await;
            if serves.is_err_and(|error| error.ends_execution()) {
                return Err(Failure::Stopped);
            }
        }
        // This process may have become another node, and its requests were refused for that.
        if run.store.own_driver().ok() != Some(run.row.driver) {
            return Err(Failure::Stopped);
        }
        Ok(())
    }

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

    async fn attempt_step(
        &self,
        run: &Run,
        step: &Step,
        open: &AttemptGuard<'_>,
        input: Bytes,
    ) -> Result<Bytes, Failure> {
        let invocation = Invocation {
            timeout: step.timeout_s.map(Duration::from_secs),
            scope: Some(Arc::clone(&open.token)),
            ..Invocation::new(run.request_id(&open.attempt.path), input, true)
        };
        let ran = self.runner.run(&step.function, invocation).await;
        let ran = ran.map_err(|why| Failure::new(&step.function, "Workflow.NotRun", &why))?;
        let most = run.store.bytes_max();
        let failed = |payload: &[u8]| Failure::of_invocation(&step.function, payload, most);
        let output = ran.result.map_err(|error| failed(&error.payload))?;
        if open.attempt.far_calls.was_interrupted() {
            let why = "its far store did not answer";
            return Err(Failure::new(&step.function, "Workflow.FarStoreAway", why));
        }
        let output = as_json(&step.function, output)?;
        run.check_length(&step.function, output.len())?;
        open.attempt.commit(&step.function, output).await
    }

    fn open(&self, run: &Arc<Run>, path: &str, tries: u32) -> AttemptGuard<'_> {
        let attempt = Arc::new(Attempt::new(run, path.to_owned(), tries));
        let token = self.attempts.open(&attempt, None, &*self.env.entropy);
        AttemptGuard {
            attempts: &self.attempts,
            token: token
                .expect("an attempt that is not nested has no enclosing one that could end"),
            attempt,
        }
    }
}
