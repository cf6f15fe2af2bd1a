//! The service: one handle to the parts.

mod response;
mod runs;
mod state;
mod step_api;
mod view;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use functions::{manifest::workflow::Workflow, stop::Stop};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use ports::{Clock, Entropy, ErrorKind, LogThrottle, key_value::SharedKeyValue};
use transactions::Engine;

use crate::{
    Error, FarStore, FarStores, Figures, Options, Result, Runner, Status,
    env::Env,
    executor::Executor,
    placement::Placement,
    scheduler::{Claims, Scheduler, Tasks},
    steps::AttemptRegistry,
    storage::layout::RUN_ID_BYTES_MAX,
};

pub use step_api::{StepStart, StepToken};
pub use view::{RunView, StepView};

use response::AwaitedStore;

/// The dependencies of the service.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Runs functions.
    pub runner: Arc<dyn Runner>,
    /// Stores runs: the store of `transactions`. It supports transactions of items.
    pub key_value: SharedKeyValue,
    /// Holds functions' state.
    pub transactions: Engine,
    /// Opens far stores.
    pub far_stores: Arc<dyn FarStores>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Ids and jitter.
    pub entropy: Arc<dyn Entropy>,
}

/// Workflows. Clones share it. Runs continue until they end, until [`Service::stop`], or until the
/// last clone is dropped.
///
/// A call that waits for a store fails with `Unavailable`, or `OutcomeUnknown`, after 5 s.
#[derive(Debug, Clone)]
pub struct Service {
    executor: Arc<Executor>,
    claims: Arc<Claims>,
    scheduler: Scheduler,
    /// Limits the log lines about writes that far stores refuse permanently.
    refusal_log: Arc<Mutex<LogThrottle>>,
    tasks: Tasks,
}

impl Service {
    /// A service that has yet to [start](Self::start).
    pub fn new(parts: Parts, options: Options) -> Self {
        let env = Arc::new(Env {
            clock: parts.clock,
            entropy: parts.entropy,
            options,
            stop: Stop::default(),
        });
        let (runner, engine) = (parts.runner, parts.transactions);
        let (placement, events) = Placement::new(
            parts.key_value,
            engine.clone(),
            Arc::clone(&runner),
            parts.far_stores,
            &env,
        );
        let (placement, claims) = (Arc::new(placement), Arc::<Claims>::default());
        let executor = Arc::new(Executor {
            env,
            runner,
            placement,
            attempts: AttemptRegistry::default(),
            figures: Mutex::default(),
            engine,
        });
        let tasks = Tasks::default();
        let scheduler = Scheduler::new(&executor, &claims, events, &tasks);
        Self {
            executor,
            claims,
            scheduler,
            refusal_log: Arc::default(),
            tasks,
        }
    }

