//! Runs, as callers begin, await, list and cancel them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use functions::manifest::workflow::Workflow;
use parking_lot::Mutex;
use ports::{
    Clock, Entropy, Monotonic,
    key_value::SharedKeyValue,
    runtime::{Invocation, Ran},
};
use primitives::{Backoff, Delays};
use tokio::task::{AbortHandle, JoinSet};
use transactions::Engine;

use crate::{
    Error, FarStores, Options, Result,
    homes::{FarStore, Homes},
    layout::RUN_ID_BYTES_MAX,
    records::{RunRow, Status},
    run::Run,
    step::Attempts,
    store::{RunView, StepView, Store},
    tally::{Figures, Tally},
};

/// Runs in one answer.
const PAGE_RUNS: usize = 100;
/// How long what is known of a run may take to be durable before nothing is said of it.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The wait before it is looked again whether a run has been taken up.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The wait before a run that stopped is taken up again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Runs functions, and knows workflows.
#[async_trait]
pub trait Runner: Debug + Send + Sync {
    /// A deployed workflow.
    fn workflow(&self, name: &str) -> Option<Arc<Workflow>>;

    /// All deployed workflows.
    fn workflows(&self) -> BTreeMap<String, Arc<Workflow>>;

    /// How often a step of this function is tried again; none: there is no such function.
    fn retries(&self, function: &str) -> Option<u32>;

    /// Runs a function. Errors: why it was not run.
    async fn run(&self, function: &str, invocation: Invocation) -> Result<Ran, String>;
}

#[async_trait]
impl Runner for functions::Service {
    fn workflow(&self, name: &str) -> Option<Arc<Workflow>> {
        Self::workflow(self, name)
    }

    fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
        Self::workflows(self)
    }

    fn retries(&self, function: &str) -> Option<u32> {
        Self::retries(self, function)
    }

    async fn run(&self, function: &str, invocation: Invocation) -> Result<Ran, String> {
        Self::run(self, function, invocation).await.map_err(|error| error.to_string())
    }
}

/// What the service stands on.
#[derive(Debug, Clone)]
pub struct Parts {
    /// What runs functions.
    pub runner: Arc<dyn Runner>,
    /// Where runs are; the same store as that of transactions. It transacts.
    pub key_value: SharedKeyValue,
    /// What functions' state is.
    pub transactions: Engine,
    /// Where far stores are found.
    pub far_stores: Arc<dyn FarStores>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Ids, and jitter.
    pub entropy: Arc<dyn Entropy>,
}

/// Workflows. Clones share it. Runs go on until they end, or until [`Service::stop`].
#[derive(Debug, Clone)]
pub struct Service {
    pub(crate) inner: Arc<Inner>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) parts: Parts,
    pub(crate) options: Options,
    pub(crate) homes: Homes,
    pub(crate) attempts: Attempts,
    active: Mutex<BTreeMap<(String, String), Active>>,
    listed: Mutex<BTreeSet<String>>,
    /// When each workflow's ended runs were last looked through.
    pub(crate) swept: Mutex<BTreeMap<String, Monotonic>>,
    pub(crate) tally: Tally,
}

/// A run under way.
#[derive(Debug)]
struct Active {
    run: Arc<Run>,
    task: Option<AbortHandle>,
}

impl Inner {
    pub(crate) fn now_ms(&self) -> u64 {
        self.parts.clock.now().0
    }

    /// Waits a while before something is tried again, longer each time.
    pub(crate) async fn pause(&self, delays: &mut Option<Delays>) {
        let backoff = Backoff {
            first: Duration::from_millis(20),
            longest: Duration::from_secs(2),
            attempts_max: u32::MAX,
        };
        let delays = delays.get_or_insert_with(|| backoff.delays());
        let delay = delays.next_delay(&*self.parts.entropy).unwrap_or(backoff.longest);
        self.parts.clock.sleep(delay).await;
    }

    /// The workflow as it is deployed, or as one of its runs has it.
    fn workflow(&self, name: &str) -> Result<Arc<Workflow>> {
        self.parts.runner.workflow(name).ok_or_else(|| Error::NoSuchWorkflow(name.to_owned()))
    }

    /// Where the runs of a workflow lie.
    pub(crate) async fn store(&self, name: &str) -> Result<Store> {
        self.homes.of(&*self.workflow(name)?).await
    }
}

