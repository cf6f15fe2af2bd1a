//! Runs: begun, worked at, and taken up again. What callers are shown of them is in [`shown`](crate::shown).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use functions::manifest::workflow::Workflow;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use ports::{
    Clock, Entropy, ErrorKind, LogThrottle, Monotonic,
    key_value::SharedKeyValue,
    runtime::{Invocation, Ran},
};
use primitives::{Backoff, Delays};
use tokio::{
    sync::{mpsc, oneshot},
    task::{AbortHandle, JoinSet},
};
use transactions::Engine;

use crate::{
    Broken, Error, FarStores, Options, Result,
    active::{Active, Claim, Key, Taken},
    homes::{Event, FarStore, Home, Homes},
    layout::RUN_ID_BYTES_MAX,
    records::{Given, RunRow, Status},
    run::Run,
    shown::{ANSWER_MAX, End},
    step::Attempts,
    store::Store,
    tally::{Figures, Tally},
};

/// The wait before a run that stopped is taken up again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Between two looks for a run whose begin was not answered, and was not there when it was looked for first.
const LATE_LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often that is looked for: a store that does it later than this has somebody at it once it is begun again, or with the next start.
const LATE_LOOKS: u32 = 5;
/// Runs that are taken up at the same time: each takes several calls of the store, one after the other.
const TAKEN_AT_ONCE: usize = 16;
/// The longest wait before it is tried again to take up what could not be.
const AGAIN_AFTER_MAX: Duration = Duration::from_mins(1);
/// What the log says of a home with runs that cannot be gone on with,
pub(crate) const WAITS: &str = "runs wait to be taken up";
/// and of a far store that cannot be asked whether it has any.
const UNREACHED: &str =
    "a far store is not open here; runs that lie there, if nobody is at them, go on once it is";

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
        Self::run(self, function, invocation)
            .await
            .map_err(|error| error.to_string())
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
    pub(crate) tally: Tally,
    pub(crate) active: Arc<Active>,
    /// In which homes each workflow has rows.
    pub(crate) listed: Mutex<BTreeMap<String, BTreeSet<Home>>>,
    /// Tells of ranges that were opened or have ended, until somebody listens.
    events: Mutex<Option<mpsc::Receiver<Event>>>,
    /// When each workflow's ended runs were last looked through.
    pub(crate) swept: Mutex<BTreeMap<String, Monotonic>>,
    /// Held while old runs are looked for: what another sweep found may be begun anew.
    pub(crate) sweeping: tokio::sync::Mutex<()>,
    /// What far stores refuse for good, as far as the log has said so.
    refusals: Mutex<LogThrottle>,
    /// Why runs that stopped cannot be gone on with, as far as the log has said so.
    waiting: Mutex<LogThrottle>,
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
        let delay = delays
            .next_delay(&*self.parts.entropy)
            .unwrap_or(backoff.longest);
        self.parts.clock.sleep(delay).await;
    }

    /// An error as a caller is told it; the log says what a far store refuses, each reason once and then ever more seldom.
    pub(crate) fn told(&self, error: Error) -> Error {
        let error = error.told();
        if let Error::Refused(refused) = &error {
            let said = self
                .refusals
                .lock()
                .failed(self.parts.clock.monotonic(), &refused.to_string());
            if let Some(lasts) = said {
                tracing::warn!(error = %refused, ?lasts, "a far store refuses for good what runs have written");
            }
        }
        error
    }

    /// Why a far store does not take what is to be durable, as it said last; none: it has not said so.
    pub(crate) fn trouble(&self, home: &Home) -> Option<String> {
        let place = home.to_string();
        let trouble = self.homes.health().remove(&place)?.trouble?;
        Some(format!("the far store {place} does not take it: {trouble}"))
    }
}

