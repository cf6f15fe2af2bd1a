//! The rows of runs: begun, ended, listed and forgotten.

use std::{iter, sync::Arc};

use bytes::Bytes;
use ports::{Condition, DurabilityPoint, ErrorKind, Item, Update, key_value::Transacted};

use super::{PAGE_ROWS, Store};
use crate::{
    Error, Result,
    storage::{
        layout,
        records::{Given, RunRow, Status, has_ended, is_driven_by, is_of_earlier},
    },
};

/// Steps of a run that are deleted in one transaction.
const FORGOTTEN_AT_ONCE: usize = 50;

/// A page of a workflow's runs, in the order of their ids.
#[derive(Debug)]
pub(crate) struct Runs {
    pub(crate) rows: Vec<(String, RunRow)>,
    /// Whether more runs may follow.
    pub(crate) has_more: bool,
    pub(crate) point: DurabilityPoint,
}

impl Store {
    /// Begins a run, or returns the existing run of this id.
    pub(crate) async fn begin_run(
        &self,
        workflow: &str,
        run: &str,
        row: &RunRow,
        given: &Given,
    ) -> Result<(Option<RunRow>, DurabilityPoint)> {
        let updates = vec![
            Update::put(layout::run(workflow, run), row.encode()).when(Condition::Absent),
            Update::put(layout::given(workflow, run), given.encode()),
            Update::put(layout::active(workflow, run), Vec::new()),
        ];
        match self.rows.transact(updates).await? {
            Transacted::Done { receipt, .. } => Ok((None, receipt.point)),
            Transacted::Conflict { item, receipt, .. } => {
                let there = item.as_deref().map(RunRow::decode).transpose()?;
                Ok((there, receipt.point))
            }
        }
    }

