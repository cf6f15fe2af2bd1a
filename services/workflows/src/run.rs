//! One run under way: its steps, tried until they count, and its end.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use functions::manifest::workflow::{Step, Workflow};
use parking_lot::Mutex;
use ports::{DurabilityPoint, runtime::Invocation};
use primitives::Delays;
use tokio::sync::watch;
use transactions::model::Call;

use crate::{
    Error, Result, graph, layout,
    overlay::{Changes, Overlay},
    records::{RunRow, Status, StepRow},
    service::Inner,
    step::{Attempt, Open},
    store::{Place, Store},
};

/// How many attempts of an atomic run there are that lose their transaction.
const ATOMIC_ATTEMPTS_MAX: u32 = 10;
/// The longest that is kept of how a step or a run failed; of what is longer, its beginning as its message.
pub(crate) const FAILURE_BYTES_MAX: usize = 32 << 10;
/// What of that is left for the message: in JSON a byte may become six.
const MESSAGE_BYTES_MAX: usize = FAILURE_BYTES_MAX / 8;

/// A run under way.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) service: Weak<Inner>,
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) workflow: Arc<Workflow>,
    pub(crate) row: RunRow,
    pub(crate) store: Store,
    /// Steps that count.
    journal: Mutex<BTreeMap<String, StepRow>>,
    /// All that it has read and written lies at or before this.
    point: Mutex<DurabilityPoint>,
    /// Of an atomic one: what its steps have written, and the transaction that it reads in.
    atomic: Mutex<Option<(Arc<Overlay>, Call)>>,
    pub(crate) ended: watch::Sender<bool>,
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
        let message = &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)];
        let error = serde_json::json!({ "step": step, "errorType": kind, "errorMessage": message });
        Self::Failed(Bytes::from(error.to_string()))
    }

    /// The same in the function's own words.
    pub(crate) fn said(step: &str, payload: &[u8]) -> Self {
        let Ok(serde_json::Value::Object(mut said)) = serde_json::from_slice(payload) else {
            return Self::new(step, "Function.Failed", &beginning(payload));
        };
        said.insert("step".to_owned(), step.into());
        let whole = serde_json::Value::Object(said).to_string();
        if whole.len() > FAILURE_BYTES_MAX {
            return Self::new(step, "Function.Failed", &beginning(payload));
        }
        Self::Failed(Bytes::from(whole))
    }
}

fn too_large(step: &str, bytes: usize, most: usize) -> Failure {
    let said = format!("a result has {bytes} bytes, and {most} are the most here");
    Failure::new(step, "Workflow.ResultTooLarge", &said)
}

/// What is shown of a failure that is too long, or no object in JSON.
fn beginning(payload: &[u8]) -> String {
    String::from_utf8_lossy(&payload[..payload.len().min(MESSAGE_BYTES_MAX)]).into_owned()
}

impl Run {
    pub(crate) fn new(
        service: &Arc<Inner>,
        (name, id): (String, String),
        row: RunRow,
        store: Store,
        (journal, point): (BTreeMap<String, StepRow>, DurabilityPoint),
    ) -> Arc<Self> {
        Arc::new(Self {
            service: Arc::downgrade(service),
            name,
            id,
            workflow: Arc::new(row.workflow.clone()),
            row,
            store,
            journal: Mutex::new(journal),
            point: Mutex::new(point),
            atomic: Mutex::default(),
            ended: watch::Sender::new(false),
        })
    }

    /// Runs to the end, and says at rest what it came to. False: it is to be taken up again from what is at rest.
    pub(crate) async fn work(self: &Arc<Self>, service: &Arc<Inner>) -> bool {
        let clock = Arc::clone(&service.parts.clock);
        let left = self
            .workflow
            .timeout()
            .saturating_sub(Duration::from_millis(service.now_ms().saturating_sub(self.row.began_ms)));
        let came_to = tokio::select! {
            biased;
            came_to = self.attempts(service) => came_to,
            () = clock.sleep(left) => {
                let said = format!("the run took longer than {} s", self.workflow.timeout_s);
                Err(Failure::new("", "Workflow.TimedOut", &said))
            }
        };
        let (status, output, error) = match came_to {
            Ok(output) => (Status::Succeeded, Some(output), None),
            Err(Failure::Failed(error)) => (Status::Failed, None, Some(error)),
            Err(Failure::Stopped) => return false,
        };
        let row = RunRow { status, output, error, ended_ms: Some(service.now_ms()), ..self.row.clone() };
        match self.until_it_passes(service, || self.store.end_run(&self.name, &self.id, &row)).await {
            Ok(_) => {
                service.tally.ended(row.status);
                true
            }
            Err(Error::RunEnded) => true,
            Err(error) => {
                tracing::warn!(workflow = %self.name, run = %self.id, %error, "the end of a run was not written");
                false
            }
        }
    }

