//! How a run is cancelled (W6), here or by the process that executes it.

use transactions::model::Isolation;

use super::Scheduler;
use crate::{
    Broken, Error, Result,
    model::{RunKey, StepAddress},
    placement::StoreLocation,
    storage::{RunRow, Status, Store},
};

/// The outcome of a cancellation.
#[derive(Debug)]
pub(super) enum End {
    /// The run has ended.
    Written,
    /// The transaction of an atomic run has committed, and only its end is missing.
    Committed,
    /// Another process executes the run, as this row says, or did so a moment ago.
    Elsewhere(RunRow),
}

impl Scheduler {
    /// Stops a run and ends it, here or at the process that executes it. A run that cannot be ended
    /// continues.
    pub(crate) async fn end(&self, key: RunKey, location: StoreLocation) -> Result<()> {
        while let Some(row) = self.end_here(&key, &location).await? {
            let elsewhere = self.end_elsewhere(&key, &location, &row).await;
            if elsewhere.is_err()
                && let Some(claim) = self.inner.claims.claim(&key)
            {
                // This process may have stopped it a moment ago.
                self.execute(claim, location.clone(), None);
            }
            elsewhere?;
        }
        Ok(())
    }

    /// The same, unless another process executes the run: then returns its row.
    async fn end_here(&self, key: &RunKey, location: &StoreLocation) -> Result<Option<RunRow>> {
        if self.inner.env.breaks(Broken::GoesOnAfterCancelling) {
            return self.end_claimed(key, location).await.map(|_| None);
        }
        let claim = self.inner.claims.seize(key).await;
        let ended = self.end_claimed(key, location).await;
        if matches!(ended, Ok(End::Committed) | Err(_)) {
            self.execute(claim, location.clone(), None);
        }
        Ok(match ended? {
            End::Elsewhere(row) => Some(row),
            End::Written | End::Committed => None,
        })
    }

    /// Ends a run, for the holder of its claim.
    pub(super) async fn end_claimed(
        &self,
        (name, id): &RunKey,
        location: &StoreLocation,
    ) -> Result<End> {
        let store = self.inner.placement.store(location).await?;
        let Some(seen) = store.active_run(name, id).await? else {
            return Ok(End::Written);
        };
        let row = match store.take((name, id), seen.clone()).await {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(End::Elsewhere(seen)),
            // Whether its driver is alive is not known yet. We ask the driver meanwhile.
            Err(error) if error.is_transient() && seen.driver.is_some() => {
                return Ok(End::Elsewhere(seen));
            }
            Err(error) => return Err(error),
        };
        if has_committed(&store, (name, id), &row).await? {
            return Ok(End::Committed);
        }
        // An outcome that callers were told stays.
        let noted = store.refused(name, id, row.began_ms).await?;
        let row = noted.map_or_else(|| self.cancelled(row), |(refused, _)| refused);
        match store.end_run(name, id, &row).await {
            Ok(_) => {
                self.inner.executor.figures.lock().count_end(row.status);
                if let Some(gone) = seen.driver.filter(|seen| Some(*seen) != row.driver) {
                    store.withdraw_end((name, id), gone, row.began_ms).await?;
                }
                Ok(End::Written)
            }
            Err(Error::RunEnded) => Ok(match store.active_run(name, id).await? {
                // Another process has taken it a moment ago.
                Some(there) if there.began_ms == row.began_ms => End::Elsewhere(there),
                _ => End::Written,
            }),
            Err(error) => Err(error),
        }
    }

    fn cancelled(&self, row: RunRow) -> RunRow {
        RunRow {
            status: Status::Cancelled,
            output: None,
            ended_ms: Some(self.inner.env.now_ms()),
            ..row
        }
    }
}

/// Whether an atomic run has committed; if not, it can no longer commit.
async fn has_committed(store: &Store, (name, id): (&str, &str), row: &RunRow) -> Result<bool> {
    if !store.given(name, id).await?.workflow.atomic {
        return Ok(false);
    }
    let run = StepAddress {
        workflow: name,
        run: id,
        began_ms: row.began_ms,
        driver: row.driver,
        path: "",
    };
    let begun = store.begin_atomic(run, Isolation::default()).await?;
    Ok(begun.is_none())
}
