//! The requests of a step's code. Each carries the token of its attempt.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use transactions::{
    Effect,
    list::{Listing, Page},
};

use super::Service;
use crate::{
    Broken, Error, Result,
    env::Env,
    failure::{Failure, reported},
    graph::plain_step,
    run::Run,
    steps::Attempt,
    storage::{StepResult, StepRow},
};

/// The token of an attempt, which its code sends with each request.
pub type StepToken = Arc<str>;

/// A step that code begins within its own step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepStart {
    /// The step has committed before, with this result.
    Committed(StepResult),
    /// The code is to execute the step.
    Open {
        /// The token for the requests of this step.
        step: StepToken,
        /// The request id of every attempt of the step. Ids that its code derives from it stay the
        /// same across attempts.
        id: String,
    },
}

impl Service {
    pub(super) fn env(&self) -> &Env {
        &self.executor.env
    }

    fn attempt(&self, token: &str) -> Result<Arc<Attempt>> {
        self.executor.attempts.find(token)
    }

    /// The value of a key, as an attempt sees it. Errors: `AttemptEnded`, `Port`, `State`.
    pub fn get<'a>(
        &'a self,
        token: &'a str,
        key: &'a Bytes,
    ) -> BoxFuture<'a, Result<Option<Bytes>>> {
        Box::pin(async move { self.attempt(token)?.get(key).await })
    }

    /// A page of keys, as an attempt sees them. Errors: `AttemptEnded`, `Port`, `State`.
    pub fn list_keys<'a>(
        &'a self,
        token: &'a str,
        listing: &'a Listing,
    ) -> BoxFuture<'a, Result<Page>> {
        Box::pin(async move { self.attempt(token)?.list(listing).await })
    }

    /// Writes a key, visible to the attempt alone until it commits; none: deletes it.
    /// Errors: `AttemptEnded`, `TooLarge`.
    pub fn put<'a>(
        &'a self,
        token: &'a str,
        key: Bytes,
        value: Option<Bytes>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            // We refuse now what no transaction would take later.
            transactions::model::Key::new(key.clone())?;
            let attempt = self.attempt(token)?;
            attempt.put(key, value).await
        })
    }

    /// Sends a message or invocation once the attempt commits. One that could not be sent then is
    /// refused now, while the code can react. Errors: `AttemptEnded`, `TooLarge`, `State`.
    pub fn send<'a>(&'a self, token: &'a str, effect: Effect) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let attempt = self.attempt(token)?;
            self.executor.engine.check_effect(&effect).await?;
            attempt.send(effect)
        })
    }

    /// Commits what the attempt has written so far, and waits until all that the run has done is
    /// durable (W3). If the step is tried again, its writes before this call may take effect more
    /// than once.
    pub fn externalize<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let attempt = self.attempt(token)?;
            attempt.store_failures().await?;
            attempt.externalize().await
        })
    }

    /// Prepares for an effect elsewhere that does not wait for the step, such as a transaction of its
    /// code. With a far store, waits until all that the run has read and written is durable there
    /// (rule P5). The writes of the attempt itself still commit with the step: the next attempt makes
    /// them again.
    ///
    /// Errors: `Invalid` in an atomic run (W5), `AttemptEnded`, `Port`, `State`.
    pub fn settle<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let attempt = self.attempt(token)?;
            if !self.env().breaks(Broken::CountsElsewhereBeforeTheEnd) {
                attempt.check_not_atomic()?;
            }
            attempt.store_failures().await?;
            let run = &attempt.run;
            run.store.check_own(run.address(""))?;
            if run.store.is_far() && !self.env().breaks(Broken::CountsElsewhereBeforeFar) {
                attempt.far_call(run.externalize()).await
            } else {
                Ok(())
            }
        })
    }

    /// Begins the next step within the step of `token`. It commits by itself, under the name that
    /// the code gives it.
    ///
    /// Errors: `Invalid` if the code called another step at this place before.
    pub fn open_step<'a>(
        &'a self,
        token: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<StepStart>> {
        Box::pin(async move {
            let around = self.attempt(token)?;
            around.store_failures().await?;
            let path = around.next_path();
            if let Some(result) = committed(&around.run, &path, name)? {
                return Ok(StepStart::Committed(result));
            }
            let id = around.run.request_id(&path);
            let attempt = Arc::new(Attempt::within(&around, path));
            let (attempts, entropy) = (&self.executor.attempts, &*self.env().entropy);
            let step = attempts.open(&attempt, Some(token), entropy)?;
            Ok(StepStart::Open { step, id })
        })
    }

    /// Commits a step within a step with `output`; returns the result that has committed. That is a
    /// failure if the output cannot be written.
    pub fn finish_step<'a>(
        &'a self,
        token: &'a str,
        name: &'a str,
        output: Bytes,
    ) -> BoxFuture<'a, Result<StepResult>> {
        Box::pin(async move {
            let attempts = &self.executor.attempts;
            let around = attempts.around(token)?;
            // Of two concurrent calls, one takes the attempt.
            let attempt = attempts.take(token).ok_or(Error::AttemptEnded)?;
            let committed = match attempt.run.check_length(name, output.len()) {
                // The code waits for the commit.
                Ok(()) => {
                    let commit = async { Ok(attempt.commit(name, output).await) };
                    around.far_call(commit).await?
                }
                Err(failure) => Err(failure),
            };
            let result = Failure::settled(committed)?;
            if let Err(failure) = &result {
                Self::give_up(&around, &attempt, name, failure).await;
            }
            Ok(result)
        })
    }

    /// Ends a step within a step that has failed, and drops its writes; returns the failure that its
    /// code is told, now and each time it runs again.
    ///
    /// Errors: `AttemptEnded`, also if the far store was away meanwhile: then the whole attempt of
    /// its function is made again (W9).
    pub fn fail_step<'a>(
        &'a self,
        token: &'a str,
        name: &'a str,
        failure: &'a Bytes,
    ) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let attempts = &self.executor.attempts;
            let around = attempts.around(token)?;
            if self.executor.lacked_far(&around) {
                attempts.interrupt(token);
                around.far_calls.interrupt();
                return Err(Error::AttemptEnded);
            }
            let attempt = attempts.close(token).ok_or(Error::AttemptEnded)?;
            // This process may have become another node, and the step's requests were refused for that.
            let run = &attempt.run;
            run.store.check_own(run.address(&attempt.path))?;
            let failure = reported(name, failure);
            Self::give_up(&around, &attempt, name, &failure).await;
            Ok(failure)
        })
    }

    /// Runs a deployed function as a step within a step, with the retries of that function; returns
    /// its output, or its failure in JSON.
    pub fn call_step<'a>(
        &'a self,
        token: &'a str,
        function: &'a str,
        input: Bytes,
    ) -> BoxFuture<'a, Result<StepResult>> {
        Box::pin(async move {
            let around = self.attempt(token)?;
            around.store_failures().await?;
            let (run, path) = (&around.run, around.next_path());
            if let Some(result) = committed(run, &path, function)? {
                return Ok(result);
            }
            let began_ms = self.env().now_ms();
            let step = plain_step(function);
            let executor = &self.executor;
            let called = executor.step(run, &step, path.clone(), input, Some(&around));
            let result = Failure::settled(called.await)?;
            if result.is_err() {
                let row = StepRow {
                    function: step.function,
                    result: result.clone(),
                    attempt: None,
                    tries: 1 + executor.runner.retries(function).unwrap_or(0),
                    began_ms,
                    ended_ms: self.env().now_ms(),
                };
                around.report_failure(path, row).await;
            }
            Ok(result)
        })
    }

    /// The token of a request whose function runs as `owner`: `owner`, or that of the nested step
    /// that the request names. Errors: `AttemptEnded` if that is not nested in `owner`, or is over.
    pub fn token_of(&self, owner: &StepToken, step: Option<&str>) -> Result<StepToken> {
        match step {
            None => Ok(Arc::clone(owner)),
            Some(step) if self.executor.attempts.is_within(owner, step) => Ok(step.into()),
            Some(_) => Err(Error::AttemptEnded),
        }
    }

    /// Closes a failed attempt, and notes that the code of `around` is told of the failure.
    async fn give_up(around: &Attempt, attempt: &Attempt, name: &str, failure: &Bytes) {
        attempt.close();
        let row = attempt.row(name, Err(failure.clone()));
        around.report_failure(attempt.path.clone(), row).await;
    }
}

/// The result of a step that has committed before. Errors: `Invalid` if that was another step.
fn committed(run: &Run, path: &str, name: &str) -> Result<Option<StepResult>> {
    let Some(row) = run.committed(path) else {
        return Ok(None);
    };
    if row.function != name {
        let was = row.function;
        let say = format!(
            "step {path} of this run was {was:?}, and the code calls {name:?} now: \
             a run needs the code it began with"
        );
        return Err(Error::Invalid(say));
    }
    Ok(Some(row.result))
}
