//! Executes runs: walks their graph, tries their steps until they commit, and writes their end.

mod atomic;
mod step;
mod walk;

use std::{
    collections::BTreeSet, convert::Infallible, future::poll_fn, pin::pin, sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use functions::stop::Advance;
use parking_lot::Mutex;
use transactions::Engine;

use crate::{
    Broken, Error, Figures, Result, Runner,
    env::Env,
    failure::Failure,
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
    /// Without the active runs.
    pub(crate) figures: Mutex<Figures>,
    pub(crate) engine: Engine,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Execution {
    Ended,
    /// It stopped, and is to be resumed from its rows.
    Stopped,
}

impl Executor {
    /// Executes a run to its end, and stores its outcome.
    pub(crate) async fn execute(&self, run: &Arc<Run>) -> Execution {
        let mut advance = self.env.stop.advance();
        let result = tokio::select! {
            biased;
            result = self.attempt_counted(run, &mut advance) => result,
            () = self.env.clock.sleep(self.time_left(run)) => {
                let why = format!("the run took longer than {} s", run.workflow.timeout_s);
                Err(Failure::new("", "Workflow.TimedOut", &why))
            }
            never = self.confirm_steps(run) => match never {},
        };
        // The run may have paused until its time was over.
        advance.set(true);
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

    /// Executes a run up to its result, and keeps in `advance` whether it advances.
    async fn attempt_counted(
        &self,
        run: &Arc<Run>,
        advance: &mut Advance<'_>,
    ) -> std::result::Result<Bytes, Failure> {
        let mut attempt = pin!(self.attempt_run(run));
        poll_fn(|context| {
            let polled = attempt.as_mut().poll(context);
            advance.set(polled.is_ready() || !run.pauses.is_paused());
            polled
        })
        .await
    }

    fn time_left(&self, run: &Run) -> Duration {
        let elapsed_ms = self.env.now_ms().saturating_sub(run.row.began_ms);
        let timeout = run.workflow.timeout();
        timeout.saturating_sub(Duration::from_millis(elapsed_ms))
    }

    async fn end(&self, run: &Run, row: &RunRow) -> Execution {
        let end = || run.store.end_run(&run.name, &run.id, row);
        let ended = match run.retry(end).await {
            Err(error) if error.is_permanent() => {
                self.fail(run, &error).await.map(|()| Status::Failed)
            }
            ended => ended.map(|_| row.status),
        };
        match ended {
            Ok(status) => {
                self.figures.lock().count_end(status);
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
        let end = || async {
            let store = self.placement.store(&run.location).await?;
            match store.end_run(&run.name, &run.id, &row).await {
                // The store has refused the run's own row, too.
                Err(error) if error.is_permanent() && store.is_far() => {
                    let store = self.placement.store(&run.location).await?;
                    store.note_refused(&run.name, &run.id, &row).await
                }
                ended => ended.map(drop),
            }
        };
        run.retry(end).await
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
                if let Err(error) = run.store.confirm_step(run.address(&path)).await {
                    tracing::debug!(run = %run.id, %error, "a step is confirmed later");
                    continue;
                }
                confirmed.insert(path);
            }
        }
    }
}
