//! One attempt of one step.
//!
//! Invariants
//! - A failure that code was told of is stored before that code continues to anything that commits
//!   by itself, and not earlier. So code that runs again without having continued has the failed
//!   step retried.
//! - Published writes leave the overlay once their commit is known, and not earlier. Until then the
//!   attempt reads them there, and the step does not commit.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use transactions::{
    Effect,
    list::{Listing, Page},
};

use super::{far_calls::FarCalls, listing::overlaid};
use crate::{
    Broken, Error, Result,
    failure::Failure,
    run::{Overlay, Run, Written},
    storage::{State, StepResult, StepRow, VALUE},
};

#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) run: Arc<Run>,
    /// The path of the step in its workflow.
    pub(crate) path: String,
    pub(crate) overlay: Arc<Overlay>,
    pub(crate) began_ms: u64,
    /// How often the step was tried, this attempt included.
    pub(crate) tries: u32,
    /// How many steps its code has called.
    calls: AtomicU64,
    /// Its requests to the far store, shared by all steps of its function.
    pub(crate) far_calls: Arc<FarCalls>,
    /// Failed steps that its code was told of and that are not stored yet, with their paths.
    failures: tokio::sync::Mutex<VecDeque<(String, StepRow)>>,
    /// Held while it publishes.
    publishing: tokio::sync::Mutex<()>,
}

impl Attempt {
    /// An attempt that is not registered yet.
    pub(crate) fn new(run: &Arc<Run>, path: String, tries: u32) -> Self {
        let number = run.env.entropy.next_u64();
        Self {
            run: Arc::clone(run),
            path,
            overlay: Overlay::of_attempt(run.overlay_of_atomic(), number),
            began_ms: run.env.now_ms(),
            tries,
            calls: AtomicU64::default(),
            far_calls: Arc::default(),
            failures: tokio::sync::Mutex::default(),
            publishing: tokio::sync::Mutex::default(),
        }
    }

    /// An attempt of a step that the code of `around` executes itself.
    pub(crate) fn within(around: &Self, path: String) -> Self {
        let far_calls = Arc::clone(&around.far_calls);
        Self {
            far_calls,
            ..Self::new(&around.run, path, 1)
        }
    }

    /// The path of the next step that its code calls.
    pub(crate) fn next_path(&self) -> String {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        format!("{}/{number}", self.path)
    }

    /// Commits the attempt, which has succeeded with `output`.
    pub(crate) async fn commit(&self, function: &str, output: Bytes) -> Result<Bytes, Failure> {
        // Nothing is published meanwhile.
        let publishing = self.publishing.lock().await;
        let changes = self.overlay.close();
        drop(publishing);
        let run = &self.run;
        let step = (self.path.as_str(), self.row(function, Ok(output)));
        if run.call_of_atomic().is_some() && !run.env.breaks(Broken::CountsByParts) {
            return run.commit_in_atomic(step, (&self.overlay, changes));
        }
        run.commit(step, changes).await
    }

    /// The row of its step, which ends now with `result`.
    pub(crate) fn row(&self, function: &str, result: StepResult) -> StepRow {
        StepRow {
            function: function.to_owned(),
            result,
            attempt: None,
            tries: self.tries,
            began_ms: self.began_ms,
            ended_ms: self.run.env.now_ms(),
        }
    }

