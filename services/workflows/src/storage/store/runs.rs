//! The rows of runs: begun, ended, listed and forgotten.

use std::{iter, sync::Arc};

use bytes::Bytes;
use ports::{Condition, DurabilityPoint, ErrorKind, Item, Update, key_value::Transacted};

use super::Store;
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

    /// The row of a run, if the run is active.
    pub(crate) async fn active_run(&self, workflow: &str, run: &str) -> Result<Option<RunRow>> {
        let row = self.run(workflow, run).await?.map(|(row, _)| row);
        Ok(row.filter(|row| row.status == Status::Running))
    }

    /// The input and definition of an existing run.
    pub(crate) async fn given(&self, workflow: &str, run: &str) -> Result<Given> {
        let item = self.rows.get(&layout::given(workflow, run)).await?.value;
        let item = item.ok_or_else(|| ports::Error::corrupt("find the input of a run"))?;
        Ok(Given::decode(&item)?)
    }

    /// The input of a run; none: it was forgotten.
    pub(crate) async fn input(
        &self,
        workflow: &str,
        run: &str,
    ) -> Result<Option<(Bytes, DurabilityPoint)>> {
        let read = self.rows.get(&layout::given(workflow, run)).await?;
        let given = read.value.as_deref().map(Given::decode).transpose()?;
        Ok(given.map(|given| (given.input, read.point)))
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
        let row = row.filter(|row| row.began_ms == began_ms);
        Ok(row.map(|row| (row, read.point)))
    }

    /// Notes how a run has failed whose rows can no longer be written. An earlier note stays. The
    /// lane of this store must not have read the refused rows.
    pub(crate) async fn note_refused(&self, workflow: &str, run: &str, row: &RunRow) -> Result<()> {
        let put = Update::put(layout::refused(workflow, run), row.encode());
        let put = put.when(is_of_earlier(row.began_ms));
        Ok(self.rows.update(put).await.map(drop)?)
    }

    pub(crate) async fn runs(
        &self,
        workflow: &str,
        after: Option<&str>,
        rows_max: usize,
    ) -> Result<Runs> {
        let scan = layout::runs(workflow, after, rows_max);
        let read = self.rows.scan(&scan).await?;
        let decode = |(sort, item): (Bytes, Arc<Item>)| {
            let id = layout::run_of(&sort)?;
            Some(RunRow::decode(&item).map(|row| (id, row)))
        };
        let rows = read.value.items.into_iter().filter_map(decode);
        Ok(Runs {
            rows: rows.collect::<ports::Result<_>>()?,
            has_more: read.value.next.is_some(),
            point: read.point,
        })
    }

    pub(crate) async fn active(&self, workflow: &str) -> Result<Vec<String>> {
        let (rows, _) = self.rows_of(layout::all_active(workflow)).await?;
        let runs = rows.iter().filter_map(|(sort, _)| layout::run_of(sort));
        Ok(runs.collect())
    }

    /// The ended runs with their ends, the oldest first.
    pub(crate) async fn finished(&self, workflow: &str) -> Result<Vec<(u64, String)>> {
        let (rows, _) = self.rows_of(layout::all_finished(workflow)).await?;
        let ended = rows
            .iter()
            .filter_map(|(sort, _)| layout::finished_of(sort));
        Ok(ended.collect())
    }

    /// Forgets a run that ended at this time, unless a later run of its id has begun. The last
    /// transaction deletes its row and its entry among the ended runs. So after a death the next
    /// sweep finds the entry, and a later run under the same id meets no remains.
    pub(crate) async fn forget(&self, workflow: &str, ended_ms: u64, run: &str) -> Result<()> {
        let is_it = || Update::check(layout::run(workflow, run), has_ended(ended_ms));
        let end = Update::delete(layout::finished(workflow, ended_ms, run));
        let (steps, _) = self.rows_of(layout::steps(workflow, run)).await?;
        for some in steps.chunks(FORGOTTEN_AT_ONCE) {
            let keys = some.iter().map(|(sort, _)| layout::found(workflow, sort));
            let updates = iter::once(is_it()).chain(keys.map(Update::delete));
            if let Transacted::Conflict { .. } = self.rows.transact(updates.collect()).await? {
                return Ok(self.rows.update(end).await.map(drop)?);
            }
        }
        let mut last = vec![
            Update::delete(layout::run(workflow, run)).when(has_ended(ended_ms)),
            Update::delete(layout::given(workflow, run)),
            end.clone(),
        ];
        if self.is_far() {
            last.push(Update::delete(layout::refused(workflow, run)));
        }
        if let Transacted::Conflict { .. } = self.rows.transact(last).await? {
            // Another process has forgotten the run.
            self.rows.update(end).await?;
        }
        Ok(())
    }
}
