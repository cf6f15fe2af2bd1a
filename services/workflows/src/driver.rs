//! Which process is at a run that lies near, where several serve one store: its driver, a node of transactions that its row names.
//!
//! A process leaves a run to its driver as long as that lives. Whoever notices that it is gone takes the run, by a change of its row
//! on condition of the driver that was; everybody looks at what is under way near whenever somebody has gone. A process that has
//! started over is another node: it stops before the next step counts, and takes its runs again unless somebody else has.
//! Who is asked to end a run that another is at leaves a row for that one, and waits. A process that is alone has no driver, and
//! asks nobody. In a range one process has all that lies there. That row stays until the run is ended: whoever takes up what a driver
//! has left ends what that one was asked to end, whether or not somebody still waits for it.
//!
//! Invariants
//! - A run has another driver only once the one before is gone, of which nothing commits any more.
//! - All that a run commits is begun by its driver; what comes to count without a transaction is written on condition that the run is
//!   under way, and its driver's. So nothing counts of a run that was ended or taken elsewhere.
//! - Only its driver ends a run, which first waits for what is coming to count.

use std::time::Duration;

use ports::{
    Condition, DurabilityPoint, Update,
    key_value::{Action, Outcome, Test, Transacted, Value},
};
use transactions::{
    Engine,
    model::{Call, NodeId},
};

use crate::{
    Broken, Error, Result, Service,
    active::Key,
    homes::Home,
    layout,
    records::{DRIVER, RunRow, Status, is_driven_by},
    service::{Handle, WAITS},
    shown::End,
    store::{PAGE_ROWS, Place, State, Store},
};

/// Between two looks whether others ask that a run be ended, while some are under way here.
const LISTEN_EVERY: Duration = Duration::from_millis(250);
/// The same while none is.
const LISTEN_IDLE_EVERY: Duration = Duration::from_secs(2);
/// In the row that asks for it: when the run began, as another may be begun under its id.
const BEGAN: &str = "began";

impl Place<'_> {
    /// Whether what this call is to commit was begun by whoever is at the run.
    fn has_begun(self, call: &Call) -> bool {
        let node = call.attempt.map(|attempt| attempt.node);
        self.driver.is_none_or(|driver| node == Some(driver))
    }
}

impl Store {
    /// Who is at a run that is taken here; none: no other process could be. Errors: `Unavailable` while this one is no node.
    pub(crate) fn own_driver(&self) -> Result<Option<NodeId>> {
        match &self.state {
            State::Transactions(engine) if self.is_shared => Ok(Some(engine.node()?)),
            _ => Ok(None),
        }
    }

    /// Whether nothing counts any more of what `driver` does.
    async fn is_gone(&self, driver: NodeId) -> Result<bool> {
        match &self.state {
            State::Transactions(engine) => Ok(engine.is_gone(driver).await?),
            State::Range(_) => Ok(true),
        }
    }

