//! Atomic runs: one transaction around all steps (W5).
//!
//! Steps commit in an overlay. When the last step has ended, its content is written and committed.
//! The transaction is named after the run. A begin under that name, here or after a death, either
//! reports that the run has committed, or makes the commit of every earlier begin impossible (rule
//! T-5). The output is in the run's row before the transaction commits.
//!
//! A transaction may be lost: it took too long, its snapshot was collected, or another transaction
//! has written what it has read (W10). Then all steps run again, even if a step was told of the loss
//! and failed for it.

use std::sync::Arc;

use bytes::Bytes;
use functions::manifest::workflow::Isolation as Wanted;
use transactions::model::{Call, Isolation};

use super::Executor;
use crate::{
    Broken, Error, Result,
    env::RETRY,
    failure::Failure,
    run::{Lost, Run},
};

/// The most attempts of an atomic run that lose their transaction.
const LOST_MAX: u32 = 10;
/// The most attempts that end in a conflict. Of runs that conflict with each other, one commits each
/// time.
const CONFLICTS_MAX: u32 = 100;

/// How an attempt of an atomic run ended without a commit.
enum Undone {
    Failure(Failure),
    Lost(Lost),
}

impl Executor {
    /// Walks the run; an atomic one until its transaction has committed.
    pub(super) async fn attempt_run(&self, run: &Arc<Run>) -> Result<Bytes, Failure> {
        if !run.workflow.atomic {
            return self.walk(run).await;
        }
        let (mut lost, mut conflicts, mut delays) = (0, 0, RETRY.delays());
        loop {
            let why = match self.attempt_atomic(run).await {
                Ok(output) => return Ok(output),
                Err(Undone::Failure(failure)) => return Err(failure),
                Err(Undone::Lost(Lost::Conflict)) => {
                    conflicts += 1;
                    "others have written what it has read".to_owned()
                }
                Err(Undone::Lost(Lost::Ended(why))) => {
                    lost += 1;
                    why
                }
            };
            tracing::debug!(run = %run.id, why, "an atomic run starts over");
            if lost == LOST_MAX || conflicts == CONFLICTS_MAX {
                let lost = format!("its transaction was lost {} times", lost + conflicts);
                let why = format!("{lost}, the last time for this: {why}");
                return Err(Failure::new("", "Workflow.TransactionFailed", &why));
            }
            self.env.pause(&mut delays).await;
        }
    }

    async fn attempt_atomic(&self, run: &Arc<Run>) -> Result<Bytes, Undone> {
        let isolation = match run.workflow.isolation {
            Wanted::Serializable if !self.env.breaks(Broken::IsolatesNoRun) => {
                Isolation::Serializable
            }
            _ => Isolation::ReadAtomic,
        };
        // None: the run has committed, and only its end is missing.
        let Some(call) = begin_atomic(run, isolation).await? else {
            return stored_output(run).await;
        };
        let overlay = run.start_over(&call);
        let walked = self.walk(run).await;
        if let Some(lost) = run.lost.lock().take() {
            return Err(Undone::Lost(lost));
        }
        let output = walked?;
        let (store, address) = (&run.store, run.address(""));
        let committed = store.commit_atomic(address, &call, &output, overlay.close());
        match committed.await {
            Ok(point) => {
                run.saw(point);
                Ok(output)
            }
            Err(Error::RunEnded) => Err(Failure::Stopped.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// The outcome of an atomic run that is about to end with `failure` while its commit may be under
    /// way. Either it has succeeded, or it can no longer commit (W5).
    pub(super) async fn unless_committed(
        &self,
        run: &Run,
        failure: Bytes,
    ) -> Result<Bytes, Failure> {
        match begin_atomic(run, Isolation::default()).await {
            Ok(None) => stored_output(run).await.map_err(|_| Failure::Stopped),
            Ok(Some(_)) => Err(Failure::Failed(failure)),
            // The commit's outcome is unknown, for example because this process is another node
            // now. The process that resumes the run asks again.
            Err(error) => {
                tracing::debug!(
                    run = %run.id, %error,
                    "whether an atomic run has committed is not known yet"
                );
                Err(Failure::Stopped)
            }
        }
    }
}

async fn begin_atomic(run: &Run, isolation: Isolation) -> Result<Option<Call>> {
    let begin = || run.store.begin_atomic(run.address(""), isolation);
    run.retry(begin).await
}

/// The output that an atomic run stored before it committed.
async fn stored_output(run: &Run) -> Result<Bytes, Undone> {
    let row = run.store.run(&run.name, &run.id).await;
    let (row, point) = row.ok().flatten().ok_or(Failure::Stopped)?;
    run.saw(point);
    Ok(row.output.unwrap_or_default())
}

impl From<Failure> for Undone {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Why the transaction of an atomic run was refused.
impl From<Error> for Undone {
    fn from(error: Error) -> Self {
        if matches!(error, Error::AttemptEnded) {
            return Failure::Stopped.into();
        }
        if error.is_permanent() {
            return Failure::of("", "Workflow.NotWritten", &error).into();
        }
        Self::Lost(Lost::of(&error))
    }
}