impl Service {
    /// A service that has yet to [start](Self::start).
    pub fn new(parts: Parts, options: Options) -> Self {
        let homes = Homes::new(
            Arc::clone(&parts.key_value),
            parts.transactions.clone(),
            Arc::clone(&parts.far_stores),
            Arc::clone(&parts.clock),
            Arc::clone(&parts.entropy),
            &options,
        );
        let inner = Inner {
            parts,
            options,
            homes,
            attempts: Attempts::default(),
            active: Mutex::default(),
            listed: Mutex::default(),
            swept: Mutex::default(),
            tally: Tally::default(),
        };
        Self { inner: Arc::new(inner), tasks: Arc::default() }
    }

    /// Takes up the runs that earlier starts have left (W4). Those with a far store that is not reached are taken up once it is.
    pub async fn start(&self) -> Result<()> {
        self.take_up(self.inner.homes.near()).await?;
        let mut addresses = BTreeMap::new();
        for workflow in self.inner.parts.runner.workflows().into_values() {
            if let Some(address) = workflow.far.clone() {
                addresses.insert(address, workflow);
            }
        }
        for workflow in addresses.into_values() {
            let service = self.clone();
            self.spawn(async move {
                loop {
                    let taken = async { service.take_up(&service.inner.homes.of(&workflow).await?).await };
                    match taken.await {
                        Ok(()) => return,
                        Err(error) => tracing::warn!(%error, "runs with a far store wait"),
                    }
                    service.inner.parts.clock.sleep(AGAIN_AFTER).await;
                }
            });
        }
        Ok(())
    }

    async fn take_up(&self, store: &Store) -> Result<()> {
        for workflow in store.listed().await? {
            for run in store.active(&workflow).await? {
                let Some((row, _)) = store.run(&workflow, &run).await? else { continue };
                if row.status == Status::Running {
                    self.drive((workflow.clone(), run), row).await?;
                }
            }
        }
        Ok(())
    }

    /// The deployed workflows, by name.
    pub fn deployed(&self) -> BTreeMap<String, Arc<Workflow>> {
        self.inner.parts.runner.workflows()
    }

    /// Begins a run (W1); returns its id once it is ordered. None given: one is made up.
    ///
    /// Errors: `NoSuchWorkflow`, `Invalid`, `TooLarge`, `TooManyRuns`, `Port`, `State`.
    pub async fn begin(&self, name: &str, id: Option<&str>, input: Bytes) -> Result<String> {
        let inner = &self.inner;
        let workflow = inner.workflow(name)?;
        let id = match id {
            Some(id) => check_id(id)?.to_owned(),
            None => format!("{:016x}{:016x}", inner.parts.entropy.next_u64(), inner.parts.entropy.next_u64()),
        };
        let key = (name.to_owned(), id.clone());
        {
            let active = inner.active.lock();
            if active.contains_key(&key) {
                return Ok(id);
            }
            if active.len() >= inner.options.runs_max {
                return Err(Error::TooManyRuns);
            }
        }
        let store = inner.homes.of(&workflow).await?;
        let bytes_max = store.bytes_max();
        if input.len() > bytes_max {
            return Err(Error::TooLarge(format!("an input has {bytes_max} bytes at most")));
        }
        let row = RunRow {
            status: Status::Running,
            input,
            output: None,
            error: None,
            began_ms: inner.now_ms(),
            ended_ms: None,
            workflow: (*workflow).clone(),
        };
        if row.bytes() > bytes_max {
            let say =
                format!("an input and the workflow's definition have {bytes_max} bytes together at most");
            return Err(Error::TooLarge(say));
        }
        self.list(&store, name, &workflow).await?;
        let (there, point) = store.begin_run(name, &id, &row).await?;
        match there {
            None => {
                inner.tally.began();
                let run = Run::new(inner, key, row, store, (BTreeMap::new(), point));
                self.work(run);
            }
            // It was begun, and the answer lost; or it has ended.
            Some(there) if there.status == Status::Running => self.drive(key, there).await?,
            Some(_) => {}
        }
        Ok(id)
    }