    /// Resumes the runs that earlier starts have left (W4), in all stores. Those of a far
    /// store are resumed each time it becomes reachable.
    pub fn start(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.scheduler.start().await })
    }

    /// From here on, no run begins a step, except for steps that a step at work calls.
    pub fn begin_stop(&self) {
        self.executor.env.stop.begin();
    }

    /// Waits, after [`Self::begin_stop`], until no run advances: each has stored its end, or pauses
    /// before its next step.
    pub fn idle(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.executor.env.stop.idle().await })
    }

    /// Stops all runs where they are, after [`Self::begin_stop`]. Callers that wait for them get
    /// [`Error::Stopped`].
    pub fn interrupt(&self) {
        self.executor.env.stop.interrupt();
        self.tasks.lock().abort_all();
    }

    /// Stops all runs where they are, and releases far stores, drained. The next start resumes the
    /// runs.
    pub fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.begin_stop();
            self.interrupt();
            self.scheduler.stop(&self.tasks).await;
        })
    }

    /// The deployed workflows, by name.
    pub fn deployed(&self) -> BTreeMap<String, Arc<Workflow>> {
        self.executor.runner.workflows()
    }

    /// The number of active runs.
    pub fn active(&self) -> usize {
        self.claims.len()
    }

    /// The state of each far store, by place.
    pub fn far_stores(&self) -> BTreeMap<String, FarStore> {
        self.executor.placement.shards.health()
    }

    /// Counts of runs since the start.
    pub fn figures(&self) -> Figures {
        Figures {
            active: self.active() as u64,
            ..*self.executor.figures.lock()
        }
    }

    /// Begins a run (W1); returns its id once the begin is ordered. Without an id, generates one.
    ///
    /// Errors: `NoSuchWorkflow`, `Invalid`, `TooLarge`, `TooManyRuns`, `Port`, `State`;
    /// `OutcomeUnknown` if its store does not accept it in time: then it may begin later.
    pub fn begin<'a>(
        &'a self,
        name: &'a str,
        id: Option<&'a str>,
        input: Bytes,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let random = || self.executor.env.entropy.next_u64();
            let is_client_id = id.is_some();
            let id = match id {
                Some(id) => check_id(id)?.to_owned(),
                None => format!("{:016x}{:016x}", random(), random()),
            };
            let (scheduler, key) = (self.scheduler.clone(), (name.to_owned(), id.clone()));
            // The caller may give up, and the run that it has begun still has to be executed.
            let begun = self.scheduler.detached(Box::pin(async move {
                scheduler.begin(key, is_client_id, input).await
            }));
            let late = || {
                ports::Error::new(
                    ErrorKind::OutcomeUnknown,
                    "begin a run: its store does not take it in time",
                )
            };
            match self.within(Duration::ZERO, late, begun).await {
                Err(error) if error.is_outcome_unknown() => {
                    let state =
                        format!("the run {id:?} may have begun: begin it again under this id only");
                    Err(error.with_unknown_outcome(&id, state))
                }
                begun => begun.map(|()| id),
            }
        })
    }

    /// Cancels a run (W6). A run that has ended stays as it is.
    ///
    /// Errors: `OutcomeUnknown` if that takes too long: then the run is active or ends a moment
    /// later.
    pub fn cancel<'a>(&'a self, name: &'a str, id: &'a str) -> BoxFuture<'a, Result<RunView>> {
        Box::pin(async move {
            let awaited = AwaitedStore::default();
            let found = self.find(name, id, &awaited);
            let found = self.in_time(&awaited, found).await?;
            if found.row.status != Status::Running {
                return self.run(name, id).await;
            }
            let (scheduler, key) = (self.scheduler.clone(), (name.to_owned(), id.to_owned()));
            let location = found.location;
            let ended = async move { scheduler.end(key, location).await };
            let ended = self.scheduler.detached(ended);
            let view = async {
                self.in_time(&awaited, ended).await?;
                self.run(name, id).await
            };
            let state = || {
                format!(
                    "the run {id:?} is being ended, and that cannot be shown yet: ask for it, or end it again"
                )
            };
            view.await
                .map_err(|error| error.with_unknown_outcome(id, state()))
        })
    }

    /// A run that the caller has begun a moment ago, once it has ended or after `most`. Errors: `OutcomeUnknown` if no
    /// view of it is available.
    pub fn wait_for_begun<'a>(
        &'a self,
        name: &'a str,
        id: &'a str,
        most: Duration,
    ) -> BoxFuture<'a, Result<RunView>> {
        Box::pin(async move {
            let state = || {
                format!(
                    "the run {id:?} has begun, and what it comes to cannot be shown yet: ask for it by this id, \
                 and begin it again under this id only"
                )
            };
            self.wait(name, id, most)
                .await
                .map_err(|error| error.with_unknown_outcome(id, state()))
        })
    }
}

fn check_id(id: &str) -> Result<&str> {
    let is_good = |byte: u8| byte.is_ascii_graphic();
    if id.is_empty() || id.len() > RUN_ID_BYTES_MAX || !id.bytes().all(is_good) {
        let say = format!("a run's id has 1 to {RUN_ID_BYTES_MAX} visible ASCII characters");
        return Err(Error::Invalid(say));
    }
    Ok(id)
}

#[cfg(test)]
mod tests;
