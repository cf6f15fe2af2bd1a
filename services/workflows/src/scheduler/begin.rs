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
    same_json::is_same_json,
    storage::{Given, RunRow, Store},
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
        let Some(claim) = self.claim(&key, &input).await? else {
            return Ok(());
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
        if is_client_id
            && let Some(store) = inner.placement.found_elsewhere(&key, &location).await?
        {
            return self.check_input(&store, &key, &input).await;
        }
        inner.placement.list(&store, name, &workflow).await?;
        let row = RunRow::begun(inner.env.now_ms(), store.own_driver()?);
        let workflow = (*workflow).clone();
        let given = Given {
            input: input.clone(),
            workflow,
        };
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
            self.join_begun(claim, location).await?;
            return self.check_input(&store, &key, &input).await;
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

    /// The claim of a run that is to begin with `input`. None: the run has begun with it.
    ///
    /// Errors: `InputDiffers`; `Port` while the outcome of an earlier begin is unknown.
    async fn claim(&self, key: &RunKey, input: &[u8]) -> Result<Option<Claim>> {
        let inner = &self.inner;
        match inner.claims.claim_or_wait(key).await {
            Ok(claim) => Ok(Some(claim)),
            Err(Busy::InDoubt) if !inner.env.breaks(Broken::TakesDoubtForBegun) => {
                let what = "find out whether this run was begun before";
                Err(ports::Error::unavailable(what).into())
            }
            Err(Busy::InDoubt) => Ok(None),
            Err(Busy::Executing(run)) => {
                if is_same_json(&run.input, input) {
                    return Ok(None);
                }
                run.externalize().await?;
                Err(Error::InputDiffers(key.1.clone()))
            }
        }
    }

    /// Errors: `InputDiffers` if the existing run has begun with another input. The input is kept
    /// for as long as the run.
    async fn check_input(&self, store: &Store, (name, id): &RunKey, input: &[u8]) -> Result<()> {
        match store.input(name, id).await? {
            Some((existing, point)) if !is_same_json(&existing, input) => {
                store.externalize(point).await?;
                Err(Error::InputDiffers(id.clone()))
            }
            // Without an input the run was forgotten a moment ago.
            _ => Ok(()),
        }
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
