//! One active run: its committed steps, and the latest state that it has seen.
//!
//! A run commits one step at a time per path. An atomic run is one transaction: its steps commit in
//! an overlay, and the transaction commits when the last step has ended (W5).
//!
//! Invariants
//! - Once [`Run::close`] has returned, no step of the run commits.
//! - `point` covers all that the run has read and written.

mod overlay;
mod pauses;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use functions::manifest::workflow::Workflow;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;
use ports::DurabilityPoint;
use tokio::sync::{RwLock, watch};
use transactions::{
    list::{Listed, Listing, Page},
    model::Call,
};

use crate::{
    Error, Result,
    env::{Env, RETRY},
    failure::Failure,
    model::{RunKey, StepAddress},
    placement::StoreLocation,
    storage::{Changes, Given, RunRow, StepResult, StepRow, Store, layout, listed},
};

pub(crate) use overlay::{Overlay, Written};

use pauses::Pauses;

/// Keys of a page that the transaction of an atomic run reads at a time.
const READS_AT_ONCE: usize = 16;

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) env: Arc<Env>,
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) workflow: Arc<Workflow>,
    pub(crate) input: Bytes,
    pub(crate) row: RunRow,
    pub(crate) location: StoreLocation,
    pub(crate) store: Store,
    /// Committed steps, by path.
    journal: Mutex<BTreeMap<String, StepRow>>,
    point: Mutex<DurabilityPoint>,
    /// Of an atomic run: the overlay of its steps, and the transaction that it reads in.
    atomic: Mutex<Option<(Arc<Overlay>, Call)>>,
    /// Why that transaction is lost, once a step has learned it.
    pub(crate) lost: Mutex<Option<Lost>>,
    pub(crate) ended: watch::Sender<bool>,
    pub(crate) pauses: Pauses,
    /// Whether no step may commit any more. Each commit under way holds a read lock.
    is_closed: Arc<RwLock<bool>>,
}

/// Why an attempt of an atomic run failed as a whole: all its steps are repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Another transaction has written what the run has read.
    Conflict,
    /// The transaction has ended for another reason.
    Ended(String),
}

impl Lost {
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::State(transactions::Error::Conflict) => Self::Conflict,
            error => Self::Ended(error.to_string()),
        }
    }
}

impl Run {
    pub(crate) fn new(
        env: &Arc<Env>,
        (name, id): RunKey,
        (row, given): (RunRow, Given),
        (location, store): (StoreLocation, Store),
        (journal, point): (BTreeMap<String, StepRow>, DurabilityPoint),
    ) -> Arc<Self> {
        Arc::new(Self {
            env: Arc::clone(env),
            name,
            id,
            workflow: Arc::new(given.workflow),
            input: given.input,
            row,
            location,
            store,
            journal: Mutex::new(journal),
            point: Mutex::new(point),
            atomic: Mutex::default(),
            lost: Mutex::default(),
            ended: watch::Sender::new(false),
            pauses: Pauses::default(),
            is_closed: Arc::default(),
        })
    }

    /// Makes a call until it succeeds or fails with an error that a retry cannot help.
    pub(crate) async fn retry<T, F: Future<Output = Result<T>>>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<T> {
        let mut delays = RETRY.delays();
        loop {
            match call().await {
                Err(error) if error.is_transient() => {
                    let (workflow, run) = (&self.name, &self.id);
                    tracing::debug!(%workflow, %run, %error, "a call for a run is retried");
                    self.env.pause(&mut delays).await;
                }
                answer => return answer,
            }
        }
    }

    pub(crate) fn address<'a>(&'a self, path: &'a str) -> StepAddress<'a> {
        StepAddress {
            workflow: &self.name,
            run: &self.id,
            began_ms: self.row.began_ms,
            driver: self.row.driver,
            path,
        }
    }

    /// The request id that every attempt of the step at `path` shows its function.
    pub(crate) fn request_id(&self, path: &str) -> String {
        layout::request_id(self.address(path))
    }

