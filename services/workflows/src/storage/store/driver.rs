//! The driver in a run's row, and the rows that ask a driver to end a run.

use std::sync::Arc;

use ports::{
    Condition, DurabilityPoint, Item, Update,
    key_value::{Action, Outcome, Test, Transacted, Updated, Value},
};
use transactions::{
    Engine,
    model::{Call, NodeId},
};

use super::{State, Store};
use crate::{
    Broken, Error, Result,
    model::{RunKey, StepAddress},
    storage::{
        layout,
        records::{DRIVER, RunRow, StepRow, is_driven_by},
    },
};

/// When the run began. Another run may begin later under the same id.
const BEGAN: &str = "began";

impl Store {
    /// The node that this process is, as the driver of runs that it takes; none: it shares its store
    /// with no other process. Errors: `Unavailable` while it is no node.
    pub(crate) fn own_driver(&self) -> Result<Option<NodeId>> {
        match &self.state {
            State::Transactions(engine) if self.is_shared => Ok(Some(engine.node()?)),
            _ => Ok(None),
        }
    }

    /// Whether `driver` can commit nothing more.
    pub(crate) async fn is_gone(&self, driver: NodeId) -> Result<bool> {
        match &self.state {
            State::Transactions(engine) => Ok(engine.is_gone(driver).await?),
            State::Shard(_) => Ok(true),
        }
    }

    /// Makes this process the driver of an active run. None: another process executes it, or it has
    /// ended.
    ///
    /// Errors: `Unavailable`, also while it is unknown whether its driver is alive.
    pub(crate) async fn take(
        &self,
        (workflow, run): (&str, &str),
        row: RunRow,
    ) -> Result<Option<RunRow>> {
        let own = self.own_driver()?;
        if own.is_none() || row.driver == own {
            return Ok(Some(row));
        }
        if let Some(driver) = row.driver
            && !self.mutant.breaks(Broken::TakesFromTheLiving)
            && !self.is_gone(driver).await?
        {
            return Ok(None);
        }
        let change = own.map(|own| Action::set_integer(DRIVER, own.0.into()));
        let taken = Update::modify(layout::run(workflow, run), Vec::from_iter(change));
        let taken = taken.when(is_driven_by(row.driver));
        let updated = self.rows.update(taken).await?;
        let is_taken = matches!(updated.outcome, Outcome::Done(_));
        Ok(is_taken.then_some(RunRow { driver: own, ..row }))
    }

    /// Errors: `AttemptEnded` if this process is no longer the node that drives the run,
    /// `Unavailable` while it is no node.
    pub(crate) fn check_own(&self, address: StepAddress<'_>) -> Result<()> {
        if address.driver.is_none() || self.own_driver()? == address.driver {
            return Ok(());
        }
        Err(Error::AttemptEnded)
    }

    /// Errors: `AttemptEnded` if another node than the driver has begun the transaction, which is
    /// then aborted.
    pub(super) async fn check_driver(
        &self,
        address: StepAddress<'_>,
        engine: &Engine,
        call: &Call,
    ) -> Result<()> {
        let node = call.attempt.map(|attempt| attempt.node);
        if address.driver.is_none() || address.driver == node {
            return Ok(());
        }
        engine.abort(call).await?;
        Err(Error::AttemptEnded)
    }

    /// Writes the row of a step under its condition; returns the row that contradicts it. Errors:
    /// `AttemptEnded` if the run has ended, or has another driver.
    pub(super) async fn write_step(
        &self,
        address: StepAddress<'_>,
        put: Update,
    ) -> Result<(Option<StepRow>, DurabilityPoint)> {
        let there = |item: Option<Arc<Item>>| -> Result<Option<StepRow>> {
            let row = item.ok_or_else(|| ports::Error::corrupt("read the row of a step"))?;
            Ok(Some(StepRow::decode(&row)?))
        };
        if address.driver.is_none() {
            let Updated { outcome, receipt } = self.rows.update(put).await?;
            let row = match outcome {
                Outcome::Done(_) => None,
                Outcome::Conflict(item) => there(item)?,
            };
            return Ok((row, receipt.point));
        }
        self.check_own(address)?;
        let run = layout::run(address.workflow, address.run);
        let checked = Update::check(run, is_driven_by(address.driver));
        match self.rows.transact(vec![checked, put]).await? {
            Transacted::Done { receipt, .. } => Ok((None, receipt.point)),
            Transacted::Conflict { index: 0, .. } => Err(Error::AttemptEnded),
            Transacted::Conflict { item, receipt, .. } => there(item).map(|it| (it, receipt.point)),
        }
    }

    /// Whether a driver is asked to end the run that began then.
    pub(crate) async fn is_end_requested(
        &self,
        (workflow, run): (&str, &str),
        driver: NodeId,
        began_ms: u64,
    ) -> Result<bool> {
        let key = layout::cancel(driver.0, workflow, run);
        let request = self.rows.get(&key).await?.value;
        Ok(request.and_then(|item| item.integer(BEGAN)) == Some(began_ms as i64))
    }

    /// Asks the driver of a run to end it.
    pub(crate) async fn request_end(
        &self,
        (workflow, run): (&str, &str),
        driver: NodeId,
        began_ms: u64,
    ) -> Result<()> {
        let began = vec![(BEGAN.into(), Value::Integer(began_ms as i64))];
        let key = layout::cancel(driver.0, workflow, run);
        Ok(self.rows.update(Update::put(key, began)).await.map(drop)?)
    }

    /// Removes that request. A request to end a later run of this id stays.
    pub(crate) async fn withdraw_end(
        &self,
        (workflow, run): (&str, &str),
        driver: NodeId,
        began_ms: u64,
    ) -> Result<()> {
        let is_this = Condition::attribute(BEGAN, Test::is_integer(began_ms as i64));
        let key = layout::cancel(driver.0, workflow, run);
        let delete = Update::delete(key).when(is_this);
        Ok(self.rows.update(delete).await.map(drop)?)
    }

    /// The runs that `node` is asked to end, and when each began.
    pub(crate) async fn requested_ends(&self, node: NodeId) -> Result<Vec<(RunKey, u64)>> {
        let (rows, _) = self.rows_of(layout::cancels(node.0)).await?;
        let requests = rows.into_iter().filter_map(|(sort, item)| {
            let began_ms = u64::try_from(item.integer(BEGAN)?).ok()?;
            Some((layout::cancelled_of(&sort)?, began_ms))
        });
        Ok(requests.collect())
    }
}
