//! Executes runs: walks their graph, tries their steps until they commit, and writes their end.

mod atomic;
mod far_outage;
mod step;

use std::{collections::BTreeSet, convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use functions::manifest::workflow::Step;
use futures_util::future::{BoxFuture, FutureExt as _};

use crate::{
    Broken, Error, Result, Runner,
    env::Env,
    failure::Failure,
    figures::Counters,
    graph::{self, Steps},
    placement::Placement,
    run::Run,
    steps::AttemptRegistry,
    storage::{RunRow, Status},
};

/// How often a long run confirms the steps that have committed since.
const CONFIRM_EVERY: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) env: Arc<Env>,
    pub(crate) runner: Arc<dyn Runner>,
    pub(crate) placement: Arc<Placement>,
    pub(crate) attempts: AttemptRegistry,
    pub(crate) counters: Counters,
}

/// Whether a run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Execution {
    Ended,
    /// It stopped, and is to be resumed from its rows.
    Stopped,
}

impl Executor {
    /// Executes a run to its end, and stores its outcome.
    pub(crate) async fn execute(&self, run: &Arc<Run>) -> Execution {
        let result = tokio::select! {
            biased;
            result = self.attempt_run(run) => result,
            () = self.env.clock.sleep(self.time_left(run)) => {
                let why = format!("the run took longer than {} s", run.workflow.timeout_s);
                Err(Failure::new("", "Workflow.TimedOut", &why))
            }
            never = self.confirm_steps(run) => match never {},
        };
        let result = match result {
            Err(Failure::Failed(failure)) if run.workflow.atomic => {
                self.unless_committed(run, failure).await
            }
            result => result,
        };
        let (status, output, error) = match result {
            Ok(output) => (Status::Succeeded, Some(output), None),
            Err(Failure::Failed(error)) => (Status::Failed, None, Some(error)),
            Err(Failure::Stopped) => return Execution::Stopped,
        };
        // When one branch fails, another that was dropped may have a commit under way.
        run.close().await;
        let row = RunRow {
            status,
            output,
            error,
            ended_ms: Some(self.env.now_ms()),
            ..run.row.clone()
        };
        self.end(run, &row).await
    }

    fn time_left(&self, run: &Run) -> Duration {
        let elapsed_ms = self.env.now_ms().saturating_sub(run.row.began_ms);
        let timeout = run.workflow.timeout();
        timeout.saturating_sub(Duration::from_millis(elapsed_ms))
    }

    async fn end(&self, run: &Run, row: &RunRow) -> Execution {
        let ended = self
            .env
            .retry(run.names(), || run.store.end_run(&run.name, &run.id, row))
            .await;
        let ended = match ended {
            Err(error) if error.is_permanent() => {
                self.fail(run, &error).await.map(|()| Status::Failed)
            }
            ended => ended.map(|_| row.status),
        };
        match ended {
            Ok(status) => {
                self.counters.ended(status);
                Execution::Ended
            }
            Err(Error::RunEnded) => Execution::Ended,
            Err(error) => {
                tracing::warn!(
                    workflow = %run.name, run = %run.id, %error,
                    "the end of a run was not written"
                );
                Execution::Stopped
            }
        }
    }

    /// Ends a run as failed whose writes the store has refused permanently. In a shard a lane that
    /// has read none of them writes this end.
    async fn fail(&self, run: &Run, why: &Error) -> Result<()> {
        let row = run.row.refused(why, self.env.now_ms());
        let ended = self.env.retry(run.names(), || async {
            let store = self.placement.store(&run.location).await?;
            store.end_run(&run.name, &run.id, &row).await
        });
        match ended.await {
            // The store has refused the run's own row, too.
            Err(error) if error.is_permanent() && run.store.is_far() => {
                let note = || async {
                    let store = self.placement.store(&run.location).await?;
                    store.note_refused(&run.name, &run.id, &row).await
                };
                self.env.retry(run.names(), note).await
            }
            ended => ended.map(drop),
        }
    }

    /// Confirms the steps of a long run that is stored near. At first only the name of a step's
    /// transaction says that the step has committed, and that name may be forgotten once too many
    /// later ones exist. A confirmed row says so by itself.
    async fn confirm_steps(&self, run: &Run) -> Infallible {
        let mut confirmed = BTreeSet::new();
        loop {
            self.env.clock.sleep(CONFIRM_EVERY).await;
            let is_broken = self.env.breaks(Broken::ConfirmsNoStep);
            if run.workflow.atomic || run.store.is_far() || is_broken {
                continue;
            }
            for path in run.committed_paths() {
                if confirmed.contains(&path) {
                    continue;
                }
                match run.store.confirm_step(run.address(&path)).await {
                    Ok(()) => drop(confirmed.insert(path)),
                    Err(error) => {
                        tracing::debug!(run = %run.id, %error, "a step is confirmed later");
                    }
                }
            }
        }
    }

    /// Executes the code or the graph of a run.
    async fn walk(&self, run: &Arc<Run>) -> Result<Bytes, Failure> {
        let input = run.input.clone();
        if let Some(function) = &run.workflow.function {
            let step = graph::plain_step(function);
            self.step(run, &step, "0".to_owned(), input, None).await
        } else {
            let walk = Walk {
                executor: self,
                run,
            };
            graph::sequence(&walk, &run.workflow.steps, String::new(), input).await
        }
    }
}

/// One run, as its graph sees it.
#[derive(Debug)]
struct Walk<'a> {
    executor: &'a Executor,
    run: &'a Arc<Run>,
}

impl Steps for Walk<'_> {
    fn execute<'a>(
        &'a self,
        step: &'a Step,
        path: String,
        input: Bytes,
    ) -> BoxFuture<'a, Result<Bytes, Failure>> {
        self.executor
            .step(self.run, step, path, input, None)
            .boxed()
    }

    fn check_length(&self, path: &str, bytes: usize) -> Result<(), Failure> {
        self.run.check_length(path, bytes)
    }
}
