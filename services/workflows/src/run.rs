//! One run under way: its steps, tried until they count, and its end.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use functions::{
    beginning,
    manifest::workflow::{Step, Workflow},
};
use parking_lot::Mutex;
use ports::{DurabilityPoint, runtime::Invocation};
use primitives::Delays;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{RwLock, watch};
use transactions::model::Call;

use crate::{
    Broken, Error, Result,
    active::Key,
    atomic::Lost,
    graph,
    homes::Home,
    layout,
    overlay::{Changes, Overlay},
    records::{CameTo, Given, RunRow, Status, StepRow},
    service::Inner,
    step::{Attempt, Open},
    store::{Place, Store},
};

/// How often the steps of a long run are confirmed that have come to count.
const CONFIRM_EVERY: Duration = Duration::from_mins(1);

/// The longest that is kept of how a step or a run failed; of what is longer, its type and the beginning of its message.
pub(crate) const FAILURE_BYTES_MAX: usize = 32 << 10;
/// The longest type that is kept then.
const TYPE_BYTES_MAX: usize = 256;
/// What of that is left for the message: in JSON a byte may become six.
const MESSAGE_BYTES_MAX: usize = FAILURE_BYTES_MAX / 8;

/// What a function failed with that does not say so itself.
const FUNCTION_FAILED: &str = "Function.Failed";

/// A run under way.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) service: Weak<Inner>,
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) workflow: Arc<Workflow>,
    input: Bytes,
    pub(crate) row: RunRow,
    pub(crate) home: Home,
    pub(crate) store: Store,
    /// Steps that count.
    journal: Mutex<BTreeMap<String, StepRow>>,
    /// All that it has read and written lies at or before this.
    point: Mutex<DurabilityPoint>,
    /// Of an atomic one: what its steps have written, and the transaction that it reads in.
    atomic: Mutex<Option<(Arc<Overlay>, Call)>>,
    /// Why that transaction is lost, once a step has heard of it.
    pub(crate) lost: Mutex<Option<Lost>>,
    pub(crate) ended: watch::Sender<bool>,
    /// Shared by what is coming to count: who ends the run waits for that, and then nothing more may.
    counting: Arc<RwLock<Counting>>,
}

/// Whether steps may come to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Counting {
    #[default]
    Open,
    Over,
}

/// Why a run ends without an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It failed: an object in JSON.
    Failed(Bytes),
    /// It goes on elsewhere, later, or anew; nothing is said of it.
    Stopped,
}

impl Failure {
    /// What `step` failed with.
    pub(crate) fn new(step: &str, kind: &str, message: &str) -> Self {
        let message = beginning(message, MESSAGE_BYTES_MAX);
        let error = serde_json::json!({ "step": step, "errorType": kind, "errorMessage": message });
        Self::Failed(Bytes::from(error.to_string()))
    }

    /// The same in the function's own words.
    pub(crate) fn said(step: &str, payload: &[u8]) -> Self {
        let Ok(serde_json::Value::Object(mut said)) = serde_json::from_slice(payload) else {
            return Self::new(step, FUNCTION_FAILED, &String::from_utf8_lossy(payload));
        };
        said.insert("step".to_owned(), step.into());
        let said = serde_json::Value::Object(said);
        let whole = said.to_string();
        if whole.len() <= FAILURE_BYTES_MAX {
            return Self::Failed(Bytes::from(whole));
        }
        let kind = said["errorType"].as_str().unwrap_or(FUNCTION_FAILED);
        let kind = &kind[..kind.floor_char_boundary(TYPE_BYTES_MAX)];
        match said["errorMessage"].as_str() {
            Some(message) => Self::new(step, kind, message),
            None => Self::new(step, kind, &String::from_utf8_lossy(payload)),
        }
    }
}

/// The result of `step` has so many `bytes`, in words.
fn too_large(step: &str, bytes: &str, most: usize) -> Failure {
    let said = format!("a result has {bytes}, and {most} are the most here");
    Failure::new(step, "Workflow.ResultTooLarge", &said)
}

/// What a function said of its failure. Of an answer that is too long for any caller it has said so with that limit, and a result of a
/// step has another: `most` bytes.
fn failed(step: &str, payload: &[u8], most: usize) -> Failure {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Said<'a> {
        error_type: &'a str,
    }
    match serde_json::from_slice(payload) {
        Ok(Said {
            error_type: "Function.ResponseSizeTooLarge",
        }) => too_large(step, "more bytes than a function may answer with", most),
        _ => Failure::said(step, payload),
    }
}