    /// A run that was seen under way, as this process's own; none: another one is at it, or it has ended.
    ///
    /// Errors: `Unavailable`, also while it cannot be said whether its driver lives.
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
            && self.broken != Some(Broken::TakesFromTheLiving)
            && !self.is_gone(driver).await?
        {
            return Ok(None);
        }
        let names = own.map(|own| Action::set_integer(DRIVER, own.0.into()));
        let taken = Update::modify(layout::run(workflow, run), Vec::from_iter(names));
        let updated = self
            .rows
            .update(taken.when(is_driven_by(row.driver)))
            .await?;
        let is_taken = matches!(updated.outcome, Outcome::Done(_));
        Ok(is_taken.then_some(RunRow { driver: own, ..row }))
    }

    /// Errors: `AttemptEnded` once this process is not the node any more that is at the run, whoever is; `Unavailable` while it is none.
    pub(crate) fn check_own(&self, place: Place<'_>) -> Result<()> {
        if place.driver.is_none() || self.own_driver()? == place.driver {
            return Ok(());
        }
        Err(Error::AttemptEnded)
    }

    /// Errors: `AttemptEnded`, and what was begun is aborted, if it is not the begin of whoever is at the run.
    pub(crate) async fn check_driver(
        &self,
        place: Place<'_>,
        engine: &Engine,
        call: &Call,
    ) -> Result<()> {
        if place.has_begun(call) {
            return Ok(());
        }
        engine.abort(call).await?;
        Err(Error::AttemptEnded)
    }

    /// Writes the row of a step, if its condition holds. Errors: `AttemptEnded` if the run has ended, or has another driver.
    pub(crate) async fn write_step(
        &self,
        place: Place<'_>,
        put: Update,
    ) -> Result<(Outcome, DurabilityPoint)> {
        if place.driver.is_none() {
            let updated = self.rows.update(put).await?;
            return Ok((updated.outcome, updated.receipt.point));
        }
        self.check_own(place)?;
        let run = layout::run(place.workflow, place.run);
        let checked = Update::check(run, is_driven_by(place.driver));
        match self.rows.transact(vec![checked, put]).await? {
            Transacted::Done { mut items, receipt } => {
                Ok((Outcome::Done(items.pop().flatten()), receipt.point))
            }
            Transacted::Conflict { index: 0, .. } => Err(Error::AttemptEnded),
            Transacted::Conflict { item, receipt, .. } => {
                Ok((Outcome::Conflict(item), receipt.point))
            }
        }
    }

    /// Whether a driver is asked to end the run that began then.
    async fn is_to_end(
        &self,
        (workflow, run): (&str, &str),
        driver: NodeId,
        began_ms: u64,
    ) -> Result<bool> {
        let asked = self
            .rows
            .get(&layout::cancel(driver.0, workflow, run))
            .await?
            .value;
        Ok(asked.and_then(|item| item.integer(BEGAN)) == Some(began_ms as i64))
    }

    /// Asks the driver of a run to end it.
    async fn ask_to_end(
        &self,
        (workflow, run): (&str, &str),
        driver: NodeId,
        began_ms: u64,
    ) -> Result<()> {
        let began = vec![(BEGAN.into(), Value::Integer(began_ms as i64))];
        self.rows
            .update(Update::put(layout::cancel(driver.0, workflow, run), began))
            .await?;
        Ok(())
    }

    /// Asks that no more; what is asked for another run of this id stays.
    pub(crate) async fn ask_no_more(
        &self,
        (workflow, run): (&str, &str),
        driver: NodeId,
        began_ms: u64,
    ) -> Result<()> {
        let is_this = Condition::attribute(BEGAN, Test::is_integer(began_ms as i64));
        self.rows
            .update(Update::delete(layout::cancel(driver.0, workflow, run)).when(is_this))
            .await?;
        Ok(())
    }

    /// The runs that `node` is asked to end, and when each began.
    async fn cancels(&self, node: NodeId) -> Result<Vec<(Key, u64)>> {
        let (rows, _) = self.rows_of(layout::cancels(node.0, PAGE_ROWS)).await?;
        let asked = rows.into_iter().filter_map(|(sort, item)| {
            Some((
                layout::cancelled_of(&sort)?,
                u64::try_from(item.integer(BEGAN)?).ok()?,
            ))
        });
        Ok(asked.collect())
    }
}

impl Service {
    /// Among other processes: takes up the runs whose drivers are gone, and ends those that others ask to be ended, until it stops.
    pub(crate) fn drive_among_others(&self) {
        let handle = self.clone_without_tasks();
        self.spawn(follow_members(handle));
        let handle = self.clone_without_tasks();
        let clock = std::sync::Arc::clone(&self.inner.parts.clock);
        self.spawn(async move {
            while let Some(service) = handle.upgrade() {
                if let Err(error) = service.end_what_others_ask().await {
                    tracing::debug!(%error, "what others ask to be ended is not read at the moment");
                }
                let is_idle = service.active() == 0;
                drop(service);
                clock.sleep(if is_idle { LISTEN_IDLE_EVERY } else { LISTEN_EVERY }).await;
            }
        });
    }

