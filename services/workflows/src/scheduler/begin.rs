//! How a run begins (W1).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use functions::manifest::workflow::Workflow;
use ports::DurabilityPoint;

use super::{
    Scheduler,
    claims::{Busy, Claim},
};
use crate::{
    Broken, Error, Result,
    model::RunKey,
    placement::StoreLocation,
    run::Run,
    storage::{Given, RunRow, Status, Store},
};

/// The time between two checks for a run whose begin has an unknown outcome, and whose row did not
/// exist at the last check.
const LATE_BEGIN_CHECK_EVERY: Duration = Duration::from_secs(2);
/// How many such checks follow. If a store completes the begin even later, the run starts once it is
/// begun again, or with the next start.
const LATE_BEGIN_CHECKS: u32 = 5;

/// The rows of a begin.
struct Begun {
    /// The rows that it has written, or tried to.
    rows: (RunRow, Given),
    /// The row that existed before.
    existing: Option<RunRow>,
    point: DurabilityPoint,
}

impl Scheduler {
    /// Begins a run, unless it has begun. `is_client_id`: the client chose its id, so another store
    /// of the workflow may have the run.
    pub(crate) async fn begin(&self, key: RunKey, is_client_id: bool, input: Bytes) -> Result<()> {
        let inner = &self.inner;
        let (name, id) = &key;
        let workflow = inner.executor.runner.workflow(name);
        let workflow = workflow.ok_or_else(|| Error::NoSuchWorkflow(name.clone()))?;
        let Some(claim) = self.claim_to_begin(&key).await? else {
            return Ok(());
        };
        // The claim of this run is among them.
        if inner.claims.len() > inner.env.options.runs_max {
            return Err(Error::TooManyRuns);
        }
        let location = inner.placement.of(&workflow);
        let store = inner.placement.store(&location).await?;
        check_input(&input, &store)?;
        if is_client_id && inner.placement.exists_elsewhere(&key, &location).await? {
            return Ok(());
        }
        inner.placement.list(&store, name, &workflow).await?;
        let begun = match self.write_begin((name, id), &store, &workflow, input).await {
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
        self.start_begun(claim, (location, store), begun).await
    }

    /// Claims a run that is to begin; none: it has begun.
    async fn claim_to_begin(&self, key: &RunKey) -> Result<Option<Claim>> {
        match self.inner.claims.claim_or_wait(key).await {
            Ok(claim) => Ok(Some(claim)),
            Err(Busy::InDoubt) if !self.inner.env.breaks(Broken::TakesDoubtForBegun) => {
                Err(ports::Error::unavailable("find out whether this run was begun before").into())
            }
            Err(Busy::Executing | Busy::InDoubt) => Ok(None),
        }
    }

    async fn write_begin(
        &self,
        (name, id): (&str, &str),
        store: &Store,
        workflow: &Arc<Workflow>,
        input: Bytes,
    ) -> Result<Begun> {
        let row = RunRow::begun(self.inner.env.now_ms(), store.own_driver()?);
        let given = Given {
            input,
            workflow: (**workflow).clone(),
        };
        let (existing, point) = store.begin_run(name, id, &row, &given).await?;
        Ok(Begun {
            rows: (row, given),
            existing,
            point,
        })
    }

    async fn start_begun(
        &self,
        claim: Claim,
        (location, store): (StoreLocation, Store),
        begun: Begun,
    ) -> Result<()> {
        let key = claim.key().clone();
        let run = match begun.existing {
            None => {
                self.inner.executor.counters.began();
                let journal = (BTreeMap::new(), begun.point);
                Some(Run::new(
                    key,
                    begun.rows,
                    (location.clone(), store),
                    journal,
                ))
            }
            // An earlier begin succeeded, and its response was lost.
            Some(existing) if existing.status == Status::Running => {
                match self.load(key, existing, (&location, store)).await {
                    // The run has begun. A task finds out whether another process executes it.
                    Err(error) if error.is_transient() => {
                        self.execute(claim, location, None);
                        return Ok(());
                    }
                    loaded => loaded?,
                }
            }
            Some(_) => None,
        };
        if let Some(run) = run {
            self.execute(claim, location, Some(run));
        }
        Ok(())
    }

    /// Resumes a run whose begin a store completes after its row was read.
    fn check_for_late_begin(&self, key: RunKey, location: StoreLocation) {
        let (handle, clock) = (self.handle(), Arc::clone(&self.inner.env.clock));
        self.spawn(async move {
            for _ in 0..LATE_BEGIN_CHECKS {
                clock.sleep(LATE_BEGIN_CHECK_EVERY).await;
                let Some(scheduler) = handle.upgrade() else {
                    return;
                };
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

fn check_input(input: &Bytes, store: &Store) -> Result<()> {
    let most = store.bytes_max();
    if input.len() > most {
        return Err(Error::TooLarge(format!(
            "an input has {most} bytes at most"
        )));
    }
    Ok(())
}