/// What `step` has answered, as what comes after it is given it: nothing means null. Errors: it is no JSON.
fn as_json(step: &str, answered: Bytes) -> Result<Bytes, Failure> {
    if answered.is_empty() {
        return Ok(Bytes::from_static(b"null"));
    }
    match serde_json::from_slice::<&RawValue>(&answered) {
        Ok(_) => Ok(answered),
        Err(error) => {
            let said = format!(
                "a result is JSON, which has no NaN and no infinity; this one is not: {error}"
            );
            Err(Failure::new(step, "Workflow.ResultNoJson", &said))
        }
    }
}

impl Run {
    pub(crate) fn new(
        service: &Arc<Inner>,
        (name, id): Key,
        (row, given): (RunRow, Given),
        (home, store): (Home, Store),
        (journal, point): (BTreeMap<String, StepRow>, DurabilityPoint),
    ) -> Arc<Self> {
        Arc::new(Self {
            service: Arc::downgrade(service),
            name,
            id,
            workflow: Arc::new(given.workflow),
            input: given.input,
            row,
            home,
            store,
            journal: Mutex::new(journal),
            point: Mutex::new(point),
            atomic: Mutex::default(),
            lost: Mutex::default(),
            ended: watch::Sender::new(false),
            counting: Arc::default(),
        })
    }

    /// Runs to the end, and says at rest what it came to. False: it is to be taken up again from what is at rest.
    pub(crate) async fn work(self: &Arc<Self>, service: &Arc<Inner>) -> bool {
        let clock = Arc::clone(&service.parts.clock);
        let left = self
            .workflow
            .timeout()
            .saturating_sub(Duration::from_millis(
                service.now_ms().saturating_sub(self.row.began_ms),
            ));
        let came_to = tokio::select! {
            biased;
            came_to = self.attempts(service) => came_to,
            () = clock.sleep(left) => {
                let said = format!("the run took longer than {} s", self.workflow.timeout_s);
                Err(Failure::new("", "Workflow.TimedOut", &said))
            }
            never = self.confirm_steps(service) => match never {},
        };
        let came_to = match came_to {
            Err(Failure::Failed(failure)) if self.workflow.atomic => {
                self.unless_it_committed(service, failure).await
            }
            came_to => came_to,
        };
        let (status, output, error) = match came_to {
            Ok(output) => (Status::Succeeded, Some(output), None),
            Err(Failure::Failed(error)) => (Status::Failed, None, Some(error)),
            Err(Failure::Stopped) => return false,
        };
        // A branch that was dropped beside another that failed may be coming to count.
        self.settled().await;
        let row = RunRow {
            status,
            output,
            error,
            ended_ms: Some(service.now_ms()),
            ..self.row.clone()
        };
        let ended = self
            .until_it_passes(service, || self.store.end_run(&self.name, &self.id, &row))
            .await;
        let ended = match ended {
            Err(error) if error.is_refusal() => {
                self.fail(service, &error).await.map(|()| Status::Failed)
            }
            ended => ended.map(|_| row.status),
        };
        match ended {
            Ok(status) => {
                service.tally.ended(status);
                true
            }
            Err(Error::RunEnded) => true,
            Err(error) => {
                tracing::warn!(workflow = %self.name, run = %self.id, %error, "the end of a run was not written");
                false
            }
        }
    }

    /// The store has refused for good what the run has written: it has failed, which in a range is said where nothing of that was read.
    async fn fail(&self, service: &Inner, why: &Error) -> Result<()> {
        let row = self.row.refused(why, service.now_ms());
        let ended = self.until_it_passes(service, || async {
            service
                .homes
                .store(&self.home)
                .await?
                .end_run(&self.name, &self.id, &row)
                .await
        });
        match ended.await {
            // Its own row was refused, too.
            Err(error) if error.is_refusal() && self.store.is_apart() => {
                let note = || async {
                    service
                        .homes
                        .store(&self.home)
                        .await?
                        .note_refused(&self.name, &self.id, &row)
                        .await
                };
                self.until_it_passes(service, note).await
            }
            ended => ended.map(drop),
        }
    }

    /// Makes a call until it is answered for good.
    pub(crate) async fn until_it_passes<T, F: Future<Output = Result<T>>>(
        &self,
        service: &Inner,
        mut call: impl FnMut() -> F,
    ) -> Result<T> {
        let mut delays: Option<Delays> = None;
        loop {
            match call().await {
                Err(error) if error.passes() => {
                    tracing::debug!(workflow = %self.name, run = %self.id, %error, "it is tried again");
                    service.pause(&mut delays).await;
                }
                answer => return answer,
            }
        }
    }

