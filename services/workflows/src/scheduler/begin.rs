//! How a run begins (W1).

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;

use super::{
    Scheduler,
    claims::{Busy, Claim},
};
use crate::{
    Broken, Error, Result,
    model::RunKey,
    placement::StoreLocation,
    run::Run,
    storage::{Given, RunRow},
};

/// The time between two checks for a run whose begin has an unknown outcome, and whose row did not
/// exist at the last check.
const LATE_BEGIN_CHECK_EVERY: Duration = Duration::from_secs(2);
/// How many such checks follow. If a store completes the begin even later, the run starts once it is
/// begun again, or with the next start.
const LATE_BEGIN_CHECKS: u32 = 5;

impl Scheduler {
    /// Begins a run, unless it has begun. `is_client_id`: the client chose its id, so another store
    /// of the workflow may have the run.
    pub(crate) async fn begin(&self, key: RunKey, is_client_id: bool, input: Bytes) -> Result<()> {
        let inner = &self.inner;
        let (name, id) = &key;
        let workflow = inner.executor.runner.workflow(name);
        let workflow = workflow.ok_or_else(|| Error::NoSuchWorkflow(name.clone()))?;
        let claim = match inner.claims.claim_or_wait(&key).await {
            Ok(claim) => claim,
            Err(Busy::InDoubt) if !inner.env.breaks(Broken::TakesDoubtForBegun) => {
                let what = "find out whether this run was begun before";
                return Err(ports::Error::unavailable(what).into());
            }
            Err(_) => return Ok(()),
        };
        // The claim of this run is among them.
        if inner.claims.len() > inner.env.options.runs_max {
            return Err(Error::TooManyRuns);
        }
        let location = inner.placement.of(&workflow);
        let store = inner.placement.store(&location).await?;
        if input.len() > store.bytes_max() {
            let most = store.bytes_max();
            let say = format!("an input has {most} bytes at most");
            return Err(Error::TooLarge(say));
        }
        if is_client_id && inner.placement.exists_elsewhere(&key, &location).await? {
            return Ok(());
        }
        inner.placement.list(&store, name, &workflow).await?;
        let row = RunRow::begun(inner.env.now_ms(), store.own_driver()?);
        let workflow = (*workflow).clone();
        let given = Given { input, workflow };
        let (existing, point) = match store.begin_run(name, id, &row, &given).await {
            // The row may exist, now or later, and the caller may not come back.
            Err(error) if error.is_transient() => {
                self.execute(claim, location.clone(), None);
                if error.is_outcome_unknown() {
                    self.check_for_late_begin(key, location);
                }
                return Err(error);
            }
            begun => begun?,
        };
        if existing.is_some() {
            return self.join_begun(claim, location).await;
        }
        inner.executor.figures.lock().begun += 1;
        let place = (location.clone(), store);
        let run = Run::new(
            &inner.env,
            key,
            (row, given),
            place,
            (BTreeMap::new(), point),
        );
        self.execute(claim, location, Some(run));
        Ok(())
    }

    /// Executes a run that an earlier begin has begun, whose response was lost.
    async fn join_begun(&self, claim: Claim, location: StoreLocation) -> Result<()> {
        let loaded = self.load(&claim.key, &location).await;
        match loaded {
            // The run has begun. A task finds out whether another process executes it.
            Err(error) if error.is_transient() => self.execute(claim, location, None),
            loaded => {
                if let Some(run) = loaded? {
                    self.execute(claim, location, Some(run));
                }
            }
        }
        Ok(())
    }

    /// Resumes a run whose begin a store completes after its row was read.
    fn check_for_late_begin(&self, key: RunKey, location: StoreLocation) {
        let scheduler = self.clone();
        self.spawn(async move {
            for _ in 0..LATE_BEGIN_CHECKS {
                let clock = &scheduler.inner.env.clock;
                clock.sleep(LATE_BEGIN_CHECK_EVERY).await;
                if let Err(error) = scheduler.resume(key.clone(), &location).await {
                    tracing::debug!(
                        workflow = %key.0, run = %key.1, %error,
                        "whether a run has begun is checked again"
                    );
                }
            }
        });
    }
}
