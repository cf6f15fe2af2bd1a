//! One step: tried until it commits or has used up its retries.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use functions::manifest::workflow::Step;
use ports::runtime::Invocation;
use primitives::{Backoff, Delays};

use super::Executor;
use crate::{
    Broken,
    failure::{Failure, as_json},
    run::Run,
    steps::{Attempt, AttemptGuard},
};

/// How often a step was tried.
#[derive(Debug)]
struct Tries {
    made: u32,
    /// Those that failed because the far store was away (W9).
    excused: u32,
    most: u32,
    delays: Delays,
}

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
        let mut tries = self.tries_of(step);
        loop {
            tries.made += 1;
            // The caller may be code of a run that was cancelled meanwhile.
            if run.is_closed().await {
                return Err(Failure::Stopped);
            }
            let open = self.open(run, &path, tries.made);
            let failure = match self.attempt_step(run, step, &open, input.clone()).await {
                Ok(output) => return Ok(output),
                Err(Failure::Stopped) => return Err(Failure::Stopped),
                Err(failure) => failure,
            };
            let lacked_far = self.lacked_far(&open.attempt);
            drop(open);
            self.check_may_retry(run).await?;
            if lacked_far {
                tries.excused += 1;
                if let Some(around) = around {
                    around.far_calls.fail();
                }
                self.wait_for_far(run).await?;
            } else if tries.made - tries.excused >= tries.most {
                return Err(failure);
            }
            self.wait_to_retry(&mut tries.delays).await;
        }
    }

    fn tries_of(&self, step: &Step) -> Tries {
        let options = &self.env.options;
        let retries = step
            .retries
            .or_else(|| self.runner.retries(&step.function))
            .unwrap_or(0);
        let first = step
            .backoff_ms
            .map_or(options.backoff, Duration::from_millis);
        let backoff = Backoff {
            first,
            // The first wait may be longer than this bound; only later ones are limited.
            longest: options.backoff_max.max(first),
            attempts_max: u32::MAX,
        };
        Tries {
            made: 0,
            excused: 0,
            most: 1 + retries,
            delays: backoff.delays(),
        }
    }

    /// Waits at least the backoff of the step, and up to a quarter longer.
    async fn wait_to_retry(&self, delays: &mut Delays) {
        let longest = self.env.options.backoff_max;
        let wait = delays.next_wait(&*self.env.entropy).unwrap_or(longest);
        self.env.clock.sleep(wait).await;
    }

    /// Errors: `Stopped` if the attempt may have failed for a reason that lies in this process, where
    /// every further attempt would fail, too.
    async fn check_may_retry(&self, run: &Run) -> Result<(), Failure> {
        // The next attempt could not commit either.
        if run.is_lost() {
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
        let output = ran
            .result
            .map_err(|error| Failure::of_invocation(&step.function, &error.payload, most))?;
        if open.attempt.far_calls.was_interrupted() {
            return Err(Failure::new(
                &step.function,
                "Workflow.FarStoreAway",
                "its far store did not answer",
            ));
        }
        let output = as_json(&step.function, output)?;
        run.check_length(&step.function, output.len())?;
        open.attempt.commit(&self.env, &step.function, output).await
    }

    fn open(&self, run: &Arc<Run>, path: &str, tries: u32) -> AttemptGuard<'_> {
        let attempt = Arc::new(Attempt::new(run, &self.env, path.to_owned(), tries));
        let token = self.attempts.open(&attempt, None, &*self.env.entropy);
        AttemptGuard {
            attempts: &self.attempts,
            token: token
                .expect("an attempt that is not nested has no enclosing one that could end"),
            attempt,
            stays: self.env.breaks(Broken::HearsWhoHasEnded),
        }
    }
}