impl Service {
    /// A service that has yet to [start](Self::start).
    pub fn new(parts: Parts, options: Options) -> Self {
        let (homes, events) = Homes::new(
            Arc::clone(&parts.key_value),
            parts.transactions.clone(),
            (Arc::clone(&parts.runner), Arc::clone(&parts.far_stores)),
            (Arc::clone(&parts.clock), Arc::clone(&parts.entropy)),
            &options,
        );
        let inner = Inner {
            parts,
            options,
            homes,
            attempts: Attempts::default(),
            tally: Tally::default(),
            active: Arc::default(),
            listed: Mutex::default(),
            events: Mutex::new(Some(events)),
            swept: Mutex::default(),
            sweeping: tokio::sync::Mutex::default(),
            refusals: Mutex::default(),
            waiting: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
            tasks: Arc::default(),
        }
    }

    /// Takes up the runs that earlier starts have left (W4), wherever they have left them: those of a far store once it is reached,
    /// and whenever it is opened anew.
    pub async fn start(&self) -> Result<()> {
        let inner = &self.inner;
        for name in inner.homes.near().listed().await? {
            inner
                .listed
                .lock()
                .entry(name)
                .or_default()
                .insert(Home::Near);
        }
        let mut far = BTreeSet::new();
        for (name, address) in inner.homes.near().listed_homes().await? {
            let home = inner.homes.at(&address);
            inner
                .listed
                .lock()
                .entry(name)
                .or_default()
                .insert(home.clone());
            far.insert(home);
        }
        // As they are deployed, the addresses are the newest.
        far.extend(
            inner
                .parts
                .runner
                .workflows()
                .values()
                .map(|workflow| inner.homes.of(workflow)),
        );
        far.remove(&Home::Near);
        if self.take_up(&Home::Near).await.is_err() {
            self.keep_at(Home::Near, WAITS, |service, home| async move {
                service.take_up(&home).await
            });
        }
        if inner.options.among_others {
            self.drive_among_others();
        }
        if let Some(mut events) = inner.events.lock().take() {
            let service = self.clone_without_tasks();
            self.spawn(async move {
                while let (Some(event), Some(service)) = (events.recv().await, service.upgrade()) {
                    match event {
                        Event::Opened(home) => {
                            service.keep_at(home, WAITS, |service, home| async move {
                                service.take_up(&home).await
                            })
                        }
                        Event::Ended(home) => service.have_opened(home),
                    }
                }
            });
        }
        for home in far {
            self.have_opened(home);
        }
        Ok(())
    }

    /// Has a far store opened, however long that takes.
    fn have_opened(&self, home: Home) {
        self.keep_at(home, UNREACHED, |service, home| async move {
            match service.inner.homes.store(&home).await {
                Err(error @ Error::FarIsNear(_)) => service.let_go(&home, &error).await,
                store => store.map(drop),
            }
        });
    }

    /// Tries something of a home until it succeeds, less and less often. `trouble` is what the log says meanwhile, ever more seldom.
    ///
    /// A far store is kept at also where no deployed workflow names it any more: only it knows whether a run of an earlier
    /// definition waits there (W4), and what its runs came to is kept there (W8).
    fn keep_at<F: Future<Output = Result<()>> + Send>(
        &self,
        home: Home,
        trouble: &'static str,
        what: impl Fn(Self, Home) -> F + Send + 'static,
    ) {
        let handle = self.clone_without_tasks();
        self.spawn(async move { handle.until_done(home, trouble, what).await });
    }

    /// Takes up what lies in a home; one run that cannot be does not keep the others. Errors: of the first that could not.
    pub(crate) async fn take_up(&self, home: &Home) -> Result<()> {
        let store = self.inner.homes.store(home).await?;
        let mut all = Ok(());
        for workflow in store.listed().await? {
            let runs = stream::iter(store.active(&workflow).await?);
            let mut driven = runs
                .map(|run| self.drive((workflow.clone(), run), home))
                .buffer_unordered(TAKEN_AT_ONCE);
            while let Some(one) = driven.next().await {
                all = all.and(one);
            }
        }
        all
    }

    /// The deployed workflows, by name.
    pub fn deployed(&self) -> BTreeMap<String, Arc<Workflow>> {
        self.inner.parts.runner.workflows()
    }

