//! What the code of a step asks for, by the token of its attempt.

use std::sync::Arc;

use bytes::Bytes;
use functions::manifest::workflow::Step;
use transactions::Effect;

use crate::{
    Broken, Error, Result, Service,
    records::CameTo,
    run::{Failure, Run},
    step::Attempt,
};

/// What a step's code shows of itself.
pub type StepToken = Arc<str>;

/// A step that code has begun within its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// It counts already: what it came to.
    Counted(CameTo),
    /// It is to be done, and what it asks for shown with this.
    Open {
        /// What its requests show.
        step: StepToken,
        /// What every attempt of it is known by: ids that it makes derive from it, and so are the same whenever it is tried.
        id: String,
    },
}

impl Service {
    /// What counts of a key for an attempt. Errors: `AttemptEnded`, `Port`, `State`.
    pub async fn get(&self, token: &str, key: &Bytes) -> Result<Option<Bytes>> {
        self.inner.attempts.find(token)?.get(key).await
    }

    /// Writes, for the attempt alone until it counts; none: deletes. Errors: `AttemptEnded`, `TooLarge`.
    pub async fn put(&self, token: &str, key: Bytes, value: Option<Bytes>) -> Result<()> {
        // What no transaction would take is refused now.
        transactions::model::Key::new(key.clone())?;
        self.inner
            .attempts
            .find(token)?
            .put(key, value, &self.inner.options)
            .await
    }

    /// Sends, once the attempt counts. What could not be sent then is refused now, where the code that sends hears it.
    ///
    /// Errors: `AttemptEnded`, `TooLarge`, `State`.
    pub async fn send(&self, token: &str, effect: Effect) -> Result<()> {
        let attempt = self.inner.attempts.find(token)?;
        self.inner.parts.transactions.check_effect(&effect).await?;
        attempt.send(effect, &self.inner.options)
    }

    /// Has what the attempt has written so far count, and waits until all that the run has done is durable (W3). From then on its
    /// writes before this may count more than once, if it is tried again.
    pub async fn externalize(&self, token: &str) -> Result<()> {
        let attempt = self.inner.attempts.find(token)?;
        attempt.go_on(&self.inner).await?;
        attempt.externalize(&self.inner.options).await
    }

    /// Before what the attempt asks for counts elsewhere at once, such as a transaction of its own: waits until all that its run has
    /// read and written lies where nothing loses it, if that is a far store (rule P5). What the attempt has written itself still
    /// waits for its record: it is tried again whole.
    ///
    /// Errors: `Invalid` in an atomic run (W5), `AttemptEnded`, `Port`, `State`.
    pub async fn settle(&self, token: &str) -> Result<()> {
        let attempt = self.inner.attempts.find(token)?;
        if !self
            .inner
            .options
            .breaks(Broken::CountsElsewhereBeforeTheEnd)
        {
            attempt.may_let_out()?;
        }
        attempt.go_on(&self.inner).await?;
        attempt.run.store.check_own(attempt.run.place(""))?;
        let is_free = self.inner.options.breaks(Broken::CountsElsewhereBeforeFar);
        if attempt.run.store.is_apart() && !is_free {
            attempt.of_far(attempt.run.externalize()).await
        } else {
            Ok(())
        }
    }

    /// Begins a step within a step, which counts by itself: the next one that the code calls, by the name it gives.
    ///
    /// Errors: `Invalid` if the code called another at this place before.
    pub async fn open_step(&self, token: &str, name: &str) -> Result<Opened> {
        let around = self.inner.attempts.find(token)?;
        around.go_on(&self.inner).await?;
        let path = around.next_path();
        if let Some(came_to) = counted(&around.run, &path, name)? {
            return Ok(Opened::Counted(came_to));
        }
        let id = around.run.request_id(&path);
        let attempt = Arc::new(around.run.attempt_at(&self.inner, path, 1).within(&around));
        let step = self
            .inner
            .attempts
            .open(&attempt, Some(token), &*self.inner.parts.entropy)?;
        Ok(Opened::Open { step, id })
    }