    /// Errors: the result of `step` is longer than a row may hold.
    pub(crate) fn check_length(&self, step: &str, bytes: usize) -> Result<(), Failure> {
        let most = self.store.bytes_max();
        if bytes <= most {
            return Ok(());
        }
        Err(Failure::too_large(step, &format!("{bytes} bytes"), most))
    }

    pub(crate) fn committed(&self, path: &str) -> Option<StepRow> {
        self.journal.lock().get(path).cloned()
    }

    pub(crate) fn committed_paths(&self) -> Vec<String> {
        self.journal.lock().keys().cloned().collect()
    }

    pub(crate) async fn commit(
        self: &Arc<Self>,
        (path, row): (&str, StepRow),
        changes: Changes,
    ) -> Result<Bytes, Failure> {
        let function = row.function.clone();
        match self.commit_row((path, row), changes).await {
            Ok(result) => result.map_err(Failure::Failed),
            // Another process executes the run now, or a store has restarted.
            Err(error) if error.ends_execution() => Err(Failure::Stopped),
            Err(error) => Err(Failure::of(&function, "Workflow.NotWritten", &error)),
        }
    }

    /// Commits the row of a step; returns the result that has committed at its path.
    async fn commit_row(
        self: &Arc<Self>,
        (path, row): (&str, StepRow),
        changes: Changes,
    ) -> Result<StepResult> {
        let step = Arc::new((path.to_owned(), row.clone(), changes));
        let (result, point) = self.retry(|| self.commit_detached(&step)).await?;
        self.saw(point);
        let row = StepRow {
            result: result.clone(),
            ..row
        };
        self.journal.lock().insert(path.to_owned(), row);
        Ok(result)
    }

    /// Commits a step of an atomic run: its changes go to the overlay of the run. `overlay` is that
    /// of the attempt. Errors: `Stopped` if the run has begun another transaction since.
    pub(crate) fn commit_in_atomic(
        &self,
        (path, row): (&str, StepRow),
        (overlay, changes): (&Overlay, Changes),
    ) -> Result<Bytes, Failure> {
        // We hold the lock until the step is in the journal, which belongs to the transaction.
        let atomic = self.atomic.lock();
        let of_run = atomic.as_ref().map(|(of_run, _)| of_run);
        let of_run = of_run.filter(|of_run| overlay.is_over(of_run));
        let of_run = of_run.ok_or(Failure::Stopped)?;
        // A step that finishes twice commits once.
        if let Some(committed) = self.committed(path) {
            return committed.result.map_err(Failure::Failed);
        }
        let merged = of_run.merge(changes, &self.env.options);
        merged.map_err(|error| Failure::of(&row.function, "Workflow.TooLarge", &error))?;
        let result = row.result.clone();
        self.journal.lock().insert(path.to_owned(), row);
        result.map_err(Failure::Failed)
    }

    /// Commits that the step at `path` has failed, before the code that called it continues (W2).
    /// `around` is the overlay of the calling attempt.
    ///
    /// Errors: `AttemptEnded` if another result has committed there, or an atomic run has begun
    /// another transaction since.
    pub(crate) async fn commit_failure(
        self: &Arc<Self>,
        around: &Overlay,
        (path, row): (&str, &StepRow),
    ) -> Result<()> {
        if let Some((overlay, _)) = &*self.atomic.lock() {
            if !around.is_over(overlay) {
                return Err(Error::AttemptEnded);
            }
            self.journal.lock().insert(path.to_owned(), row.clone());
            return Ok(());
        }
        let step = (path, row.clone());
        let result = self.commit_row(step, Changes::default()).await?;
        if result != row.result {
            return Err(Error::AttemptEnded);
        }
        Ok(())
    }

