//! Runs of this process: begun, executed, resumed, ended and forgotten.

mod begin;
mod claims;
mod drivers;
mod end;
mod recovery;
mod retention;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use ports::LogThrottle;
use primitives::Backoff;
use tokio::{
    sync::{mpsc, oneshot},
    task::{AbortHandle, JoinSet},
};

use crate::{
    Result,
    env::Env,
    executor::{Execution, Executor},
    placement::{Placement, ShardEvent, StoreLocation},
    run::Run,
};

pub(crate) use claims::Claims;

use claims::Claim;
use retention::Retention;

/// The waits between attempts to resume the runs of a store. There is no last attempt.
const RESUME: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_mins(1),
    attempts_max: u32::MAX,
};
const RUNS_WAIT: &str = "runs wait to be resumed";
const NOT_OPEN: &str =
    "a far store is not open here; runs in it that no process executes continue once it is";

/// The tasks of a scheduler. They end with this set.
pub(crate) type Tasks = Arc<Mutex<JoinSet<()>>>;

/// Begins, executes and ends runs. Clones share it, and its tasks hold clones.
#[derive(Debug, Clone)]
pub(crate) struct Scheduler {
    inner: Arc<Inner>,
    tasks: Weak<Mutex<JoinSet<()>>>,
}

#[derive(Debug)]
struct Inner {
    env: Arc<Env>,
    placement: Arc<Placement>,
    executor: Arc<Executor>,
    claims: Arc<Claims>,
    /// Taken by [`Scheduler::start`].
    events: Mutex<Option<mpsc::Receiver<ShardEvent>>>,
    retention: Retention,
    /// Limits the log lines about runs that stopped and cannot be resumed.
    stopped_log: Mutex<LogThrottle>,
}

impl Scheduler {
    pub(crate) fn new(
        executor: &Arc<Executor>,
        claims: &Arc<Claims>,
        events: mpsc::Receiver<ShardEvent>,
        tasks: &Tasks,
    ) -> Self {
        let inner = Inner {
            env: Arc::clone(&executor.env),
            placement: Arc::clone(&executor.placement),
            executor: Arc::clone(executor),
            claims: Arc::clone(claims),
            events: Mutex::new(Some(events)),
            retention: Retention::default(),
            stopped_log: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
            tasks: Arc::downgrade(tasks),
        }
    }

    /// Resumes the runs that earlier starts have left (W4), in all stores. Those of a far
    /// store are resumed each time its shard opens.
    pub(crate) async fn start(&self) -> Result<()> {
        let inner = &self.inner;
        let far = inner.placement.load().await?;
        let near = StoreLocation::Near;
        if self.resume_all(&near).await.is_err() {
            self.keep_resuming(near);
        }
        if inner.env.options.among_others {
            self.start_driving();
        }
        if let Some(mut events) = inner.events.lock().take() {
            let scheduler = self.clone();
            self.spawn(async move {
                while let Some(event) = events.recv().await {
                    match event {
                        ShardEvent::Opened(location) => scheduler.keep_resuming(location),
                        ShardEvent::Ended(location) => scheduler.keep_opening(location),
                    }
                }
            });
        }
        for location in far {
            self.keep_opening(location);
        }
        Ok(())
    }

    fn keep_resuming(&self, location: StoreLocation) {
        let scheduler = self.clone();
        self.spawn(async move { scheduler.resume_until_done(&location).await });
    }

    /// Resumes the runs of a store, with as many attempts as it takes.
    async fn resume_until_done(&self, location: &StoreLocation) {
        let resume = || self.resume_all(location);
        self.retry(location, RUNS_WAIT, resume).await;
    }

    /// Opens a far store, with as many attempts as it takes. This includes far stores that no
    /// deployed workflow names: only the store itself knows whether a run of an earlier definition
    /// waits there (W4), and it keeps the outcomes of its runs (W8).
    fn keep_opening(&self, location: StoreLocation) {
        let scheduler = self.clone();
        self.spawn(async move {
            let placement = &scheduler.inner.placement;
            let open = || async {
                let store = placement.store_to_search(&location).await;
                store.map(drop)
            };
            scheduler.retry(&location, NOT_OPEN, open).await;
        });
    }

    /// Repeats `attempt` until it succeeds. Logs `trouble` meanwhile, less and less often.
    async fn retry<F: Future<Output = Result<()>> + Send>(
        &self,
        location: &StoreLocation,
        trouble: &'static str,
        attempt: impl Fn() -> F + Send,
    ) {
        let (env, mut delays, mut log) = (&self.inner.env, RESUME.delays(), LogThrottle::default());
        while let Err(error) = attempt().await {
            if let Some(lasts) = log.failed(env.clock.monotonic(), &error.to_string()) {
                tracing::warn!(%location, %error, ?lasts, "{trouble}");
            }
            let wait = delays.next_wait(&*env.entropy).unwrap_or(RESUME.longest);
            env.clock.sleep(wait).await;
        }
        if let Some(lasted) = log.ended(env.clock.monotonic()) {
            tracing::info!(%location, ?lasted, "over: {trouble}");
        }
    }

    /// Executes a run until it has ended. Without `run`, loads it after a wait.
    fn execute(&self, claim: Claim, location: StoreLocation, mut run: Option<Arc<Run>>) {
        if let Some(run) = &run {
            claim.set_run(run);
        }
        let (key, number) = (claim.key.clone(), claim.number);
        let scheduler = self.clone();
        let task = self.spawn(async move {
            let inner = &scheduler.inner;
            let run = loop {
                let now = match run.take() {
                    Some(run) => run,
                    None => match scheduler.reload(&claim.key, &location).await {
                        Some(run) => run,
                        None => return,
                    },
                };
                claim.set_run(&now);
                if inner.executor.execute(&now).await == Execution::Ended {
                    break now;
                }
                now.ended.send_replace(true);
            };
            drop(claim);
            inner.retention.sweep(&run).await;
        });
        if let Some(task) = task {
            self.inner.claims.set_task((&key, number), task);
        }
    }

    /// Stops all runs where they are, and releases the shards, drained. The next start resumes the
    /// runs.
    pub(crate) async fn stop(&self, tasks: &Tasks) {
        let mut tasks = std::mem::take(&mut *tasks.lock());
        tasks.shutdown().await;
        self.inner.placement.shards.release().await;
    }

    /// Runs `task` in the background, so that it continues if its caller gives up.
    pub(crate) async fn detached<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (sender, result) = oneshot::channel();
        self.spawn(async move {
            // Without a receiver the caller has given up.
            let _ = sender.send(task.await);
        });
        result.await.unwrap_or_else(|_| {
            Err(ports::Error::unavailable("go on while the server stops").into())
        })
    }

    /// None: the service is gone.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        let tasks = self.tasks.upgrade()?;
        let mut tasks = tasks.lock();
        while tasks.try_join_next().is_some() {}
        Some(tasks.spawn(task))
    }
}
