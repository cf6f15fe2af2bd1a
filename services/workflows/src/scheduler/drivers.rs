//! Which process executes a run that is stored near, where several processes share the near store.
//!
//! A run's row names its driver: the node of transactions that executes the run. Other processes
//! leave the run to its driver while that lives. After a member of the cluster has gone, each process
//! reads the active runs, and takes those whose driver is gone by a conditional change of the row. A
//! process that has started over is another node. It stops its runs before their next step commits,
//! and takes them again unless another process has.
//!
//! A process that is asked to end another one's run stores a request for its driver, and waits. The
//! request stays until the run has ended. So a process that takes the run over from its driver ends
//! it, even if the caller no longer waits.
//!
//! A process that shares its store with no other sets no driver. A shard has one owner, which
//! executes all runs in it.
//!
//! Invariants
//! - The driver of a run changes only after the previous driver is gone and can commit nothing more.
//! - Every transaction of a run is begun by its driver. A commit without a transaction has the
//!   condition that the run is active and still that driver's. So no commit of an ended run, or of a
//!   previous driver, takes effect.
//! - Only its driver ends a run, after it has waited for commits under way.

use std::time::Duration;

use transactions::model::NodeId;

use super::{Scheduler, end::End};
use crate::{
    Result,
    env::RETRY,
    model::RunKey,
    placement::StoreLocation,
    storage::{RunRow, Store},
};

/// The time between two reads of the requests to end runs, while this process executes some.
const POLL_EVERY: Duration = Duration::from_millis(250);
/// The same while it executes none.
const POLL_IDLE_EVERY: Duration = Duration::from_secs(2);

impl Scheduler {
    /// Resumes the runs whose drivers are gone, and ends the runs that other processes ask this one
    /// to end, until the scheduler stops.
    pub(super) fn start_driving(&self) {
        let scheduler = self.clone();
        self.spawn(async move {
            // Resumes the runs of the near store each time the members of the cluster have changed.
            let mut view = 0;
            loop {
                view = scheduler.inner.executor.engine.members_changed(view).await;
                scheduler.resume_until_done(&StoreLocation::Near).await;
            }
        });
        let scheduler = self.clone();
        self.spawn(async move {
            loop {
                if let Err(error) = scheduler.end_requested().await {
                    tracing::debug!(%error, "requests to end runs are read again later");
                }
                let is_idle = scheduler.inner.claims.len() == 0;
                let wait = if is_idle { POLL_IDLE_EVERY } else { POLL_EVERY };
                scheduler.inner.env.clock.sleep(wait).await;
            }
        });
    }

    /// Ends the runs that other processes ask this one to end.
    async fn end_requested(&self) -> Result<()> {
        let store = self.inner.placement.store(&StoreLocation::Near).await?;
        let Some(own) = store.own_driver()? else {
            return Ok(());
        };
        for (key, began_ms) in store.requested_ends(own).await? {
            let ended = self.end_as_requested(&store, own, (&key, began_ms));
            // A run that cannot be ended does not hold up the others.
            if let Err(error) = ended.await {
                let (workflow, run) = key;
                tracing::debug!(%workflow, %run, %error, "a request to end a run is repeated");
            }
        }
        Ok(())
    }

    async fn end_as_requested(
        &self,
        store: &Store,
        own: NodeId,
        (key, began_ms): (&RunKey, u64),
    ) -> Result<()> {
        let row = store.active_run(&key.0, &key.1).await?;
        match row.filter(|row| row.began_ms == began_ms) {
            // This process may take the run over later.
            Some(row) if row.driver != Some(own) => return Ok(()),
            Some(_) => self.end(key.clone(), StoreLocation::Near).await?,
            None => {}
        }
        store.withdraw_end((&key.0, &key.1), own, began_ms).await
    }

    /// Ends a run whose driver was asked to end it and is gone, for the holder of its claim. None:
    /// there is no such request, or the driver may be alive. If this process takes the run over a
    /// moment later all the same, it finds the request addressed to itself.
    pub(super) async fn end_on_request(
        &self,
        key: &RunKey,
        location: &StoreLocation,
        (store, row): (&Store, &RunRow),
    ) -> Result<Option<End>> {
        let names = (key.0.as_str(), key.1.as_str());
        let (Some(driver), Some(own)) = (row.driver, store.own_driver()?) else {
            return Ok(None);
        };
        if !store.is_end_requested(names, driver, row.began_ms).await? {
            return Ok(None);
        }
        // The request for this process comes before the run is its own: it may die in between.
        store.request_end(names, own, row.began_ms).await?;
        let end = self.end_claimed(key, location).await?;
        if matches!(end, End::Elsewhere(_)) {
            return Ok(None);
        }
        for node in [driver, own] {
            store.withdraw_end(names, node, row.began_ms).await?;
        }
        Ok(Some(end))
    }

    /// Asks the driver of a run to end it. Returns once it has, or is no longer its driver.
    pub(super) async fn end_elsewhere(
        &self,
        (workflow, run): &RunKey,
        location: &StoreLocation,
        row: &RunRow,
    ) -> Result<()> {
        let Some(driver) = row.driver else {
            return Ok(());
        };
        let store = self.inner.placement.store(location).await?;
        let names = (workflow.as_str(), run.as_str());
        let (mut delays, mut is_requested) = (RETRY.delays(), false);
        loop {
            if !is_requested {
                is_requested = match store.request_end(names, driver, row.began_ms).await {
                    Err(error) if !error.is_transient() => return Err(error),
                    requested => requested.is_ok(),
                };
            }
            self.inner.env.pause(&mut delays).await;
            let is_it = |now: &RunRow| (now.driver, now.began_ms) == (Some(driver), row.began_ms);
            let now = store.active_run(workflow, run).await;
            let is_driving = now.map_or(true, |now| now.as_ref().is_some_and(is_it));
            if !is_driving {
                break;
            }
            // While the answer is unknown we ask again. If the driver is gone, the request stays for
            // the process that takes the run over.
            if store.is_gone(driver).await.is_ok_and(|is_gone| is_gone) {
                return Ok(());
            }
        }
        if let Err(error) = store.withdraw_end(names, driver, row.began_ms).await {
            tracing::debug!(%workflow, %run, %error, "a request to end a run stays");
        }
        Ok(())
    }
}