    /// Notes that a workflow has rows, so that a start finds its runs.
    async fn list(&self, store: &Store, name: &str, workflow: &Workflow) -> Result<()> {
        let known = format!("{name} {}", workflow.far.as_deref().unwrap_or_default());
        if !self.inner.listed.lock().contains(&known) {
            store.list(name).await?;
            self.inner.listed.lock().insert(known);
        }
        Ok(())
    }

    /// Goes on with a run from what is at rest, unless somebody here is at it.
    async fn drive(&self, (name, id): (String, String), row: RunRow) -> Result<()> {
        if self.inner.active.lock().contains_key(&(name.clone(), id.clone())) {
            return Ok(());
        }
        let store = self.inner.homes.of(&row.workflow).await?;
        let journal = store.steps(&name, &id).await?;
        let run = Run::new(&self.inner, (name, id), row, store, journal);
        self.work(run);
        Ok(())
    }

    fn work(&self, run: Arc<Run>) {
        let key = (run.name.clone(), run.id.clone());
        {
            let mut active = self.inner.active.lock();
            if active.contains_key(&key) {
                return;
            }
            active.insert(key.clone(), Active { run: Arc::clone(&run), task: None });
        }
        let service = self.clone_without_tasks();
        let task = self.spawn(async move {
            let Some(service) = service.upgrade() else { return };
            let is_over = run.work(&service.inner).await;
            service.inner.active.lock().remove(&(run.name.clone(), run.id.clone()));
            run.ended.send_replace(true);
            if is_over {
                service.sweep(&run).await;
            } else {
                service.take_up_again(&run).await;
            }
        });
        if let Some(active) = self.inner.active.lock().get_mut(&key) {
            active.task = Some(task);
        }
    }

    async fn take_up_again(&self, run: &Run) {
        loop {
            self.inner.parts.clock.sleep(AGAIN_AFTER).await;
            let again = async {
                let store = self.inner.homes.of(&run.workflow).await?;
                match store.run(&run.name, &run.id).await? {
                    Some((row, _)) if row.status == Status::Running => {
                        self.drive((run.name.clone(), run.id.clone()), row).await
                    }
                    _ => Ok(()),
                }
            };
            match again.await {
                Ok(()) => return,
                Err(error) => tracing::warn!(workflow = %run.name, run = %run.id, %error, "a run waits"),
            }
        }
    }

    /// A run, once what is said of it is durable (W3). Errors: `Unavailable` if that takes too long.
    pub async fn run(&self, name: &str, id: &str) -> Result<RunView> {
        self.run_within(name, id, ANSWER_MAX).await
    }

    async fn run_within(&self, name: &str, id: &str, most: Duration) -> Result<RunView> {
        let shown = async {
            let store = self.inner.store(name).await?;
            let found = store.run(name, id).await?;
            let (row, point) = found.ok_or_else(|| Error::NoSuchRun(id.to_owned()))?;
            store.externalize(point).await?;
            Ok(RunView::of(id.to_owned(), &row))
        };
        tokio::select! {
            biased;
            shown = shown => shown,
            () = self.inner.parts.clock.sleep(most) => {
                Err(ports::Error::unavailable("show a run, of which not everything is durable yet").into())
            }
        }
    }

    /// The same once it has ended, or after `most`.
    pub async fn wait(&self, name: &str, id: &str, most: Duration) -> Result<RunView> {
        let until = self.inner.parts.clock.monotonic() + most;
        let key = (name.to_owned(), id.to_owned());
        loop {
            let ended = self.inner.active.lock().get(&key).map(|active| active.run.ended.subscribe());
            let is_under_way = ended.is_some();
            let left = until.since(self.inner.parts.clock.monotonic());
            if let Some(mut ended) = ended {
                tokio::select! {
                    biased;
                    _ = ended.wait_for(|ended| *ended) => {}
                    () = self.inner.parts.clock.sleep(left) => {}
                }
            }
            let left = until.since(self.inner.parts.clock.monotonic());
            let view = self.run_within(name, id, left.max(ANSWER_MAX)).await?;
            if view.status != Status::Running || left.is_zero() {
                return Ok(view);
            }
            if !is_under_way {
                // It is just being taken up.
                self.inner.parts.clock.sleep(LOOK_AGAIN.min(left)).await;
            }
        }
    }

