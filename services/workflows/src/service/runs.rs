//! Runs and their steps, as callers see them.
//!
//! A far store may refuse the row of a run permanently. Then no later write of that key can follow,
//! and the row may say that the run has succeeded. So a note beside the row says that the run has
//! failed. The note applies while the row is refused, or has no end. If a later start gets the row
//! stored after all, the row applies.

use std::time::Duration;

use futures_util::future::BoxFuture;
use ports::DurabilityPoint;

use super::{
    Service, check_id,
    response::AwaitedStore,
    view::{RunView, StepView},
};
use crate::{
    Error, Result,
    model::RunKey,
    placement::StoreLocation,
    storage::{RunRow, Status, Store},
};

/// Runs in one response.
const PAGE_RUNS: usize = 100;
/// The wait before we check again whether a run has been resumed.
const CHECK_AGAIN: Duration = Duration::from_millis(50);
/// How long a stop may take to learn whether a run has ended. The connections end soon after.
const LAST_LOOK_MAX: Duration = Duration::from_secs(1);

/// A run, and where it is stored.
#[derive(Debug)]
pub(super) struct FoundRun {
    pub(super) location: StoreLocation,
    pub(super) row: RunRow,
    store: Store,
    point: DurabilityPoint,
}

impl Service {
    /// A run, once its view is durable (W3).
    pub fn run<'a>(&'a self, name: &'a str, id: &'a str) -> BoxFuture<'a, Result<RunView>> {
        Box::pin(async move { self.run_within(Duration::ZERO, name, id).await })
    }

    async fn run_within(&self, most: Duration, name: &str, id: &str) -> Result<RunView> {
        let awaited = AwaitedStore::default();
        let view = Box::pin(self.view(name, id, &awaited));
        let late = || self.late(&awaited);
        self.within(most, late, view).await
    }

    async fn view(&self, name: &str, id: &str, awaited: &AwaitedStore) -> Result<RunView> {
        let found = self.find(name, id, awaited).await?;
        let (location, store) = (found.location, found.store);
        match store.externalize(found.point).await {
            Err(error) if store.is_far() && error.is_permanent() => {}
            externalized => {
                externalized?;
                return self.view_durable(&location, (name, id), found.row).await;
            }
        }
        // That lane may depend on more than the run: see [`Outbox::clean_lane`].
        let store = store.with_clean_lane().await?;
        let found = store.run(name, id).await?;
        let (row, point) = found.ok_or_else(|| Error::NoSuchRun(id.to_owned()))?;
        match store.externalize(point).await {
            Err(refused) if refused.is_permanent() => {
                self.note_and_view(&location, (name, id), &row, refused)
                    .await
            }
            externalized => {
                externalized?;
                self.view_durable(&location, (name, id), row).await
            }
        }
    }

    /// A run whose row is durable. If it is active and noted as refused, the process that resumes it
    /// will end it.
    async fn view_durable(
        &self,
        location: &StoreLocation,
        (name, id): (&str, &str),
        row: RunRow,
    ) -> Result<RunView> {
        if matches!(location, StoreLocation::Far(_)) && row.status == Status::Running {
            // In a lane that has read nothing else of the run.
            let store = self.executor.placement.store(location).await?;
            if let Some((row, point)) = store.refused(name, id, row.began_ms).await? {
                store.externalize(point).await?;
                return Ok(RunView::of(id.to_owned(), &row));
            }
        }
        Ok(RunView::of(id.to_owned(), &row))
    }

    /// Notes that a run has failed whose `row` the far store has refused, and returns that once it
    /// is durable.
    async fn note_and_view(
        &self,
        location: &StoreLocation,
        (name, id): (&str, &str),
        row: &RunRow,
        refused: Error,
    ) -> Result<RunView> {
        let store = self.executor.placement.store(location).await?;
        let failed = row.refused(&refused, self.env().now_ms());
        store.note_refused(name, id, &failed).await?;
        let noted = store.refused(name, id, row.began_ms).await?;
        let (row, point) = noted.ok_or(refused)?;
        store.externalize(point).await?;
        Ok(RunView::of(id.to_owned(), &row))
    }

    /// Finds a run: first in the store of the deployed definition, and last in stores that other
    /// processes have listed. Errors: `NoSuchRun`, or why a store could not be searched.
    pub(super) async fn find(
        &self,
        name: &str,
        id: &str,
        awaited: &AwaitedStore,
    ) -> Result<FoundRun> {
        let known = self.executor.placement.known(name).unwrap_or_default();
        let missing = match self.find_in(&known, (name, id), awaited).await {
            Err(missing) => missing,
            found => return found,
        };
        let mut more = self.executor.placement.all(name).await?;
        more.retain(|location| !known.contains(location));
        match self.find_in(&more, (name, id), awaited).await {
            Err(Error::NoSuchRun(_)) => Err(missing),
            found => found,
        }
    }

    async fn find_in(
        &self,
        locations: &[StoreLocation],
        (name, id): (&str, &str),
        awaited: &AwaitedStore,
    ) -> Result<FoundRun> {
        let mut missing = Error::NoSuchRun(id.to_owned());
        for location in locations {
            awaited.set(location);
            let found = async {
                let Some(store) = self.executor.placement.store_to_search(location).await? else {
                    return Ok(None);
                };
                let row = store.run(name, id).await?;
                Ok(row.map(|(row, point)| FoundRun {
                    location: location.clone(),
                    row,
                    store,
                    point,
                }))
            };
            match found.await {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                // This store may have the run.
                Err(error) => missing = error,
            }
        }
        Err(missing)
    }

    /// The same once it has ended, or after `most`.
    pub fn wait<'a>(
        &'a self,
        name: &'a str,
        id: &'a str,
        most: Duration,
    ) -> BoxFuture<'a, Result<RunView>> {
        Box::pin(async move {
            tokio::select! {
                biased;
                view = self.wait_until_ended(name, id, most) => view,
                () = self.env().stop.interrupted(), if !most.is_zero() => {
                    self.ended_by_now(name, id).await
                }
            }
        })
    }

    /// A run that has ended by the time of the stop. Errors: `Stopped` for any other, also one whose
    /// end is not durable in time.
    async fn ended_by_now(&self, name: &str, id: &str) -> Result<RunView> {
        let view = tokio::select! {
            biased;
            view = self.run(name, id) => view.ok(),
            () = self.env().clock.sleep(LAST_LOOK_MAX) => None,
        };
        let ended = view.filter(|view| view.status != Status::Running);
        ended.ok_or_else(|| Error::Stopped(id.to_owned()))
    }

    async fn wait_until_ended(&self, name: &str, id: &str, most: Duration) -> Result<RunView> {
        let clock = &self.env().clock;
        let until = clock.monotonic() + most;
        let key: RunKey = (name.to_owned(), id.to_owned());
        loop {
            let ended = self.claims.watch_end(&key);
            let is_executed = ended.is_some();
            let left = until.since(clock.monotonic());
            if let Some(mut ended) = ended {
                tokio::select! {
                    biased;
                    _ = ended.wait_for(|ended| *ended) => {}
                    () = clock.sleep(left) => {}
                }
            }
            let left = until.since(clock.monotonic());
            let view = self.run_within(left, name, id).await?;
            if view.status != Status::Running || left.is_zero() {
                return Ok(view);
            }
            let has_stopped = || {
                let ended = self.claims.watch_end(&key);
                ended.is_some_and(|ended| *ended.borrow())
            };
            if !is_executed || has_stopped() {
                // It is being resumed.
                clock.sleep(CHECK_AGAIN.min(left)).await;
            }
        }
    }

    /// A page of a workflow's runs after `after`, in the order of their ids, and where the next page
    /// begins.
    pub fn runs<'a>(
        &'a self,
        name: &'a str,
        status: Option<Status>,
        after: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(Vec<RunView>, Option<String>)>> {
        Box::pin(async move {
            after.map(check_id).transpose()?;
            let awaited = AwaitedStore::default();
            let page = self.page((name, status, after), &awaited);
            self.in_time(&awaited, page).await
        })
    }

    async fn page(
        &self,
        (name, status, after): (&str, Option<Status>, Option<&str>),
        awaited: &AwaitedStore,
    ) -> Result<(Vec<RunView>, Option<String>)> {
        let mut rows = Vec::new();
        let mut until: Option<String> = None;
        for location in self.executor.placement.all(name).await? {
            awaited.set(&location);
            let Some(store) = self.executor.placement.store_to_search(&location).await? else {
                continue;
            };
            let here = store.runs(name, after, PAGE_RUNS).await?;
            store.externalize(here.point).await?;
            // After the last row of a full page there may be more, here and between rows of other
            // stores.
            let last = here.rows.last().filter(|_| here.has_more);
            until = until
                .into_iter()
                .chain(last.map(|(id, _)| id.clone()))
                .min();
            rows.extend(here.rows);
        }
        rows.retain(|(id, _)| until.as_ref().is_none_or(|until| id <= until));
        rows.sort_by(|(one, _), (other, _)| one.cmp(other));
        let wanted = rows
            .into_iter()
            .filter(|(_, row)| status.is_none_or(|status| row.status == status));
        let views = wanted.map(|(id, row)| RunView::listed(id, &row));
        Ok((views.collect(), until))
    }

    /// The committed steps of a run, in the order in which they ended.
    pub fn steps<'a>(&'a self, name: &'a str, id: &'a str) -> BoxFuture<'a, Result<Vec<StepView>>> {
        Box::pin(async move {
            let awaited = AwaitedStore::default();
            let steps = async {
                let FoundRun { store, row, .. } = self.find(name, id, &awaited).await?;
                let (steps, point) = store.steps(name, id, row.began_ms).await?;
                store.externalize(point).await?;
                Ok(steps)
            };
            let steps = self.in_time(&awaited, steps).await?.into_iter();
            let mut steps: Vec<StepView> =
                steps.map(|(path, row)| StepView::of(path, row)).collect();
            // A step ends after those that it called, also within one millisecond.
            let depth = |path: &str| std::cmp::Reverse(path.matches('/').count());
            steps.sort_by_key(|step| (step.ended_ms, depth(&step.path), step.began_ms));
            Ok(steps)
        })
    }
}