    async fn end_what_others_ask(&self) -> Result<()> {
        let store = self.inner.homes.store(&Home::Near).await?;
        let Some(own) = store.own_driver()? else {
            return Ok(());
        };
        for (key, began_ms) in store.cancels(own).await? {
            let row = match store.run(&key.0, &key.1).await {
                Ok(found) => found.map(|(row, _)| row),
                // One that cannot be read keeps no other from being ended.
                Err(error) => {
                    tracing::debug!(workflow = %key.0, run = %key.1, %error, "it is looked at later, as another process asks");
                    continue;
                }
            };
            let is_under_way =
                |row: &RunRow| (row.status, row.began_ms) == (Status::Running, began_ms);
            if let Some(row) = row.filter(is_under_way) {
                // It is yet to be taken by this one, or not.
                if row.driver != Some(own) {
                    continue;
                }
                if let Err(error) = self.end(key.clone(), Home::Near).await {
                    tracing::debug!(workflow = %key.0, run = %key.1, %error, "it is ended later, as another process asks");
                    continue;
                }
            }
            store.ask_no_more((&key.0, &key.1), own, began_ms).await?;
        }
        Ok(())
    }

    /// Ends a run, for who has claimed it, if its driver was asked to and has not; none: it was not, or is not known to be gone. If
    /// it is taken all the same a moment later, this process is asked.
    pub(crate) async fn end_as_asked(
        &self,
        key: &Key,
        home: &Home,
        (store, row): (&Store, &RunRow),
    ) -> Result<Option<End>> {
        let names = (key.0.as_str(), key.1.as_str());
        let (Some(driver), Some(own)) = (row.driver, store.own_driver()?) else {
            return Ok(None);
        };
        if !store.is_to_end(names, driver, row.began_ms).await? {
            return Ok(None);
        }
        // Before the run is this one's: it may die before it has ended it.
        store.ask_to_end(names, own, row.began_ms).await?;
        let end = self.end_claimed(key, home).await?;
        if matches!(end, End::Elsewhere(_)) {
            return Ok(None);
        }
        for node in [driver, own] {
            store.ask_no_more(names, node, row.began_ms).await?;
        }
        Ok(Some(end))
    }

    /// Has a run's driver end it; returns once it has, or is that no more.
    pub(crate) async fn end_elsewhere(
        &self,
        (workflow, run): &Key,
        home: &Home,
        row: &RunRow,
    ) -> Result<()> {
        let Some(driver) = row.driver else {
            return Ok(());
        };
        let store = self.inner.homes.store(home).await?;
        let names = (workflow.as_str(), run.as_str());
        let (mut delays, mut is_asked) = (None, false);
        loop {
            if !is_asked {
                is_asked = match store.ask_to_end(names, driver, row.began_ms).await {
                    Err(error) if !error.passes() => return Err(error),
                    asked => asked.is_ok(),
                };
            }
            self.inner.pause(&mut delays).await;
            let now = store.run(workflow, run).await;
            let is_at_it = match &now {
                Ok(Some((now, _))) => {
                    (now.status, now.driver, now.began_ms)
                        == (Status::Running, Some(driver), row.began_ms)
                }
                Ok(None) => false,
                Err(_) => true,
            };
            if !is_at_it {
                break;
            }
            // What cannot be said yet is asked again. Of one that is gone whoever ends it in its place is still to hear.
            if store.is_gone(driver).await.is_ok_and(|is_gone| is_gone) {
                return Ok(());
            }
        }
        if let Err(error) = store.ask_no_more(names, driver, row.began_ms).await {
            tracing::debug!(%workflow, %run, %error, "a row that asks a process to end a run stays");
        }
        Ok(())
    }
}

/// Takes up what lies near whenever the members are others.
async fn follow_members(handle: Handle) {
    let mut view = 0;
    loop {
        let Some(service) = handle.upgrade() else {
            return;
        };
        let engine = service.inner.parts.transactions.clone();
        drop(service);
        view = engine.members_changed(view).await;
        drop(engine);
        handle
            .until_done(Home::Near, WAITS, |service, home| async move {
                service.take_up(&home).await
            })
            .await;
    }
}
