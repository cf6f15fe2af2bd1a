//! What the code of a step asks for, by the token of its attempt.

use std::sync::Arc;

use bytes::Bytes;
use functions::manifest::workflow::Step;
use transactions::Effect;

use crate::{
    Broken, Error, Result, Service,
    run::{Failure, Run},
};

/// What a step's code shows of itself.
pub type StepToken = Arc<str>;

/// A step that code has begun within its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// It counts already: its output.
    Counted(Bytes),
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

    /// Writes, for the attempt alone until it counts; none: deletes.
    pub async fn put(&self, token: &str, key: Bytes, value: Option<Bytes>) -> Result<()> {
        // What no transaction would take is refused now.
        transactions::model::Key::new(key.clone())?;
        self.inner.attempts.find(token)?.put(key, value, &self.inner.options).await
    }

    /// Sends, once the attempt counts.
    pub fn send(&self, token: &str, effect: Effect) -> Result<()> {
        self.inner.attempts.find(token)?.send(effect, &self.inner.options)
    }

    /// Has what the attempt has written so far count, and waits until all that the run has done is durable (W3). From then on its
    /// writes before this may count more than once, if it is tried again.
    pub async fn externalize(&self, token: &str) -> Result<()> {
        self.inner.attempts.find(token)?.externalize(&self.inner.options).await
    }

    /// Before what the attempt asks for counts elsewhere at once, such as a transaction of its own: waits until all that its run has
    /// read and written lies where nothing loses it, if that is a far store (rule P5). What the attempt has written itself still
    /// waits for its record: it is tried again whole.
    pub async fn settle(&self, token: &str) -> Result<()> {
        let attempt = self.inner.attempts.find(token)?;
        let is_free = self.inner.options.breaks(Broken::CountsElsewhereBeforeFar);
        if attempt.run.store.is_apart() && !is_free { attempt.run.externalize().await } else { Ok(()) }
    }

    /// Begins a step within a step, which counts by itself: the next one that the code calls, by the name it gives.
    ///
    /// Errors: `Invalid` if the code called another at this place before.
    pub fn open_step(&self, token: &str, name: &str) -> Result<Opened> {
        let around = self.inner.attempts.find(token)?;
        let path = around.next_path();
        if let Some(counted) = counted(&around.run, &path, name)? {
            return Ok(Opened::Counted(counted));
        }
        let id = around.run.request_id(&path);
        let attempt = around.run.attempt_at(&self.inner, path, 1);
        let step = self.inner.attempts.open(&attempt, Some(token), &*self.inner.parts.entropy)?;
        Ok(Opened::Open { step, id })
    }

    /// A step within a step has come to `output`; returns what counts.
    pub async fn finish_step(&self, token: &str, name: &str, output: Bytes) -> Result<Bytes> {
        let most = self.inner.attempts.find(token)?.run.store.bytes_max();
        if output.len() > most {
            return Err(Error::TooLarge(format!("the result of a step has {most} bytes at most")));
        }
        // Of two that say so one has it count.
        let attempt = self.inner.attempts.take(token).ok_or(Error::AttemptEnded)?;
        let counted = attempt.run.count(&self.inner, &attempt, name, output).await;
        counted.map_err(|failure| said(&failure))
    }

    /// A step within a step has failed: nothing of it counts.
    pub fn fail_step(&self, token: &str) -> Result<()> {
        self.inner.attempts.close(token).map(drop).ok_or(Error::AttemptEnded)
    }

    /// Has a deployed function run as a step within a step, tried as often as it says; returns its output, or its failure in JSON.
    pub async fn call_step(&self, token: &str, function: &str, input: Bytes) -> Result<Result<Bytes, Bytes>> {
        let attempt = self.inner.attempts.find(token)?;
        let path = attempt.next_path();
        if let Some(counted) = counted(&attempt.run, &path, function)? {
            return Ok(Ok(counted));
        }
        let step = Step { function: function.to_owned(), retries: None, backoff_ms: None, timeout_s: None };
        match attempt.run.step(&step, path, input).await {
            Ok(output) => Ok(Ok(output)),
            Err(Failure::Failed(error)) => Ok(Err(error)),
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

/// The output of a step that counts. Errors: `Invalid` if it is another step.
fn counted(run: &Run, path: &str, name: &str) -> Result<Option<Bytes>> {
    let Some(row) = run.counted(path) else { return Ok(None) };
    if row.function != name {
        let say = format!(
            "step {path} of this run was {:?}, and the code calls {name:?} now: a run needs the code it began with",
            row.function
        );
        return Err(Error::Invalid(say));
    }
    Ok(Some(row.output))
}

fn said(failure: &Failure) -> Error {
    match failure {
        Failure::Failed(error) => Error::Invalid(String::from_utf8_lossy(error).into_owned()),
        Failure::Stopped => Error::AttemptEnded,
    }
}