    /// Near, that a step counts is first said by the name of its transaction, which is remembered as long as not too many others are:
    /// in a run that takes long its row says so before that.
    async fn confirm_steps(&self, service: &Inner) -> Infallible {
        let mut confirmed = BTreeSet::new();
        loop {
            service.parts.clock.sleep(CONFIRM_EVERY).await;
            let is_free = service.options.breaks(Broken::ConfirmsNoStep);
            if self.workflow.atomic || self.store.is_apart() || is_free {
                continue;
            }
            let counted: Vec<String> = self.journal.lock().keys().cloned().collect();
            for path in counted {
                if confirmed.contains(&path) {
                    continue;
                }
                match self.store.confirm_step(self.place(&path)).await {
                    Ok(()) => drop(confirmed.insert(path)),
                    Err(error) => tracing::debug!(run = %self.id, %error, "it is confirmed later"),
                }
            }
        }
    }

    pub(crate) fn place<'a>(&'a self, path: &'a str) -> Place<'a> {
        let RunRow {
            began_ms, driver, ..
        } = self.row;
        Place {
            workflow: &self.name,
            run: &self.id,
            began_ms,
            driver,
            path,
        }
    }

    pub(crate) async fn go(self: &Arc<Self>) -> Result<Bytes, Failure> {
        match &self.workflow.function {
            Some(function) => {
                let step = Step {
                    function: function.clone(),
                    retries: None,
                    backoff_ms: None,
                    timeout_s: None,
                };
                self.step(&step, "0".to_owned(), self.input.clone(), None)
                    .await
            }
            None => {
                graph::sequence(
                    self,
                    &self.workflow.steps,
                    String::new(),
                    self.input.clone(),
                )
                .await
            }
        }
    }