    /// A step within a step has come to `output`; returns what counts, which is a failure where that cannot be written.
    pub async fn finish_step(&self, token: &str, name: &str, output: Bytes) -> Result<CameTo> {
        let around = self.inner.attempts.around(token)?;
        // Of two that say so one has it count.
        let attempt = self.inner.attempts.take(token).ok_or(Error::AttemptEnded)?;
        let counted = match attempt.run.check_length(name, output.len()) {
            // Until it counts its code waits.
            Ok(()) => {
                around
                    .of_far(async {
                        Ok(attempt.run.count(&self.inner, &attempt, name, output).await)
                    })
                    .await?
            }
            Err(failure) => Err(failure),
        };
        match counted {
            Ok(output) => Ok(Ok(output)),
            Err(Failure::Failed(failure)) => {
                Ok(Err(give_up(&around, &attempt, name, failure).await))
            }
            Err(Failure::Stopped) => Err(Error::AttemptEnded),
        }
    }

    /// A step within a step has failed, and nothing that it has written counts; returns what its code is told of it, now and whenever
    /// it is run again. Errors: `AttemptEnded` also if the far store was away meanwhile: then all of its function's attempt is made again (W9).
    pub async fn fail_step(&self, token: &str, name: &str, said: &Bytes) -> Result<Bytes> {
        let around = self.inner.attempts.around(token)?;
        if around.run.lacked_far(&self.inner, &around) {
            self.inner.attempts.interrupt(token);
            around.asked.interrupt();
            return Err(Error::AttemptEnded);
        }
        let attempt = self
            .inner
            .attempts
            .close(token)
            .ok_or(Error::AttemptEnded)?;
        // What it asked for may have been refused since this process is another node by now.
        attempt
            .run
            .store
            .check_own(attempt.run.place(&attempt.path))?;
        match Failure::said(name, said) {
            Failure::Failed(failure) => Ok(give_up(&around, &attempt, name, failure).await),
            Failure::Stopped => Err(Error::AttemptEnded),
        }
    }

    /// Has a deployed function run as a step within a step, tried as often as it says; returns its output, or its failure in JSON.
    pub async fn call_step(&self, token: &str, function: &str, input: Bytes) -> Result<CameTo> {
        let around = self.inner.attempts.find(token)?;
        around.go_on(&self.inner).await?;
        let path = around.next_path();
        if let Some(came_to) = counted(&around.run, &path, function)? {
            return Ok(came_to);
        }
        let began_ms = self.inner.now_ms();
        let step = Step {
            function: function.to_owned(),
            retries: None,
            backoff_ms: None,
            timeout_s: None,
        };
        match around
            .run
            .step(&step, path.clone(), input, Some(&around))
            .await
        {
            Ok(output) => Ok(Ok(output)),
            Err(Failure::Failed(failure)) => {
                let tries = 1 + self.inner.parts.runner.retries(function).unwrap_or(0);
                let row = around
                    .run
                    .failed(function, tries, began_ms, failure.clone());
                around.tell_failure(path, row).await;
                Ok(Err(failure))
            }
            Err(Failure::Stopped) => Err(Error::AttemptEnded),
        }
    }

    /// What a request shows whose function runs as `owner`: that, or the step within it that the request names.
    ///
    /// Errors: `AttemptEnded` if the step is within another, or is over.
    pub fn shown(&self, owner: &StepToken, within: Option<&str>) -> Result<StepToken> {
        match within {
            None => Ok(Arc::clone(owner)),
            Some(step) if self.inner.attempts.is_within(owner, step) => Ok(step.into()),
            Some(_) => Err(Error::AttemptEnded),
        }
    }
}

/// What a step came to that counts. Errors: `Invalid` if it is another step.
fn counted(run: &Run, path: &str, name: &str) -> Result<Option<CameTo>> {
    let Some(row) = run.counted(path) else {
        return Ok(None);
    };
    if row.function != name {
        let say = format!(
            "step {path} of this run was {:?}, and the code calls {name:?} now: a run needs the code it began with",
            row.function
        );
        return Err(Error::Invalid(say));
    }
    Ok(Some(row.came_to))
}

/// Tells the code around of a failure.
async fn give_up(around: &Attempt, attempt: &Attempt, name: &str, failure: Bytes) -> Bytes {
    attempt.close();
    let row = attempt
        .run
        .failed(name, attempt.tries, attempt.began_ms, failure.clone());
    around.tell_failure(attempt.path.clone(), row).await;
    failure
}