    /// Begins a run (W1); returns its id once it is ordered. None given: one is made up.
    ///
    /// Errors: `NoSuchWorkflow`, `Invalid`, `TooLarge`, `TooManyRuns`, `Port`, `State`; `Unseen` if its store does not take it
    /// in time, and then it may begin later.
    pub async fn begin(&self, name: &str, id: Option<&str>, input: Bytes) -> Result<String> {
        let draw = || self.inner.parts.entropy.next_u64();
        let is_named = id.is_some();
        let id = match id {
            Some(id) => check_id(id)?.to_owned(),
            None => format!("{:016x}{:016x}", draw(), draw()),
        };
        let (service, key) = (self.clone(), (name.to_owned(), id.clone()));
        // Whoever asks may give up, and then somebody is at what was begun all the same.
        let begun = self.apart(Box::pin(async move {
            service.begin_here(key, is_named, input).await
        }));
        let late = || {
            ports::Error::new(
                ErrorKind::OutcomeUnknown,
                "begin a run: its store does not take it in time",
            )
        };
        match self.within(ANSWER_MAX, late, begun).await {
            Err(error) if error.leaves_in_doubt() => {
                let said =
                    format!("the run {id:?} may have begun: begin it again under this id only");
                Err(error.unseen(&id, said))
            }
            begun => begun.map(|()| id),
        }
    }

    async fn begin_here(&self, key: Key, is_named: bool, input: Bytes) -> Result<()> {
        let inner = &self.inner;
        let (name, id) = &key;
        let workflow = inner.parts.runner.workflow(name);
        let workflow = workflow.ok_or_else(|| Error::NoSuchWorkflow(name.clone()))?;
        let Some(claim) = self.claim_to_begin(&key).await? else {
            return Ok(());
        };
        // With this one's own claim.
        if inner.active.len() > inner.options.runs_max {
            return Err(Error::TooManyRuns);
        }
        let home = inner.homes.of(&workflow);
        let store = inner.homes.store(&home).await?;
        if input.len() > store.bytes_max() {
            return Err(Error::TooLarge(format!(
                "an input has {} bytes at most",
                store.bytes_max()
            )));
        }
        if is_named && self.goes_on_elsewhere(&claim, &home).await? {
            return Ok(());
        }
        self.list(&store, name, &workflow).await?;
        let row = RunRow::begun(inner.now_ms(), store.own_driver()?);
        let given = Given {
            input,
            workflow: (*workflow).clone(),
        };
        let (there, point) = match store.begin_run(name, id, &row, &given).await {
            // It may be there, or come to be, and whoever asked may not come back.
            Err(error) if error.passes() => {
                self.work(claim, home.clone(), None);
                if error.leaves_in_doubt() {
                    self.look_later(key, home);
                }
                return Err(error);
            }
            begun => begun?,
        };
        let run = match there {
            None => {
                inner.tally.began();
                let rows = (row, given);
                Some(Run::new(
                    inner,
                    key,
                    rows,
                    (home.clone(), store),
                    (BTreeMap::new(), point),
                ))
            }
            // It was begun, and the answer lost; or it has ended.
            Some(there) if there.status == Status::Running => {
                match self.resume(key, there, (&home, store)).await {
                    // It is begun; whether somebody is at it is found out aside.
                    Err(error) if error.passes() => {
                        self.work(claim, home, None);
                        return Ok(());
                    }
                    resumed => resumed?,
                }
            }
            Some(_) => None,
        };
        if let Some(run) = run {
            self.work(claim, home, Some(run));
        }
        Ok(())
    }

    /// Claims a run that is to begin; none: it was begun.
    async fn claim_to_begin(&self, key: &Key) -> Result<Option<Claim>> {
        match self.inner.active.claim_idle(key).await {
            Ok(claim) => Ok(Some(claim)),
            Err(Taken::InDoubt) if !self.inner.options.breaks(Broken::TakesDoubtForBegun) => {
                Err(ports::Error::unavailable("find out whether this run was begun before").into())
            }
            Err(Taken::AtWork | Taken::InDoubt) => Ok(None),
        }
    }