    /// Some runs of a workflow behind `after`, in the order of their ids, and where to go on.
    pub async fn runs(
        &self,
        name: &str,
        status: Option<Status>,
        after: Option<&str>,
    ) -> Result<(Vec<RunView>, Option<String>)> {
        let store = self.inner.store(name).await?;
        let (rows, point) = store.runs(name, after, PAGE_RUNS).await?;
        store.externalize(point).await?;
        let next = rows.last().filter(|_| rows.len() >= PAGE_RUNS).map(|(id, _)| id.clone());
        let wanted = rows.into_iter().filter(|(_, row)| status.is_none_or(|status| row.status == status));
        Ok((wanted.map(|(id, row)| RunView::of(id, &row)).collect(), next))
    }

    /// The steps of a run that count, in the order in which they ended.
    pub async fn steps(&self, name: &str, id: &str) -> Result<Vec<StepView>> {
        let store = self.inner.store(name).await?;
        let (steps, point) = store.steps(name, id).await?;
        store.externalize(point).await?;
        let mut steps: Vec<StepView> = steps
            .into_iter()
            .map(|(path, row)| StepView {
                path,
                function: row.function,
                tries: row.tries,
                began_ms: row.began_ms,
                ended_ms: row.ended_ms,
            })
            .collect();
        steps.sort_by_key(|step| (step.ended_ms, step.began_ms));
        Ok(steps)
    }

    /// Ends a run (W6). A run that has ended stays as it is.
    pub async fn cancel(&self, name: &str, id: &str) -> Result<RunView> {
        let store = self.inner.store(name).await?;
        let found = store.run(name, id).await?;
        let (row, _) = found.ok_or_else(|| Error::NoSuchRun(id.to_owned()))?;
        if row.status != Status::Running {
            return self.run(name, id).await;
        }
        let active = self.inner.active.lock().remove(&(name.to_owned(), id.to_owned()));
        if let Some(Active { run, task }) = active {
            if let Some(task) = task {
                task.abort();
            }
            run.ended.send_replace(true);
        }
        // Of an atomic run it must be known that it will not commit.
        if row.workflow.atomic && store.begin_atomic(name, id).await?.is_none() {
            self.drive((name.to_owned(), id.to_owned()), row).await?;
            return self.run(name, id).await;
        }
        let ended_ms = Some(self.inner.now_ms());
        let row = RunRow { status: Status::Cancelled, output: None, ended_ms, ..row };
        match store.end_run(name, id, &row).await {
            Ok(point) => {
                self.inner.tally.ended(row.status);
                store.externalize(point).await?;
            }
            Err(Error::RunEnded) => {}
            Err(error) => return Err(error),
        }
        self.run(name, id).await
    }

    /// The last value that counts of a key of the workflow's state, once it is durable.
    pub async fn state(&self, name: &str, key: &Bytes) -> Result<Option<Bytes>> {
        let store = self.inner.store(name).await?;
        let (value, point) = store.get(key).await?;
        store.externalize(point).await?;
        Ok(value)
    }

    /// How many runs are under way.
    pub fn active(&self) -> usize {
        self.inner.active.lock().len()
    }

    /// How the far stores are that were wanted, by address without what opens them; returns at once.
    pub fn far_stores(&self) -> BTreeMap<String, FarStore> {
        self.inner.homes.health()
    }

    /// What runs came to since the start; returns at once.
    pub fn figures(&self) -> Figures {
        self.inner.tally.figures(self.active() as u64)
    }

    /// Stops every run where it is, and gives far stores back, drained: what is not done is taken up by the next start.
    pub async fn stop(&self) {
        self.tasks.lock().abort_all();
        self.inner.active.lock().clear();
        self.inner.homes.release().await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task)
    }

    fn clone_without_tasks(&self) -> Handle {
        Handle { inner: Arc::downgrade(&self.inner), tasks: Arc::downgrade(&self.tasks) }
    }
}

/// The service as its own tasks have it: they keep nothing alive.
struct Handle {
    inner: std::sync::Weak<Inner>,
    tasks: std::sync::Weak<Mutex<JoinSet<()>>>,
}

impl Handle {
    fn upgrade(&self) -> Option<Service> {
        Some(Service { inner: self.inner.upgrade()?, tasks: self.tasks.upgrade()? })
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