    /// Has a step count, however often it has to be tried; `around` is the attempt whose code waits for it.
    pub(crate) async fn step(
        self: &Arc<Self>,
        step: &Step,
        path: String,
        input: Bytes,
        around: Option<&Attempt>,
    ) -> Result<Bytes, Failure> {
        if let Some(row) = self.journal.lock().get(&path) {
            return row.came_to.clone().map_err(Failure::Failed);
        }
        let service = self.service.upgrade().ok_or(Failure::Stopped)?;
        let runner = &service.parts.runner;
        let tries_max = 1 + step
            .retries
            .or_else(|| runner.retries(&step.function))
            .unwrap_or(0);
        let mut backoff = step
            .backoff_ms
            .map_or(service.options.backoff, Duration::from_millis);
        let (mut tries, mut uncounted) = (0, 0);
        loop {
            tries += 1;
            // It may be code of a run that was cancelled meanwhile which has this one called.
            if *self.counting.read().await == Counting::Over {
                return Err(Failure::Stopped);
            }
            let open = self.open(&service, &path, tries);
            let failure = match self.attempt(&service, step, &open, input.clone()).await {
                Ok(output) => return Ok(output),
                Err(Failure::Stopped) => return Err(Failure::Stopped),
                Err(failure) => failure,
            };
            let lacked_far = self.lacked_far(&service, &open.attempt);
            drop(open);
            // Of what it may have failed, and what it has written would not count.
            if self.lost.lock().is_some() {
                return Err(Failure::Stopped);
            }
            // It may have failed for that alone, and would for as long as it is tried here.
            let stays = service.options.breaks(Broken::StaysInALostRange);
            if !stays
                && self
                    .store
                    .still_serves()
                    .await
                    .is_err_and(|error| error.means_anew())
            {
                return Err(Failure::Stopped);
            }
            // What it asked for may have been refused since this process is another node by now.
            if self.store.own_driver().ok() != Some(self.row.driver) {
                return Err(Failure::Stopped);
            }
            if lacked_far {
                uncounted += 1;
                if let Some(around) = around {
                    around.asked.lacked();
                }
                self.far_is_back(&service).await?;
            } else if tries - uncounted >= tries_max {
                return Err(failure);
            }
            let jitter = service
                .parts
                .entropy
                .below(1 + backoff.as_millis() as u64 / 4);
            service
                .parts
                .clock
                .sleep(backoff + Duration::from_millis(jitter))
                .await;
            backoff = (2 * backoff).min(service.options.backoff_max);
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        service: &Arc<Inner>,
        step: &Step,
        open: &Open<'_>,
        input: Bytes,
    ) -> Result<Bytes, Failure> {
        let invocation = Invocation {
            timeout: step.timeout_s.map(Duration::from_secs),
            scope: Some(Arc::clone(&open.token)),
            ..Invocation::new(self.request_id(&open.attempt.path), input, true)
        };
        let ran = service.parts.runner.run(&step.function, invocation).await;
        let ran = ran.map_err(|said| Failure::new(&step.function, "Workflow.NotRun", &said))?;
        let most = self.store.bytes_max();
        let output = ran
            .result
            .map_err(|error| failed(&step.function, &error.payload, most))?;
        if open.attempt.asked.was_interrupted() {
            return Err(Failure::new(
                &step.function,
                "Workflow.FarStoreAway",
                "its far store did not answer",
            ));
        }
        let output = as_json(&step.function, output)?;
        self.check_length(&step.function, output.len())?;
        self.count(service, &open.attempt, &step.function, output)
            .await
    }

    /// Errors: what `step` comes to has more bytes than a row may hold.
    pub(crate) fn check_length(&self, step: &str, bytes: usize) -> Result<(), Failure> {
        let most = self.store.bytes_max();
        if bytes > most {
            Err(too_large(step, &format!("{bytes} bytes"), most))
        } else {
            Ok(())
        }
    }

    fn open<'s>(self: &Arc<Self>, service: &'s Inner, path: &str, tries: u32) -> Open<'s> {
        let attempt = Arc::new(self.attempt_at(service, path.to_owned(), tries));
        let token = service
            .attempts
            .open(&attempt, None, &*service.parts.entropy);
        let token = token.expect("it is within none that might be over");
        let stays = service.options.breaks(Broken::HearsWhoHasEnded);
        Open {
            attempts: &service.attempts,
            token,
            attempt,
            stays,
        }
    }

    /// An attempt of the step at `path`, which nobody knows yet.
    pub(crate) fn attempt_at(
        self: &Arc<Self>,
        service: &Inner,
        path: String,
        tries: u32,
    ) -> Attempt {
        let below = self
            .atomic
            .lock()
            .as_ref()
            .map(|(overlay, _)| Arc::clone(overlay));
        let overlay = Overlay::of_attempt(below, service.parts.entropy.next_u64());
        Attempt::new(Arc::clone(self), path, overlay, tries, service.now_ms())
    }

    /// Has an attempt that succeeded count.
    pub(crate) async fn count(
        self: &Arc<Self>,
        service: &Inner,
        attempt: &Attempt,
        function: &str,
        output: Bytes,
    ) -> Result<Bytes, Failure> {
        let changes = attempt.finish().await;
        let row = StepRow {
            function: function.to_owned(),
            came_to: Ok(output),
            attempt: None,
            tries: attempt.tries,
            began_ms: attempt.began_ms,
            ended_ms: service.now_ms(),
        };
        if self.call_of_atomic().is_some() && !service.options.breaks(Broken::CountsByParts) {
            return self.count_in_atomic(service, attempt, row, changes);
        }
        let counted = Arc::new((attempt.path.clone(), row.clone(), changes));
        let came_to = match self
            .until_it_passes(service, || self.count_apart(&counted))
            .await
        {
            Ok((came_to, point)) => {
                self.saw(point);
                came_to
            }
            // Somebody else goes on with it, or a store has gone back.
            Err(error) if error.means_anew() => return Err(Failure::Stopped),
            Err(error) => {
                return Err(Failure::new(
                    function,
                    "Workflow.NotWritten",
                    &error.to_string(),
                ));
            }
        };
        self.journal.lock().insert(
            attempt.path.clone(),
            StepRow {
                came_to: came_to.clone(),
                ..row
            },
        );
        came_to.map_err(Failure::Failed)
    }

    /// Has an attempt count with the whole of its atomic run. Errors: `Stopped` for one of a transaction that was begun anew since.
    fn count_in_atomic(
        &self,
        service: &Inner,
        attempt: &Attempt,
        row: StepRow,
        changes: Changes,
    ) -> Result<Bytes, Failure> {
        // Held until it is in the journal, which goes with the transaction.
        let atomic = self.atomic.lock();
        let overlay = atomic
            .as_ref()
            .filter(|(overlay, _)| attempt.overlay.is_over(overlay));
        let (overlay, _) = overlay.ok_or(Failure::Stopped)?;
        // Who finishes it twice has it count once.
        if let Some(counted) = self.counted(&attempt.path) {
            return counted.came_to.map_err(Failure::Failed);
        }
        let merged = overlay.merge(changes, &service.options);
        merged.map_err(|error| {
            Failure::new(&row.function, "Workflow.TooLarge", &error.to_string())
        })?;
        let came_to = row.came_to.clone();
        self.journal.lock().insert(attempt.path.clone(), row);
        came_to.map_err(Failure::Failed)
    }

    /// What the step at `path` is at rest as if the code that has called it goes on after its failure (W2).
    pub(crate) fn failed(
        &self,
        function: &str,
        tries: u32,
        began_ms: u64,
        failure: Bytes,
    ) -> StepRow {
        let ended_ms = self
            .service
            .upgrade()
            .map_or(began_ms, |service| service.now_ms());
        StepRow {
            function: function.to_owned(),
            came_to: Err(failure),
            attempt: None,
            tries,
            began_ms,
            ended_ms,
        }
    }

    /// Has it count that the step at `path` has failed, which the code of `around` goes on after.
    /// Errors: `AttemptEnded` if something else counts there, or the transaction of an atomic run was begun anew since.
    pub(crate) async fn count_failure(
        self: &Arc<Self>,
        service: &Inner,
        around: &Attempt,
        (path, row): (&str, &StepRow),
    ) -> Result<()> {
        if let Some((overlay, _)) = &*self.atomic.lock() {
            if !around.overlay.is_over(overlay) {
                return Err(Error::AttemptEnded);
            }
            self.journal.lock().insert(path.to_owned(), row.clone());
            return Ok(());
        }
        let counted = Arc::new((path.to_owned(), row.clone(), Changes::default()));
        let (came_to, point) = self
            .until_it_passes(service, || self.count_apart(&counted))
            .await?;
        self.saw(point);
        let is_so = came_to == row.came_to;
        self.journal.lock().insert(
            path.to_owned(),
            StepRow {
                came_to,
                ..row.clone()
            },
        );
        if is_so {
            Ok(())
        } else {
            Err(Error::AttemptEnded)
        }
    }

    /// What it is about goes on if nobody waits for it any more, and is waited for by who ends the run.
    async fn count_apart(
        self: &Arc<Self>,
        counted: &Arc<(String, StepRow, Changes)>,
    ) -> Result<(CameTo, DurabilityPoint)> {
        let (run, counted) = (Arc::clone(self), Arc::clone(counted));
        let counting = Arc::clone(&self.counting).read_owned().await;
        if *counting == Counting::Over {
            return Err(Error::AttemptEnded);
        }
        let task = tokio::spawn(async move {
            let (path, row, changes) = &*counted;
            let result = run.store.count_step(run.place(path), row, changes).await;
            drop(counting);
            result
        });
        task.await
            .unwrap_or_else(|_| Err(ports::Error::unavailable("have a step count").into()))
    }

    /// Once this has returned, nothing comes to count any more.
    pub(crate) async fn settled(&self) {
        *self.counting.write().await = Counting::Over;
    }

    /// What every attempt of the step at `path` is known by to its code.
    pub(crate) fn request_id(&self, path: &str) -> String {
        layout::request_id(&self.name, &self.id, self.row.began_ms, path)
    }

    /// What counts at `path`, if anything does.
    pub(crate) fn counted(&self, path: &str) -> Option<StepRow> {
        self.journal.lock().get(path).cloned()
    }

    /// All of it again, in the transaction of `call`; returns what its steps write.
    pub(crate) fn begin_anew(&self, call: &Call) -> Arc<Overlay> {
        let overlay = Overlay::over(None);
        let mut atomic = self.atomic.lock();
        self.journal.lock().clear();
        *self.lost.lock() = None;
        *atomic = Some((Arc::clone(&overlay), call.clone()));
        overlay
    }

    /// The transaction of an atomic run.
    pub(crate) fn call_of_atomic(&self) -> Option<Call> {
        self.atomic.lock().as_ref().map(|(_, call)| call.clone())
    }

    pub(crate) async fn get(&self, key: &Bytes) -> Result<Option<Bytes>> {
        if let Some(call) = self.call_of_atomic() {
            return self.get_in(&call, key).await;
        }
        let (value, point) = self.store.get(key).await?;
        self.saw(point);
        Ok(value)
    }

    /// Has what the step at `path` has written so far count by itself.
    pub(crate) async fn publish(&self, path: &str, changes: &Changes) -> Result<()> {
        let counting = self.counting.read().await;
        if *counting == Counting::Over {
            return Err(Error::AttemptEnded);
        }
        let point = self
            .store
            .publish(self.place(path), changes.clone())
            .await?;
        self.saw(point);
        Ok(())
    }

    /// Waits until all that it has read and written is durable.
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