    /// Goes on with a run from what is at rest, unless somebody here is at it: as the node that this process is, not as an earlier one.
    async fn drive(&self, key: Key, home: &Home) -> Result<()> {
        let store = self.inner.homes.store(home).await?;
        let own = store.own_driver()?;
        let claim = match self.inner.active.claim(&key) {
            Some(claim) => claim,
            None if self.inner.active.is_at(&key, own) => return Ok(()),
            None => {
                let (claim, stopped) = self.inner.active.seize(&key).await;
                if let Some(stopped) = stopped {
                    stopped.settled().await;
                }
                claim
            }
        };
        let Some((row, _)) = store.run(&key.0, &key.1).await? else {
            return Ok(());
        };
        if row.status == Status::Running
            && let Some(run) = self.resume(key, row, (home, store)).await?
        {
            self.work(claim, home.clone(), Some(run));
        }
        Ok(())
    }

    /// A run as it is at rest, to go on with; none: it has ended, or another process is at it. Only for who has claimed it.
    async fn resume(
        &self,
        key: Key,
        row: RunRow,
        (home, store): (&Home, Store),
    ) -> Result<Option<Arc<Run>>> {
        let (name, id) = &key;
        if let Some((refused, _)) = store.refused(name, id, row.began_ms).await? {
            // What was refused may be gone with its near store, or be taken now: what was said of the run stays.
            return match store.end_run(name, id, &refused).await {
                Err(error) if error.passes() || error.means_anew() => Err(error),
                _ => Ok(None),
            };
        }
        let row = match self.end_as_asked(&key, home, (&store, &row)).await? {
            None => row,
            // It has committed: that is only to be written.
            Some(End::Own) => match store.run(name, id).await? {
                Some((row, _)) if row.status == Status::Running => row,
                _ => return Ok(None),
            },
            Some(_) => return Ok(None),
        };
        let Some(row) = store.take((name, id), row).await? else {
            return Ok(None);
        };
        let given = store.given(name, id).await?;
        let journal = store.steps(name, id, row.began_ms).await?;
        Ok(Some(Run::new(
            &self.inner,
            key,
            (row, given),
            (home.clone(), store),
            journal,
        )))
    }

    /// Works at a run until it has ended: at `run`, or else at what is at rest a while later.
    pub(crate) fn work(&self, claim: Claim, home: Home, mut run: Option<Arc<Run>>) {
        if let Some(run) = &run {
            claim.works_at(run);
        }
        let (key, number) = (claim.key().clone(), claim.number());
        let service = self.clone_without_tasks();
        let task = self.spawn(async move {
            let Some(service) = service.upgrade() else {
                return;
            };
            let run = loop {
                let now = match run.take() {
                    Some(run) => run,
                    None => match service.again(claim.key(), &home).await {
                        Some(again) => again,
                        None => return,
                    },
                };
                claim.works_at(&now);
                if now.work(&service.inner).await {
                    break now;
                }
                now.ended.send_replace(true);
            };
            drop(claim);
            service.sweep(&run).await;
        });
        Claim::stopped_by(&self.inner.active, (&key, number), task);
    }

    /// Takes up a run that is begun later than it was looked for.
    fn look_later(&self, key: Key, home: Home) {
        let (handle, clock) = (
            self.clone_without_tasks(),
            Arc::clone(&self.inner.parts.clock),
        );
        self.spawn(async move {
            for _ in 0..LATE_LOOKS {
                clock.sleep(LATE_LOOK_EVERY).await;
                let Some(service) = handle.upgrade() else { return };
                if let Err(error) = service.drive(key.clone(), &home).await {
                    tracing::debug!(workflow = %key.0, run = %key.1, %error, "it is looked for again");
                }
            }
        });
    }