    /// Makes a call until it is answered for good.
    async fn until_it_passes<T, F: Future<Output = Result<T>>>(
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

    async fn attempts(self: &Arc<Self>, service: &Arc<Inner>) -> Result<Bytes, Failure> {
        if !self.workflow.atomic {
            return self.go().await;
        }
        for _ in 0..ATOMIC_ATTEMPTS_MAX {
            match self.as_one_transaction(service).await {
                Ok(output) => return Ok(output),
                Err(Either::Failure(failure)) => return Err(failure),
                Err(Either::Anew(why)) => tracing::debug!(run = %self.id, %why, "an atomic run begins anew"),
            }
        }
        Err(Failure::new("", "Workflow.TransactionFailed", "its transaction was lost again and again"))
    }

    async fn as_one_transaction(self: &Arc<Self>, service: &Arc<Inner>) -> Result<Bytes, Either> {
        let begun = self.until_it_passes(service, || self.store.begin_atomic(&self.name, &self.id)).await;
        let call = match begun {
            Ok(Some(call)) => call,
            // Only its row is missing.
            Ok(None) => return self.told_before().await,
            Err(error) => return Err(Either::Anew(error.to_string())),
        };
        self.journal.lock().clear();
        let overlay = Overlay::over(None);
        *self.atomic.lock() = Some((Arc::clone(&overlay), call.clone()));
        let output = self.go().await?;
        let changes = overlay.close();
        let committed = self.store.commit_atomic(&self.name, &self.id, &call, &output, changes).await;
        match committed {
            Ok(point) => {
                self.saw(point);
                Ok(output)
            }
            Err(Error::RunEnded) => Err(Failure::Stopped.into()),
            Err(error) => Err(Either::Anew(error.to_string())),
        }
    }

    /// What an atomic run said it would come to before it committed.
    async fn told_before(&self) -> Result<Bytes, Either> {
        let row = self.store.run(&self.name, &self.id).await;
        let (row, point) = row.ok().flatten().ok_or(Failure::Stopped)?;
        self.saw(point);
        Ok(row.output.unwrap_or_default())
    }

    async fn go(self: &Arc<Self>) -> Result<Bytes, Failure> {
        let output = match &self.workflow.function {
            Some(function) => {
                let step =
                    Step { function: function.clone(), retries: None, backoff_ms: None, timeout_s: None };
                self.step(&step, "0".to_owned(), self.row.input.clone()).await?
            }
            None => {
                graph::sequence(self, &self.workflow.steps, String::new(), self.row.input.clone()).await?
            }
        };
        // Its row has to take both, or the run could never end (W4).
        let most = self.store.bytes_max().saturating_sub(self.row.bytes());
        if output.len() > most {
            return Err(too_large("", output.len(), most));
        }
        Ok(output)
    }

    /// Whether a list of `bytes` may be an output. Errors: what the run fails with.
    pub(crate) fn check_list(&self, path: &str, bytes: usize) -> Result<(), Failure> {
        let most = self.store.bytes_max();
        if bytes > most { Err(too_large(path, bytes, most)) } else { Ok(()) }
    }

    /// Has a step count, however often it has to be tried.
    pub(crate) async fn step(
        self: &Arc<Self>,
        step: &Step,
        path: String,
        input: Bytes,
    ) -> Result<Bytes, Failure> {
        if let Some(row) = self.journal.lock().get(&path) {
            return Ok(row.output.clone());
        }
        let service = self.service.upgrade().ok_or(Failure::Stopped)?;
        let runner = &service.parts.runner;
        let tries_max = 1 + step.retries.or_else(|| runner.retries(&step.function)).unwrap_or(0);
        let mut backoff = step.backoff_ms.map_or(service.options.backoff, Duration::from_millis);
        let mut tries = 0;
        loop {
            tries += 1;
            let failure = match self.attempt(&service, step, (&path, tries), input.clone()).await {
                Ok(output) => return Ok(output),
                Err(Failure::Stopped) => return Err(Failure::Stopped),
                Err(failure) => failure,
            };
            if tries >= tries_max {
                return Err(failure);
            }
            let jitter = service.parts.entropy.below(1 + backoff.as_millis() as u64 / 4);
            service.parts.clock.sleep(backoff + Duration::from_millis(jitter)).await;
            backoff = (2 * backoff).min(service.options.backoff_max);
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        service: &Arc<Inner>,
        step: &Step,
        (path, tries): (&str, u32),
        input: Bytes,
    ) -> Result<Bytes, Failure> {
        let open = self.open(service, path, tries);
        let invocation = Invocation {
            timeout: step.timeout_s.map(Duration::from_secs),
            scope: Some(Arc::clone(&open.token)),
            ..Invocation::new(layout::request_id(&self.name, &self.id, path), input, true)
        };
        let ran = service.parts.runner.run(&step.function, invocation).await;
        let ran = ran.map_err(|said| Failure::new(&step.function, "Workflow.NotRun", &said))?;
        let output = ran.result.map_err(|error| Failure::said(&step.function, &error.payload))?;
        let most = self.store.bytes_max();
        if output.len() > most {
            return Err(too_large(&step.function, output.len(), most));
        }
        self.count(service, &open, &step.function, output).await
    }

    pub(crate) fn open<'s>(self: &Arc<Self>, service: &'s Inner, path: &str, tries: u32) -> Open<'s> {
        let below = self.atomic.lock().as_ref().map(|(overlay, _)| Arc::clone(overlay));
        let attempt = Arc::new(Attempt {
            run: Arc::clone(self),
            path: path.to_owned(),
            overlay: Overlay::over(below),
            began_ms: service.now_ms(),
            tries,
            called: 0.into(),
        });
        let token = service.attempts.open(&attempt);
        Open { attempts: &service.attempts, token, attempt, stays: false }
    }

