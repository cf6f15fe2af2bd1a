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
use transactions::Engine;

use crate::{
    Error, Result,
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
/// The log line for a store whose runs cannot be resumed.
const RUNS_WAIT: &str = "runs wait to be resumed";
/// The log line for a far store that does not open.
const NOT_OPEN: &str =
    "a far store is not open here; runs in it that no process executes continue once it is";

/// Begins, executes and ends runs. Clones share it. Runs continue until they end, or until
/// [`Scheduler::stop`].
#[derive(Debug, Clone)]
pub(crate) struct Scheduler {
    inner: Arc<Inner>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

#[derive(Debug)]
struct Inner {
    env: Arc<Env>,
    placement: Arc<Placement>,
    executor: Arc<Executor>,
    engine: Engine,
    claims: Arc<Claims>,
    /// Taken by [`Scheduler::start`].
    events: Mutex<Option<mpsc::Receiver<ShardEvent>>>,
    retention: Retention,
    /// Limits the log lines about runs that stopped and cannot be resumed.
    stopped_log: Mutex<LogThrottle>,
}

impl Scheduler {
    /// A scheduler that has yet to [start](Self::start).
    pub(crate) fn new(
        executor: &Arc<Executor>,
        engine: Engine,
        claims: &Arc<Claims>,
        events: mpsc::Receiver<ShardEvent>,
    ) -> Self {
        let inner = Inner {
            env: Arc::clone(&executor.env),
            placement: Arc::clone(&executor.placement),
            executor: Arc::clone(executor),
            engine,
            claims: Arc::clone(claims),
            events: Mutex::new(Some(events)),
            retention: Retention::default(),
            stopped_log: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
            tasks: Arc::default(),
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
            let handle = self.handle();
            self.spawn(async move {
                while let (Some(event), Some(scheduler)) = (events.recv().await, handle.upgrade()) {
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

    /// Resumes the runs of a store, with as many attempts as it takes.
    fn keep_resuming(&self, location: StoreLocation) {
        let handle = self.handle();
        self.spawn(async move { handle.resume_all(location).await });
    }

    /// Opens a far store, with as many attempts as it takes. This includes far stores that no
    /// deployed workflow names: only the store itself knows whether a run of an earlier definition
    /// waits there (W4), and it keeps the outcomes of its runs (W8).
    fn keep_opening(&self, location: StoreLocation) {
        let handle = self.handle();
        let open = |scheduler: Self, location| async move {
            let placement = &scheduler.inner.placement;
            match placement.store(&location).await {
                Err(error @ Error::FarIsNear(_)) => placement.unlist(&location, &error).await,
                store => store.map(drop),
            }
        };
        self.spawn(async move { handle.retry(location, NOT_OPEN, open).await });
    }

    /// Executes a run until it has ended. Without `run`, loads it after a wait.
    fn execute(&self, claim: Claim, location: StoreLocation, mut run: Option<Arc<Run>>) {
        if let Some(run) = &run {
            claim.set_run(run);
        }
        let (key, number) = (claim.key().clone(), claim.number());
        let handle = self.handle();
        let task = self.spawn(async move {
            let Some(scheduler) = handle.upgrade() else {
                return;
            };
            let inner = &scheduler.inner;
            let run = loop {
                let now = match run.take() {
                    Some(run) => run,
                    None => match scheduler.reload(claim.key(), &location).await {
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
            inner.retention.sweep(&inner.env, &run).await;
        });
        self.inner.claims.set_task((&key, number), task);
    }

    /// Stops all runs where they are, and releases the shards, drained. The next start resumes the
    /// runs.
    pub(crate) async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        self.inner.placement.release().await;
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

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task)
    }

    fn handle(&self) -> Handle {
        Handle {
            inner: Arc::downgrade(&self.inner),
            tasks: Arc::downgrade(&self.tasks),
        }
    }
}

/// The scheduler as its own tasks hold it, which keep nothing alive.
#[derive(Debug)]
struct Handle {
    inner: Weak<Inner>,
    tasks: Weak<Mutex<JoinSet<()>>>,
}

impl Handle {
    fn upgrade(&self) -> Option<Scheduler> {
        Some(Scheduler {
            inner: self.inner.upgrade()?,
            tasks: self.tasks.upgrade()?,
        })
    }

    /// Resumes the runs of a store, with as many attempts as it takes.
    async fn resume_all(&self, location: StoreLocation) {
        let resume =
            |scheduler: Scheduler, location| async move { scheduler.resume_all(&location).await };
        self.retry(location, RUNS_WAIT, resume).await;
    }

    /// Repeats `attempt` until it succeeds or the scheduler is gone. Logs `trouble` meanwhile, less
    /// and less often.
    async fn retry<F: Future<Output = Result<()>> + Send>(
        &self,
        location: StoreLocation,
        trouble: &'static str,
        attempt: impl Fn(Scheduler, StoreLocation) -> F + Send,
    ) {
        let (mut delays, mut log) = (RESUME.delays(), LogThrottle::default());
        while let Some(scheduler) = self.upgrade() {
            let env = &scheduler.inner.env;
            match attempt(scheduler.clone(), location.clone()).await {
                Ok(()) => {
                    if let Some(lasted) = log.ended(env.clock.monotonic()) {
                        tracing::info!(%location, ?lasted, "over: {trouble}");
                    }
                    return;
                }
                Err(error) => {
                    if let Some(lasts) = log.failed(env.clock.monotonic(), &error.to_string()) {
                        tracing::warn!(%location, %error, ?lasts, "{trouble}");
                    }
                }
            }
            let wait = delays.next_wait(&*env.entropy).unwrap_or(RESUME.longest);
            env.clock.sleep(wait).await;
        }
    }
}