    /// Commits in a task of its own, so that a caller that gives up leaves no half of it.
    /// [`close`](Self::close) waits for the task.
    async fn commit_detached(
        self: &Arc<Self>,
        step: &Arc<(String, StepRow, Changes)>,
    ) -> Result<(StepResult, DurabilityPoint)> {
        let (run, step) = (Arc::clone(self), Arc::clone(step));
        let is_closed = Arc::clone(&self.is_closed).read_owned().await;
        if *is_closed {
            return Err(Error::AttemptEnded);
        }
        let task = tokio::spawn(async move {
            let (path, row, changes) = &*step;
            let result = run.store.commit_step(run.address(path), row, changes).await;
            drop(is_closed);
            result
        });
        task.await
            .unwrap_or_else(|_| Err(ports::Error::unavailable("commit a step").into()))
    }

    /// Commits what the step at `path` has written so far, by itself.
    pub(crate) async fn publish(&self, path: &str, changes: &Changes) -> Result<()> {
        let is_closed = self.is_closed.read().await;
        if *is_closed {
            return Err(Error::AttemptEnded);
        }
        let address = self.address(path);
        let point = self.store.publish(address, changes.clone()).await?;
        self.saw(point);
        Ok(())
    }

    /// Waits for the commits under way; after that none begins.
    pub(crate) async fn close(&self) {
        *self.is_closed.write().await = true;
    }

    pub(crate) async fn is_closed(&self) -> bool {
        *self.is_closed.read().await
    }

    /// Starts an atomic run over, in the transaction of `call`; returns the overlay of its steps.
    pub(crate) fn start_over(&self, call: &Call) -> Arc<Overlay> {
        let overlay = Overlay::over(None);
        let mut atomic = self.atomic.lock();
        self.journal.lock().clear();
        *self.lost.lock() = None;
        *atomic = Some((Arc::clone(&overlay), call.clone()));
        overlay
    }

    pub(crate) fn overlay_of_atomic(&self) -> Option<Arc<Overlay>> {
        let atomic = self.atomic.lock();
        atomic.as_ref().map(|(overlay, _)| Arc::clone(overlay))
    }

    pub(crate) fn call_of_atomic(&self) -> Option<Call> {
        self.atomic.lock().as_ref().map(|(_, call)| call.clone())
    }

    /// The latest committed value of `key`; in an atomic run, the value that its transaction reads.
    pub(crate) async fn get(&self, key: &Bytes) -> Result<Option<Bytes>> {
        if let Some(call) = self.call_of_atomic() {
            return self.get_in(&call, key).await;
        }
        let (value, point) = self.store.get(key).await?;
        self.saw(point);
        Ok(value)
    }

    async fn get_in(&self, call: &Call, key: &Bytes) -> Result<Option<Bytes>> {
        let read = self.store.get_in(call, key).await;
        let (value, point) = read.inspect_err(|error| {
            // An error of an earlier transaction says nothing about the present one.
            if !error.is_transient()
                && !error.is_permanent()
                && self.call_of_atomic().as_ref() == Some(call)
            {
                *self.lost.lock() = Some(Lost::of(error));
            }
        })?;
        self.saw(point);
        Ok(value)
    }

    /// A page of the committed keys; in an atomic run, with the values that its transaction reads.
    pub(crate) async fn list(&self, listing: &Listing) -> Result<Page> {
        let (mut page, point) = self.store.list_keys(listing).await?;
        self.saw(point);
        if let Some(call) = self.call_of_atomic() {
            page.keys = self.read_all_in(&call, page.keys).await?;
        }
        Ok(page)
    }

    async fn read_all_in(&self, call: &Call, keys: Vec<Listed>) -> Result<Vec<Listed>> {
        let read = |Listed { key, .. }| async move {
            let value = self.get_in(call, key.name()).await?;
            Ok(value.map(|value| listed(key, value)))
        };
        let read = stream::iter(keys.into_iter().map(read)).buffered(READS_AT_ONCE);
        read.try_filter_map(|listed| async { Ok(listed) })
            .try_collect()
            .await
    }

    /// Waits until all that the run has read and written is durable.
    pub(crate) async fn externalize(&self) -> Result<()> {
        let point = *self.point.lock();
        self.store.externalize(point).await
    }

    pub(crate) fn saw(&self, point: DurabilityPoint) {
        let mut seen = self.point.lock();
        *seen = point.max(*seen);
    }
}

#[cfg(test)]
mod tests;