    /// Makes a request for its code, and records it if the store is far (W9).
    pub(crate) async fn far_call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        if self.run.store.is_far() {
            self.far_calls.call(call).await
        } else {
            call.await
        }
    }

    /// Notes that its code is told of a step's failure.
    pub(crate) async fn report_failure(&self, path: String, row: StepRow) {
        self.failures.lock().await.push_back((path, row));
    }

    /// Stores the failures that its code was told of, as the code continues to something that
    /// commits by itself. When the code runs again it is told of the same failures (W2).
    pub(crate) async fn store_failures(&self) -> Result<()> {
        let mut failures = self.failures.lock().await;
        while let Some((path, row)) = failures.front() {
            if !self.run.env.breaks(Broken::ForgetsFailures) {
                let stored = self.run.commit_failure(&self.overlay, (path, row));
                self.far_call(stored).await?;
            }
            failures.pop_front();
        }
        Ok(())
    }

    pub(crate) async fn get(&self, key: &Bytes) -> Result<Option<Bytes>> {
        match self.overlay.get(key)? {
            Written::Value(value) => Ok(Some(value)),
            Written::Deleted => Ok(None),
            Written::Nothing => self.far_call(Box::pin(self.run.get(key))).await,
        }
    }

    pub(crate) async fn list(&self, listing: &Listing) -> Result<Page> {
        // We read the overlay first, so that an attempt that has ended is refused at once. Writes
        // that the attempt makes meanwhile may be missing.
        let written = self.overlay.written(&listing.prefix)?;
        let page = self.far_call(self.run.list(listing)).await?;
        let position = |key: &_| self.run.store.position_of(key);
        Ok(overlaid(page, written, listing, position))
    }

    pub(crate) async fn put(self: &Arc<Self>, key: Bytes, value: Option<Bytes>) -> Result<()> {
        self.check_write(key.len(), value.as_ref().map_or(0, Bytes::len))?;
        self.overlay.put(key, value, &self.run.env.options)?;
        if self.run.env.breaks(Broken::WritesThrough) {
            self.externalize().await?;
        }
        Ok(())
    }

    /// Errors: `TooLarge` for a write that the far store would refuse when the step commits.
    fn check_write(&self, key_bytes: usize, value_bytes: usize) -> Result<()> {
        let store = &self.run.store;
        if !store.is_far() {
            return Ok(());
        }
        let limits = store.rows.limits();
        let value_max = limits.item_bytes_max.saturating_sub(VALUE.len());
        store.check_key(key_bytes)?;
        if value_bytes > value_max {
            return Err(Error::too_long("value", value_bytes, value_max));
        }
        Ok(())
    }

    pub(crate) fn send(&self, effect: Effect) -> Result<()> {
        // Near, one transaction has to take all effects: the step's, or the atomic run's. In a shard
        // the outbox splits them into rows.
        let sends_max = match &self.run.store.state {
            State::Transactions(engine) => engine.effects_max(),
            State::Shard(_) => usize::MAX,
        };
        self.overlay.send(effect, sends_max, &self.run.env.options)
    }

    /// Errors: `Invalid` in an atomic run. It could not take back anything that is visible outside
    /// before its end (W5).
    pub(crate) fn check_not_atomic(&self) -> Result<()> {
        if !self.run.workflow.atomic {
            return Ok(());
        }
        let why = "an atomic run lets nothing out before its end: make the workflow not atomic, \
                   or do this after it";
        Err(Error::Invalid(why.to_owned()))
    }

    /// Commits what was written so far, and waits until all that the run has done is durable.
    pub(crate) async fn externalize(self: &Arc<Self>) -> Result<()> {
        self.check_not_atomic()?;
        let attempt = Arc::clone(self);
        let published = async {
            // The caller may give up, and we must still learn whether the commit succeeded.
            let published = tokio::spawn(async move { attempt.publish().await }).await;
            let died = |_| Err(ports::Error::unavailable("publish what a step wrote").into());
            published.unwrap_or_else(died)?;
            self.run.externalize().await
        };
        self.far_call(published).await
    }

    /// On an error the writes stay in the overlay, to be published again or to commit with the step.
    async fn publish(&self) -> Result<()> {
        let _one_at_a_time = self.publishing.lock().await;
        let changes = self.overlay.peek()?;
        if self.run.env.breaks(Broken::CountsWithoutWhatIsMissing) {
            self.overlay.forget(&changes);
        }
        self.run.publish(&self.path, &changes).await?;
        self.overlay.forget(&changes);
        Ok(())
    }

    /// Closes the attempt for its code, and drops its writes.
    pub(crate) fn close(&self) {
        self.overlay.close();
    }
}
