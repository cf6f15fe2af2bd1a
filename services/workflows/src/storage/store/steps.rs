//! How steps and atomic runs commit.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use ports::{
    Condition, DurabilityPoint, Update,
    key_value::{Action, Outcome, Transacted, Value},
};
use transactions::{
    Engine,
    model::{Begin, Call, Isolation},
};

use super::{State, Store, VALUE};
use crate::{
    Broken, Error, Result,
    model::StepAddress,
    storage::{
        changes::Changes,
        layout,
        outbox::Outbox,
        records::{ATTEMPT, StepResult, StepRow, is_before, is_driven_by, number_of},
        transaction::{begin, commit, has_committed},
    },
};

impl Store {
    /// Commits `changes` now, by themselves.
    pub(crate) async fn publish(
        &self,
        address: StepAddress<'_>,
        changes: Changes,
    ) -> Result<DurabilityPoint> {
        self.check_own(address)?;
        if changes.is_empty() {
            return Ok(DurabilityPoint::DURABLE);
        }
        match &self.state {
            State::Transactions(engine) => {
                let Ok(call) = begin(engine, Begin::default()).await? else {
                    return Err(Error::AttemptEnded);
                };
                self.check_driver(address, engine, &call).await?;
                commit(engine, &call, changes).await
            }
            State::Shard(outbox) => match self.record(outbox, address, None, &changes).await? {
                Transacted::Done { receipt, .. } => Ok(receipt.point),
                Transacted::Conflict { .. } => {
                    Err(ports::Error::corrupt("write a new row of the outbox").into())
                }
            },
        }
    }

    /// Commits a step with its changes, unless it has committed; returns the committed result.
    ///
    /// Errors: `AttemptEnded` if another process executes the run.
    pub(crate) async fn commit_step(
        &self,
        address: StepAddress<'_>,
        row: &StepRow,
        changes: &Changes,
    ) -> Result<(StepResult, DurabilityPoint)> {
        if changes.is_empty() {
            let put = Update::put(layout::step(address), row.encode()).when(Condition::Absent);
            match self.write_step(address, put).await? {
                (None, point) => return Ok((row.result.clone(), point)),
                (Some(there), point) if there.attempt.is_none() => {
                    return Ok((there.result, point));
                }
                _ => {}
            }
        }
        match &self.state {
            State::Transactions(engine) => {
                self.commit_in_transaction(engine, address, row, changes)
                    .await
            }
            State::Shard(outbox) => self.commit_in_shard(outbox, address, row, changes).await,
        }
    }

    async fn commit_in_shard(
        &self,
        outbox: &Arc<Outbox>,
        address: StepAddress<'_>,
        row: &StepRow,
        changes: &Changes,
    ) -> Result<(StepResult, DurabilityPoint)> {
        let put = Update::put(layout::step(address), row.encode()).when(Condition::Absent);
        match self.record(outbox, address, Some(put), changes).await? {
            Transacted::Done { receipt, .. } => Ok((row.result.clone(), receipt.point)),
            Transacted::Conflict { item, receipt, .. } => {
                let corrupt = || ports::Error::corrupt("read the conflicting row of a step");
                let item = item.ok_or_else(corrupt)?;
                let there = StepRow::decode(&item)?;
                Ok((there.result, receipt.point))
            }
        }
    }

    /// Writes one record of a lane: the row of a step, if it commits, its writes and its messages.
    async fn record(
        &self,
        outbox: &Arc<Outbox>,
        address: StepAddress<'_>,
        row: Option<Update>,
        changes: &Changes,
    ) -> Result<Transacted> {
        let mut enclosed = outbox.enclose(address, changes).await?;
        let write = |(key, written): (&Bytes, &Option<Bytes>)| match written {
            Some(value) => {
                let value = vec![(VALUE.into(), Value::Bytes(value.clone()))];
                Update::put(layout::state(key), value)
            }
            None => Update::delete(layout::state(key)),
        };
        let mut updates = Vec::from_iter(row);
        updates.extend(changes.writes.iter().map(write));
        updates.append(&mut enclosed.updates);
        let items_max = self.rows.limits().transact_items_max;
        if updates.len() > items_max {
            let most = items_max - 1;
            return Err(Error::TooLarge(format!(
                "a step of a workflow with this far store writes {most} keys at most, one less if it sends"
            )));
        }
        if changes.sends.is_empty() {
            return Ok(self.rows.transact(updates).await?);
        }
        // If the run is cancelled meanwhile, its task stops. The messages of a committed step are
        // sent all the same.
        let (rows, outbox) = (Arc::clone(&self.rows), Arc::clone(outbox));
        let recorded = tokio::spawn(async move {
            let transacted = rows.transact(updates).await?;
            if let Transacted::Done { receipt, .. } = &transacted {
                outbox.send(enclosed, receipt.point);
            }
            Ok(transacted)
        });
        let died = |_| Err(ports::Error::unavailable("commit a step").into());
        recorded.await.unwrap_or_else(died)
    }