    /// A run as it is at rest a while later; none: it has ended, or another process is at it.
    async fn again(&self, key: &Key, home: &Home) -> Option<Arc<Run>> {
        loop {
            self.inner.parts.clock.sleep(AGAIN_AFTER).await;
            let again = async {
                let store = self.inner.homes.store(home).await?;
                match store.run(&key.0, &key.1).await? {
                    Some((row, _)) if row.status == Status::Running => {
                        self.resume(key.clone(), row, (home, store)).await
                    }
                    _ => Ok(None),
                }
            };
            match again.await {
                Ok(again) => {
                    self.inner
                        .waiting
                        .lock()
                        .ended(self.inner.parts.clock.monotonic());
                    return again;
                }
                Err(error) => {
                    let said = self
                        .inner
                        .waiting
                        .lock()
                        .failed(self.inner.parts.clock.monotonic(), &error.to_string());
                    if let Some(lasts) = said {
                        tracing::warn!(workflow = %key.0, run = %key.1, %error, ?lasts, "runs wait, as this one");
                    }
                }
            }
        }
    }

    /// How many runs are under way.
    pub fn active(&self) -> usize {
        self.inner.active.len()
    }

    /// How the far stores are, by place.
    pub fn far_stores(&self) -> BTreeMap<String, FarStore> {
        self.inner.homes.health()
    }

    /// Runs under way, and what became of others since the start.
    pub fn figures(&self) -> Figures {
        self.inner.tally.figures(self.active() as u64)
    }

    /// Stops every run where it is, and gives far stores back, drained: what is not done is taken up by the next start.
    pub async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        self.inner.homes.release().await;
    }

    /// Does something that goes on if nobody waits for it any more.
    pub(crate) async fn apart<T: Send + 'static>(
        &self,
        what: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        self.spawn(async move {
            // Who asked may have given up.
            let _ = tell.send(what.await);
        });
        told.await.unwrap_or_else(|_| {
            Err(ports::Error::unavailable("go on while the server stops").into())
        })
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task)
    }

    pub(crate) fn clone_without_tasks(&self) -> Handle {
        Handle {
            inner: Arc::downgrade(&self.inner),
            tasks: Arc::downgrade(&self.tasks),
        }
    }
}

/// The service as its own tasks have it: they keep nothing alive.
pub(crate) struct Handle {
    inner: Weak<Inner>,
    tasks: Weak<Mutex<JoinSet<()>>>,
}

impl Handle {
    pub(crate) fn upgrade(&self) -> Option<Service> {
        Some(Service {
            inner: self.inner.upgrade()?,
            tasks: self.tasks.upgrade()?,
        })
    }

    /// As [`Service::keep_at`] does; returns once it has succeeded, or nobody is left to do it.
    pub(crate) async fn until_done<F: Future<Output = Result<()>> + Send>(
        &self,
        home: Home,
        trouble: &'static str,
        what: impl Fn(Service, Home) -> F + Send,
    ) {
        let (mut wait, mut outage) = (AGAIN_AFTER, LogThrottle::default());
        while let Some(service) = self.upgrade() {
            let clock = &service.inner.parts.clock;
            match what(service.clone(), home.clone()).await {
                Ok(()) => {
                    if let Some(lasted) = outage.ended(clock.monotonic()) {
                        tracing::info!(%home, ?lasted, "over: {trouble}");
                    }
                    return;
                }
                Err(error) => {
                    if let Some(lasts) = outage.failed(clock.monotonic(), &error.to_string()) {
                        tracing::warn!(%home, %error, ?lasts, "{trouble}");
                    }
                }
            }
            clock.sleep(wait).await;
            wait = (2 * wait).min(AGAIN_AFTER_MAX);
        }
    }
}

pub(crate) fn check_id(id: &str) -> Result<&str> {
    let is_good = |byte: u8| byte.is_ascii_graphic();
    if id.is_empty() || id.len() > RUN_ID_BYTES_MAX || !id.bytes().all(is_good) {
        let say = format!("a run's id has 1 to {RUN_ID_BYTES_MAX} visible ASCII characters");
        return Err(Error::Invalid(say));
    }
    Ok(id)
}