    /// Ends a run with `row`. Errors: `RunEnded` if it has ended otherwise, or has another driver.
    pub(crate) async fn end_run(
        &self,
        workflow: &str,
        run: &str,
        row: &RunRow,
    ) -> Result<DurabilityPoint> {
        let ended = row.ended_ms.unwrap_or_default();
        let updates = vec![
            Update::put(layout::run(workflow, run), row.encode()).when(is_driven_by(row.driver)),
            Update::delete(layout::active(workflow, run)),
            Update::put(layout::finished(workflow, ended, run), Vec::new()),
        ];
        match self.rows.transact(updates).await {
            Ok(Transacted::Done { receipt, .. }) => Ok(receipt.point),
            Ok(Transacted::Conflict { .. }) => Err(Error::RunEnded),
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                match self.run(workflow, run).await? {
                    Some((there, point)) if there == *row => Ok(point),
                    Some((there, _)) if there.status == Status::Running => Err(error.into()),
                    _ => Err(Error::RunEnded),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn run(
        &self,
        workflow: &str,
        run: &str,
    ) -> Result<Option<(RunRow, DurabilityPoint)>> {
        let read = self.rows.get(&layout::run(workflow, run)).await?;
        let row = read.value.as_deref().map(RunRow::decode).transpose()?;
        Ok(row.map(|row| (row, read.point)))
    }

    /// The input and definition of an existing run.
    pub(crate) async fn given(&self, workflow: &str, run: &str) -> Result<Given> {
        let read = self.rows.get(&layout::given(workflow, run)).await?;
        let item = read
            .value
            .ok_or_else(|| ports::Error::corrupt("find the input of a run"))?;
        Ok(Given::decode(&item)?)
    }

    /// The note that a run has failed whose rows the far store has permanently refused; none: there
    /// is no note of the run that began then.
    pub(crate) async fn refused(
        &self,
        workflow: &str,
        run: &str,
        began_ms: u64,
    ) -> Result<Option<(RunRow, DurabilityPoint)>> {
        if !self.is_far() {
            return Ok(None);
        }
        let read = self.rows.get(&layout::refused(workflow, run)).await?;
        let row = read.value.as_deref().map(RunRow::decode).transpose()?;
        // The note may belong to an earlier run of this id, which was lost with its near store.
        Ok(row
            .filter(|row| row.began_ms == began_ms)
            .map(|row| (row, read.point)))
    }

    /// Notes how a run has failed whose rows can no longer be written. An earlier note stays. The
    /// lane of this store must not have read the refused rows.
    pub(crate) async fn note_refused(&self, workflow: &str, run: &str, row: &RunRow) -> Result<()> {
        let put = Update::put(layout::refused(workflow, run), row.encode());
        self.rows
            .update(put.when(is_of_earlier(row.began_ms)))
            .await?;
        Ok(())
    }

    /// A page of runs after `after`.
    pub(crate) async fn runs(
        &self,
        workflow: &str,
        after: Option<&str>,
        rows_max: usize,
    ) -> Result<Runs> {
        let read = self
            .rows
            .scan(&layout::runs(workflow, after, rows_max))
            .await?;
        let decode = |(sort, item): (Bytes, Arc<Item>)| {
            let id = layout::run_of(&sort)?;
            Some(RunRow::decode(&item).map(|row| (id, row)))
        };
        let rows = read
            .value
            .items
            .into_iter()
            .filter_map(decode)
            .collect::<ports::Result<Vec<_>>>()?;
        Ok(Runs {
            rows,
            has_more: read.value.next.is_some(),
            point: read.point,
        })
    }

    /// The active runs.
    pub(crate) async fn active(&self, workflow: &str) -> Result<Vec<String>> {
        let (rows, _) = self
            .rows_of(layout::all_active(workflow, PAGE_ROWS))
            .await?;
        Ok(rows
            .iter()
            .filter_map(|(sort, _)| layout::run_of(sort))
            .collect())
    }

    /// The ended runs with their ends, the oldest first.
    pub(crate) async fn finished(&self, workflow: &str) -> Result<Vec<(u64, String)>> {
        let (rows, _) = self
            .rows_of(layout::all_finished(workflow, PAGE_ROWS))
            .await?;
        Ok(rows
            .iter()
            .filter_map(|(sort, _)| layout::finished_of(sort))
            .collect())
    }

    /// Forgets a run that ended at this time, unless a later run of its id has begun. The last
    /// transaction deletes its row and its entry among the ended runs. So after a death the next
    /// sweep finds the entry, and a later run under the same id meets no remains.
    pub(crate) async fn forget(&self, workflow: &str, ended_ms: u64, run: &str) -> Result<()> {
        let is_it = || Update::check(layout::run(workflow, run), has_ended(ended_ms));
        let (steps, _) = self
            .rows_of(layout::steps(workflow, run, PAGE_ROWS))
            .await?;
        for some in steps.chunks(FORGOTTEN_AT_ONCE) {
            let paths = some
                .iter()
                .filter_map(|(sort, _)| layout::path_of(run, sort));
            let steps = paths.map(|path| Update::delete(layout::step(workflow, run, &path)));
            let forgotten = self
                .rows
                .transact(iter::once(is_it()).chain(steps).collect())
                .await?;
            if let Transacted::Conflict { .. } = forgotten {
                return self.forget_end(workflow, ended_ms, run).await;
            }
        }
        let mut last = vec![
            Update::delete(layout::run(workflow, run)).when(has_ended(ended_ms)),
            Update::delete(layout::given(workflow, run)),
            Update::delete(layout::finished(workflow, ended_ms, run)),
        ];
        last.extend(
            self.is_far()
                .then(|| Update::delete(layout::refused(workflow, run))),
        );
        match self.rows.transact(last).await? {
            Transacted::Done { .. } => Ok(()),
            Transacted::Conflict { .. } => self.forget_end(workflow, ended_ms, run).await,
        }
    }

    /// Deletes the remaining entry of a run that another process has forgotten.
    async fn forget_end(&self, workflow: &str, ended_ms: u64, run: &str) -> Result<()> {
        self.rows
            .update(Update::delete(layout::finished(workflow, ended_ms, run)))
            .await?;
        Ok(())
    }
}