    async fn commit_in_transaction(
        &self,
        engine: &Engine,
        address: StepAddress<'_>,
        row: &StepRow,
        changes: &Changes,
    ) -> Result<(StepResult, DurabilityPoint)> {
        // We check this first: our begin would end the begin of the run's present driver.
        self.check_own(address)?;
        let id = layout::transaction(address);
        let named = Begin {
            id: Some(id).filter(|_| !self.mutant.breaks(Broken::NamesNoStep)),
            ..Begin::default()
        };
        let call = match begin(engine, named).await? {
            Ok(call) => call,
            Err(point) => return self.committed(address, point).await,
        };
        self.check_driver(address, engine, &call).await?;
        let number = call.attempt.map(number_of).unwrap_or_default();
        let is_early = self.mutant.breaks(Broken::ResultBeforeWrites);
        let numbered = StepRow {
            attempt: Some(number).filter(|_| !is_early),
            ..row.clone()
        };
        let put = Update::put(layout::step(address), numbered.encode()).when(is_before(number));
        let (conflicting, written) = self.write_step(address, put).await?;
        if let Some(there) = conflicting {
            engine.abort(&call).await?;
            return match there.attempt {
                None => Ok((there.result, written)),
                Some(_) => Err(Error::AttemptEnded),
            };
        }
        let point = commit(engine, &call, changes.clone()).await?;
        Ok((row.result.clone(), point.max(written)))
    }

    /// Marks the row of a committed step, so that it needs no transaction name any more.
    pub(crate) async fn confirm_step(&self, address: StepAddress<'_>) -> Result<()> {
        let update = Update::modify(layout::step(address), vec![Action::unset(ATTEMPT)]);
        // The row is missing if the run was forgotten meanwhile.
        let update = update.when(Condition::Exists);
        Ok(self.rows.update(update).await.map(drop)?)
    }

    /// The result of a step whose transaction has committed.
    async fn committed(
        &self,
        address: StepAddress<'_>,
        point: DurabilityPoint,
    ) -> Result<(StepResult, DurabilityPoint)> {
        let read = self.rows.get(&layout::step(address)).await?;
        let row = read.value.as_deref().map(StepRow::decode).transpose()?;
        let row = row.ok_or_else(|| ports::Error::corrupt("find the row of a committed step"))?;
        Ok((row.result, read.point.max(point)))
    }

    /// The committed steps of a run, by path.
    pub(crate) async fn steps(
        &self,
        workflow: &str,
        run: &str,
        began_ms: u64,
    ) -> Result<(BTreeMap<String, StepRow>, DurabilityPoint)> {
        let (rows, mut point) = self.rows_of(layout::steps(workflow, run)).await?;
        let mut steps = BTreeMap::new();
        for (sort, item) in rows {
            let path = layout::path_of(run, &sort)
                .ok_or_else(|| ports::Error::corrupt("read a step's key"))?;
            let row = StepRow::decode(&item)?;
            if let (Some(_), State::Transactions(engine)) = (row.attempt, &self.state) {
                let address = StepAddress {
                    workflow,
                    run,
                    began_ms,
                    driver: None,
                    path: &path,
                };
                let (is_committed, seen) =
                    has_committed(engine, &layout::transaction(address)).await?;
                point = point.max(seen);
                if !is_committed {
                    continue;
                }
            }
            steps.insert(path, row);
        }
        Ok((steps, point))
    }

    /// Begins the transaction of an atomic run; none: it has committed. Errors: `AttemptEnded` if
    /// this process is no longer the driver of the run.
    pub(crate) async fn begin_atomic(
        &self,
        address: StepAddress<'_>,
        isolation: Isolation,
    ) -> Result<Option<Call>> {
        let State::Transactions(engine) = &self.state else {
            return Err(Error::Invalid("an atomic run has no far store".to_owned()));
        };
        self.check_own(address)?;
        let named = Begin {
            id: Some(layout::transaction(address)),
            isolation,
            ..Begin::default()
        };
        let begun = begin(engine, named).await?.ok();
        if let Some(call) = &begun {
            self.check_driver(address, engine, call).await?;
        }
        Ok(begun)
    }

    /// Commits an atomic run. Its output is stored in its row before that.
    pub(crate) async fn commit_atomic(
        &self,
        address: StepAddress<'_>,
        call: &Call,
        output: &Bytes,
        changes: Changes,
    ) -> Result<DurabilityPoint> {
        let State::Transactions(engine) = &self.state else {
            return Ok(DurabilityPoint::DURABLE);
        };
        let key = layout::run(address.workflow, address.run);
        let told = Update::modify(key, vec![Action::set("output", output.clone())]);
        let told = told.when(is_driven_by(address.driver));
        let updated = self.rows.update(told).await?;
        if let Outcome::Conflict(_) = updated.outcome {
            return Err(Error::RunEnded);
        }
        commit(engine, call, changes).await
    }
}
