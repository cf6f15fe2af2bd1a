//! How runs are resumed from their rows (W4).

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};

use super::{Scheduler, end::End};
use crate::{Result, model::RunKey, placement::StoreLocation, run::Run};

/// The wait before a stopped run is loaded again.
const RELOAD_AFTER: Duration = Duration::from_secs(1);
/// How many runs are resumed at a time: each takes several calls to the store, one after the other.
const RESUMED_AT_ONCE: usize = 16;

impl Scheduler {
    /// Resumes all runs of a store. A run that cannot be resumed does not hold up the others.
    /// Errors: of the first such run.
    pub(super) async fn resume_all(&self, location: &StoreLocation) -> Result<()> {
        let store = self.inner.placement.store(location).await?;
        let mut all = Ok(());
        for workflow in store.listed().await? {
            let runs = stream::iter(store.active(&workflow).await?);
            let mut resumed = runs
                .map(|run| self.resume((workflow.clone(), run), location))
                .buffer_unordered(RESUMED_AT_ONCE);
            while let Some(one) = resumed.next().await {
                all = all.and(one);
            }
        }
        all
    }

    /// Resumes a run, unless a task of this process executes it. A task that executes it for an
    /// earlier node of this process is replaced.
    pub(super) async fn resume(&self, key: RunKey, location: &StoreLocation) -> Result<()> {
        let inner = &self.inner;
        let own = inner.placement.store(location).await?.own_driver()?;
        let claim = match inner.claims.claim(&key) {
            Some(claim) => claim,
            None if inner.claims.is_executed_as(&key, own) => return Ok(()),
            None => inner.claims.seize(&key).await,
        };
        if let Some(run) = self.load(&key, location).await? {
            self.execute(claim, location.clone(), Some(run));
        }
        Ok(())
    }

    /// Loads a run from its rows, for the holder of its claim; none: it has ended, or another process
    /// executes it.
    pub(super) async fn load(
        &self,
        key: &RunKey,
        location: &StoreLocation,
    ) -> Result<Option<Arc<Run>>> {
        let (name, id) = key;
        let store = self.inner.placement.store(location).await?;
        let Some(row) = store.active_run(name, id).await? else {
            return Ok(None);
        };
        if let Some((refused, _)) = store.refused(name, id, row.began_ms).await? {
            // The far store had refused the run's rows. They may be gone with the near store, or be
            // accepted now. The outcome that callers were told stays.
            return match store.end_run(name, id, &refused).await {
                Err(error) if error.is_transient() || error.ends_execution() => Err(error),
                _ => Ok(None),
            };
        }
        let row = match self.end_on_request(key, location, (&store, &row)).await? {
            None => Some(row),
            // The run has committed, and only its end is missing.
            Some(End::Committed) => store.active_run(name, id).await?,
            Some(_) => None,
        };
        let Some(row) = row else { return Ok(None) };
        let Some(row) = store.take((name, id), row).await? else {
            return Ok(None);
        };
        let given = store.given(name, id).await?;
        let journal = store.steps(name, id, row.began_ms).await?;
        let place = (location.clone(), store);
        Ok(Some(Run::new(
            &self.inner.env,
            key.clone(),
            (row, given),
            place,
            journal,
        )))
    }

    /// Loads a stopped run after a wait, with as many attempts as it takes; none: it has ended, or
    /// another process executes it.
    pub(super) async fn reload(&self, key: &RunKey, location: &StoreLocation) -> Option<Arc<Run>> {
        let inner = &self.inner;
        loop {
            inner.env.clock.sleep(RELOAD_AFTER).await;
            let loaded = self.load(key, location).await;
            let now = inner.env.clock.monotonic();
            let mut log = inner.stopped_log.lock();
            match loaded {
                Ok(run) => {
                    log.ended(now);
                    return run;
                }
                Err(error) => {
                    if let Some(lasts) = log.failed(now, &error.to_string()) {
                        let (workflow, run) = key;
                        tracing::warn!(
                            %workflow, %run, %error, ?lasts,
                            "stopped runs wait to be resumed, such as this one"
                        );
                    }
                }
            }
        }
    }
}