    /// Has an attempt that succeeded count.
    pub(crate) async fn count(
        &self,
        service: &Inner,
        open: &Open<'_>,
        function: &str,
        output: Bytes,
    ) -> Result<Bytes, Failure> {
        let attempt = &open.attempt;
        let changes = attempt.close();
        let row = StepRow {
            function: function.to_owned(),
            output,
            attempt: None,
            tries: attempt.tries,
            began_ms: attempt.began_ms,
            ended_ms: service.now_ms(),
        };
        let atomic = self.atomic.lock().as_ref().map(|(overlay, _)| Arc::clone(overlay));
        let output = if let Some(overlay) = atomic {
            let merged = overlay.merge(changes, &service.options);
            merged.map_err(|error| Failure::new(function, "Workflow.TooLarge", &error.to_string()))?;
            row.output.clone()
        } else {
            let place = Place { workflow: &self.name, run: &self.id, path: &attempt.path };
            let counted =
                self.until_it_passes(service, || self.store.count_step(place, &row, &changes)).await;
            match counted {
                Ok((output, point)) => {
                    self.saw(point);
                    output
                }
                // Somebody else goes on with it, or a store has gone back.
                Err(error) if error.means_anew() => return Err(Failure::Stopped),
                Err(error) => return Err(Failure::new(function, "Workflow.NotWritten", &error.to_string())),
            }
        };
        self.journal.lock().insert(attempt.path.clone(), StepRow { output: output.clone(), ..row });
        Ok(output)
    }

    /// What counts at `path`, if anything does.
    pub(crate) fn counted(&self, path: &str) -> Option<StepRow> {
        self.journal.lock().get(path).cloned()
    }

    pub(crate) async fn get(&self, key: &Bytes) -> Result<Option<Bytes>> {
        let call = self.atomic.lock().as_ref().map(|(_, call)| call.clone());
        let (value, point) = match call {
            Some(call) => self.store.get_in(&call, key).await?,
            None => self.store.get(key).await?,
        };
        self.saw(point);
        Ok(value)
    }

    pub(crate) async fn publish(&self, changes: Changes) -> Result<()> {
        let point = self.store.publish(changes).await?;
        self.saw(point);
        Ok(())
    }

    /// Waits until all that it has read and written is durable.
    pub(crate) async fn externalize(&self) -> Result<()> {
        let point = *self.point.lock();
        self.store.externalize(point).await
    }

    fn saw(&self, point: DurabilityPoint) {
        let mut seen = self.point.lock();
        *seen = point.max(*seen);
    }
}

/// Why an attempt of an atomic run came to nothing.
enum Either {
    Failure(Failure),
    /// Its transaction is lost: all of it again.
    Anew(String),
}

impl From<Failure> for Either {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}
