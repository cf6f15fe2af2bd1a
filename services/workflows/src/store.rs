//! Where a run lies with what it writes, and how a step comes to count.
//!
//! Near, state is that of transactions, and rows are items of the same store:
//!
//! ```text
//!  a step that wrote nothing: its row, unless there is one
//!  one that did:  1 begin its transaction, named after it: earlier begins can commit no more (rule T-5)
//!                 2 its row, with the result and the number of this begin, unless a later one has written it
//!                 3 writes and sends, commit
//! ```
//!
//! A row with the number of a begin counts if that transaction has committed; so result, writes and sends count together. Dies
//! after 1 or 2: nothing counts, and the next attempt begins it anew. After 3: whoever begins it is told that it has committed, and
//! reads the result in the row.
//!
//! In a range all of that is items of one lane, and one transaction of items is enough. What is sent there lies in its
//! [`outbox`](crate::outbox) until it leaves.

use std::{collections::BTreeMap, iter};

use bytes::Bytes;
use functions::manifest::workflow::place_of;
use ports::{
    Condition, DurabilityPoint, ErrorKind, Item, Key, Update,
    key_value::{Action, Name, Outcome, Scan, SharedKeyValue, Transacted, Value},
};
use std::sync::Arc;
use transactions::{
    Engine,
    model::{Begin, Call, Isolation, NodeId},
};

use crate::{
    Broken, Error, Options, Result,
    commit::{begin, commit, has_committed, state_key},
    layout,
    outbox::Outbox,
    overlay::Changes,
    records::{
        ATTEMPT, CameTo, Given, RunRow, Status, StepRow, has_ended, is_before, is_driven_by,
        is_of_earlier, number_of,
    },
    run::FAILURE_BYTES_MAX,
};

/// What of a row is kept for how its run failed, and for what it always holds.
const ROW_RESERVE_BYTES: usize = FAILURE_BYTES_MAX + (8 << 10);

/// Rows in one page.
pub(crate) const PAGE_ROWS: usize = 200;
/// Steps of a run that are forgotten at once.
const FORGOTTEN_AT_ONCE: usize = 50;
/// The attribute of a value in a range.
pub(crate) const VALUE: &str = "v";
/// The attribute with the address of a far store.
const ADDRESS: &str = "address";

/// What functions' state is.
#[derive(Debug, Clone)]
pub(crate) enum State {
    /// The keys that transactions and `/v1/state` have.
    Transactions(Engine),
    /// Items of the same range, which has an outbox of its own.
    Range(Arc<Outbox>),
}

/// Where a run lies.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) rows: SharedKeyValue,
    pub(crate) state: State,
    /// Whether other processes are at runs that lie here.
    pub(crate) is_shared: bool,
    pub(crate) broken: Option<Broken>,
}

/// Some runs of a workflow, in the order of their ids.
#[derive(Debug)]
pub(crate) struct Runs {
    pub(crate) rows: Vec<(String, RunRow)>,
    /// Whether there may be more behind the last one.
    pub(crate) has_more: bool,
    pub(crate) point: DurabilityPoint,
}

/// Which step of which run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) workflow: &'a str,
    pub(crate) run: &'a str,
    /// When the run began.
    pub(crate) began_ms: u64,
    /// Who is at it, among several processes.
    pub(crate) driver: Option<NodeId>,
    pub(crate) path: &'a str,
}

impl Place<'_> {
    fn row(self) -> Key {
        layout::step(self.workflow, self.run, self.path)
    }
}

fn value(value: Option<&Bytes>) -> ports::key_value::Change {
    use ports::key_value::Change;
    value.map_or(Change::Delete, |value| {
        Change::Put(vec![(VALUE.into(), Value::Bytes(value.clone()))])
    })
}

impl Store {
    pub(crate) fn of_transactions(rows: SharedKeyValue, engine: Engine, options: &Options) -> Self {
        let (state, is_shared) = (State::Transactions(engine), options.among_others);
        Self {
            rows,
            state,
            is_shared,
            broken: options.broken,
        }
    }

    pub(crate) fn of_range(rows: SharedKeyValue, outbox: Arc<Outbox>, options: &Options) -> Self {
        Self {
            rows,
            state: State::Range(outbox),
            is_shared: false,
            broken: options.broken,
        }
    }

    /// Whether what counts here is elsewhere than what transactions write.
    pub(crate) fn is_apart(&self) -> bool {
        matches!(self.state, State::Range(_))
    }

    pub(crate) async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        if self.broken != Some(Broken::AnswersBeforeDurable) && !self.rows.is_durable(point) {
            self.rows.externalize(point).await?;
        }
        Ok(())
    }

    /// Errors: it serves nobody any more, as a range whose near store has restarted; the run goes on where it is opened anew.
    pub(crate) async fn still_serves(&self) -> Result<()> {
        Ok(self.rows.externalize(DurabilityPoint::DURABLE).await?)
    }

    /// The longest that a row may hold beside what it always may: how a run failed, and its names.
    pub(crate) fn bytes_max(&self) -> usize {
        self.rows
            .limits()
            .item_bytes_max
            .saturating_sub(ROW_RESERVE_BYTES)
    }

    /// Errors: `TooLarge` for a key that no item here can have.
    pub(crate) fn check_key(&self, bytes: usize) -> Result<()> {
        let most = self.rows.limits().key_bytes_max;
        if self.is_apart() && bytes > most {
            Err(Error::too_long("key", bytes, most))
        } else {
            Ok(())
        }
    }

    /// The last value of `key` that counts.
    pub(crate) async fn get(&self, key: &Bytes) -> Result<(Option<Bytes>, DurabilityPoint)> {
        match &self.state {
            State::Transactions(engine) => {
                let shown = engine.get_now(&state_key(key)?).await?;
                Ok((shown.value, shown.point))
            }
            State::Range(_) => {
                let read = self.rows.get(&layout::state(key)).await?;
                Ok((
                    read.value.and_then(|item| item.bytes(VALUE).cloned()),
                    read.point,
                ))
            }
        }
    }

    /// Has `changes` count now, by themselves.
    pub(crate) async fn publish(
        &self,
        place: Place<'_>,
        changes: Changes,
    ) -> Result<DurabilityPoint> {
        self.check_own(place)?;
        if changes.is_empty() {
            return Ok(DurabilityPoint::DURABLE);
        }
        match &self.state {
            State::Transactions(engine) => {
                let call = begin(engine, Begin::default()).await?;
                let Ok(call) = call else {
                    return Err(Error::AttemptEnded);
                };
                self.check_driver(place, engine, &call).await?;
                commit(engine, &call, changes).await
            }
            State::Range(outbox) => match self.record(outbox, place, None, &changes).await? {
                Transacted::Done { receipt, .. } => Ok(receipt.point),
                Transacted::Conflict { .. } => {
                    Err(ports::Error::corrupt("write behind what is unsent").into())
                }
            },
        }
    }

    /// Has a step count with its changes, unless it does already; returns what counts.
    ///
    /// Errors: `AttemptEnded` if another process has taken the step up.
    pub(crate) async fn count_step(
        &self,
        place: Place<'_>,
        row: &StepRow,
        changes: &Changes,
    ) -> Result<(CameTo, DurabilityPoint)> {
        if changes.is_empty() {
            let put = Update::put(place.row(), row.encode()).when(Condition::Absent);
            let (outcome, point) = self.write_step(place, put).await?;
            match outcome {
                Outcome::Done(_) => return Ok((row.came_to.clone(), point)),
                Outcome::Conflict(item) => {
                    let there = item.as_deref().map(StepRow::decode).transpose()?;
                    if let Some(there) = there.filter(|there| there.attempt.is_none()) {
                        return Ok((there.came_to, point));
                    }
                }
            }
        }
        match &self.state {
            State::Transactions(engine) => {
                self.count_in_transaction(engine, place, row, changes).await
            }
            State::Range(outbox) => self.count_in_range(outbox, place, row, changes).await,
        }
    }

    async fn count_in_range(
        &self,
        outbox: &Arc<Outbox>,
        place: Place<'_>,
        row: &StepRow,
        changes: &Changes,
    ) -> Result<(CameTo, DurabilityPoint)> {
        let put = Update::put(place.row(), row.encode()).when(Condition::Absent);
        match self.record(outbox, place, Some(put), changes).await? {
            Transacted::Done { receipt, .. } => Ok((row.came_to.clone(), receipt.point)),
            Transacted::Conflict { item, receipt, .. } => {
                let there = item.as_deref().map(StepRow::decode).transpose()?;
                let there = there
                    .ok_or_else(|| ports::Error::corrupt("find the step that is in the way"))?;
                Ok((there.came_to, receipt.point))
            }
        }
    }

    /// One record of a lane: a step's row, if it is to count, what it has written and what it sends.
    async fn record(
        &self,
        outbox: &Arc<Outbox>,
        place: Place<'_>,
        row: Option<Update>,
        changes: &Changes,
    ) -> Result<Transacted> {
        let mut enclosed = outbox.enclose(place, changes).await?;
        let mut updates = Vec::from_iter(row);
        updates.extend(
            changes
                .writes
                .iter()
                .map(|(key, written)| Update::of(layout::state(key), value(written.as_ref()))),
        );
        updates.append(&mut enclosed.updates);
        if updates.len() > self.rows.limits().transact_items_max {
            let most = self.rows.limits().transact_items_max - 1;
            return Err(Error::TooLarge(format!(
                "a step of a workflow with this far store writes {most} keys at most, one less if it sends"
            )));
        }
        if changes.sends.is_empty() {
            return Ok(self.rows.transact(updates).await?);
        }
        // A run that is cancelled meanwhile stops waiting; what counts is sent all the same.
        let (rows, outbox) = (Arc::clone(&self.rows), Arc::clone(outbox));
        let recorded = tokio::spawn(async move {
            let transacted = rows.transact(updates).await?;
            if let Transacted::Done { receipt, .. } = &transacted {
                outbox.take(enclosed, receipt.point);
            }
            Ok(transacted)
        });
        recorded
            .await
            .unwrap_or_else(|_| Err(ports::Error::unavailable("have a step count").into()))
    }

    async fn count_in_transaction(
        &self,
        engine: &Engine,
        place: Place<'_>,
        row: &StepRow,
        changes: &Changes,
    ) -> Result<(CameTo, DurabilityPoint)> {
        // Before its begin ends that of whoever is at the run now.
        self.check_own(place)?;
        let name = layout::transaction(place.workflow, place.run, place.began_ms, place.path);
        let id = Some(name).filter(|_| self.broken != Some(Broken::NamesNoStep));
        let call = match begin(
            engine,
            Begin {
                id,
                ..Begin::default()
            },
        )
        .await?
        {
            Ok(call) => call,
            Err(point) => return self.counted(place, point).await,
        };
        self.check_driver(place, engine, &call).await?;
        let number = call.attempt.map(number_of).unwrap_or_default();
        let is_early = self.broken == Some(Broken::ResultBeforeWrites);
        let numbered = StepRow {
            attempt: Some(number).filter(|_| !is_early),
            ..row.clone()
        };
        let put = Update::put(place.row(), numbered.encode()).when(is_before(number));
        let (outcome, written) = self.write_step(place, put).await?;
        if let Outcome::Conflict(item) = outcome {
            engine.abort(&call).await?;
            let there = item.as_deref().map(StepRow::decode).transpose()?;
            return match there {
                Some(there) if there.attempt.is_none() => Ok((there.came_to, written)),
                _ => Err(Error::AttemptEnded),
            };
        }
        let point = commit(engine, &call, changes.clone()).await?;
        Ok((row.came_to.clone(), point.max(written)))
    }

    /// Has the row of a step that counts say so by itself, whether or not the name of its transaction is remembered.
    pub(crate) async fn confirm_step(&self, place: Place<'_>) -> Result<()> {
        let update = Update::modify(place.row(), vec![Action::Unset(ATTEMPT.into())]);
        // It is missing where it was forgotten meanwhile.
        self.rows.update(update.when(Condition::Exists)).await?;
        Ok(())
    }

    /// What a step has come to whose transaction has committed.
    async fn counted(
        &self,
        place: Place<'_>,
        point: DurabilityPoint,
    ) -> Result<(CameTo, DurabilityPoint)> {
        let read = self.rows.get(&place.row()).await?;
        let row = read.value.as_deref().map(StepRow::decode).transpose()?;
        let row = row.ok_or_else(|| ports::Error::corrupt("find the row of a step that counts"))?;
        Ok((row.came_to, read.point.max(point)))
    }

    /// The steps of a run that count, by their paths.
    pub(crate) async fn steps(
        &self,
        workflow: &str,
        run: &str,
        began_ms: u64,
    ) -> Result<(BTreeMap<String, StepRow>, DurabilityPoint)> {
        let (rows, mut point) = self
            .rows_of(layout::steps(workflow, run, PAGE_ROWS))
            .await?;
        let mut steps = BTreeMap::new();
        for (sort, item) in rows {
            let path = layout::path_of(run, &sort)
                .ok_or_else(|| ports::Error::corrupt("read a step's key"))?;
            let row = StepRow::decode(&item)?;
            let counts = match (row.attempt, &self.state) {
                (Some(_), State::Transactions(engine)) => {
                    let name = layout::transaction(workflow, run, began_ms, &path);
                    let counts = has_committed(engine, &name).await?;
                    point = point.max(counts.1);
                    counts.0
                }
                _ => true,
            };
            if counts {
                steps.insert(path, row);
            }
        }
        Ok((steps, point))
    }

    /// Begins the transaction of an atomic run; none: it has committed. Errors: `AttemptEnded` for who is not its driver any more.
    pub(crate) async fn begin_atomic(
        &self,
        place: Place<'_>,
        isolation: Isolation,
    ) -> Result<Option<Call>> {
        let State::Transactions(engine) = &self.state else {
            return Err(Error::Invalid("an atomic run has no far store".to_owned()));
        };
        self.check_own(place)?;
        let id = Some(layout::transaction(
            place.workflow,
            place.run,
            place.began_ms,
            "",
        ));
        let begun = begin(
            engine,
            Begin {
                id,
                isolation,
                ..Begin::default()
            },
        )
        .await?
        .ok();
        if let Some(call) = &begun {
            self.check_driver(place, engine, call).await?;
        }
        Ok(begun)
    }

    /// Reads in a transaction.
    pub(crate) async fn get_in(
        &self,
        call: &Call,
        key: &Bytes,
    ) -> Result<(Option<Bytes>, DurabilityPoint)> {
        let State::Transactions(engine) = &self.state else {
            return self.get(key).await;
        };
        let shown = engine.get(call, &state_key(key)?).await?;
        Ok((shown.value, shown.point))
    }

    /// Commits an atomic run: what it comes to stands in its row before.
    pub(crate) async fn commit_atomic(
        &self,
        place: Place<'_>,
        call: &Call,
        output: &Bytes,
        changes: Changes,
    ) -> Result<DurabilityPoint> {
        let State::Transactions(engine) = &self.state else {
            return Ok(DurabilityPoint::DURABLE);
        };
        let key = layout::run(place.workflow, place.run);
        let told = Update::modify(key, vec![Action::set("output", output.clone())]);
        let updated = self
            .rows
            .update(told.when(is_driven_by(place.driver)))
            .await?;
        if let Outcome::Conflict(_) = updated.outcome {
            return Err(Error::RunEnded);
        }
        commit(engine, call, changes).await
    }

    /// Begins a run, unless there is one of this id: then that.
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

    /// Ends a run as `row` says. Errors: `RunEnded` if it has been ended otherwise, or has another driver.
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

    /// What a run was given that there is.
    pub(crate) async fn given(&self, workflow: &str, run: &str) -> Result<Given> {
        let read = self.rows.get(&layout::given(workflow, run)).await?;
        let item = read
            .value
            .ok_or_else(|| ports::Error::corrupt("find what a run was given"))?;
        Ok(Given::decode(&item)?)
    }

    /// The run that began then, as it is said to have ended where the far store has refused its rows for good.
    pub(crate) async fn refused(
        &self,
        workflow: &str,
        run: &str,
        began_ms: u64,
    ) -> Result<Option<(RunRow, DurabilityPoint)>> {
        if !self.is_apart() {
            return Ok(None);
        }
        let read = self.rows.get(&layout::refused(workflow, run)).await?;
        let row = read.value.as_deref().map(RunRow::decode).transpose()?;
        // An earlier run of this id may have been lost with its near store, all but its note.
        Ok(row
            .filter(|row| row.began_ms == began_ms)
            .map(|row| (row, read.point)))
    }

    /// Notes beside the rows of a run, behind which nothing can be written any more, how it has ended; what was noted of it first
    /// stays. To be asked of a store that has read none of them.
    pub(crate) async fn note_refused(&self, workflow: &str, run: &str, row: &RunRow) -> Result<()> {
        let put = Update::put(layout::refused(workflow, run), row.encode());
        self.rows
            .update(put.when(is_of_earlier(row.began_ms)))
            .await?;
        Ok(())
    }

    /// Some runs behind `after`, and whether there may be more behind the last of them.
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

    /// The runs under way.
    pub(crate) async fn active(&self, workflow: &str) -> Result<Vec<String>> {
        let (rows, _) = self
            .rows_of(layout::all_active(workflow, PAGE_ROWS))
            .await?;
        Ok(rows
            .iter()
            .filter_map(|(sort, _)| layout::run_of(sort))
            .collect())
    }

    /// Notes that a workflow has rows.
    pub(crate) async fn list(&self, workflow: &str) -> Result<()> {
        let put = Update::put(layout::listed(workflow), Vec::<(Name, Value)>::new())
            .when(Condition::Absent);
        self.rows.update(put).await?;
        Ok(())
    }

    /// Notes, near, that a workflow has rows in the far store at `address`.
    pub(crate) async fn list_home(&self, workflow: &str, address: &str) -> Result<()> {
        let says = vec![(
            ADDRESS.into(),
            Value::Bytes(Bytes::from(address.to_owned())),
        )];
        self.rows
            .update(Update::put(
                layout::home(workflow, &place_of(address)),
                says,
            ))
            .await?;
        Ok(())
    }

    /// The workflows that have rows in far stores, with the addresses of those as they were said last.
    pub(crate) async fn listed_homes(&self) -> Result<Vec<(String, String)>> {
        let (rows, _) = self.rows_of(layout::all_homes(PAGE_ROWS)).await?;
        let home = |(sort, item): &(Bytes, Arc<Item>)| {
            let address = String::from_utf8(item.bytes(ADDRESS)?.to_vec()).ok()?;
            Some((layout::workflow_of(sort)?, address))
        };
        Ok(rows.iter().filter_map(home).collect())
    }

    /// The addresses of the far stores that this workflow has rows in.
    pub(crate) async fn homes_of(&self, workflow: &str) -> Result<Vec<String>> {
        let (rows, _) = self.rows_of(layout::homes(workflow, PAGE_ROWS)).await?;
        let address = |item: &Item| String::from_utf8(item.bytes(ADDRESS)?.to_vec()).ok();
        Ok(rows.iter().filter_map(|(_, item)| address(item)).collect())
    }

    /// Whether a workflow has rows here.
    pub(crate) async fn is_listed(&self, workflow: &str) -> Result<bool> {
        Ok(self
            .rows
            .get(&layout::listed(workflow))
            .await?
            .value
            .is_some())
    }

    /// The workflows that have rows.
    pub(crate) async fn listed(&self) -> Result<Vec<String>> {
        let (rows, _) = self.rows_of(layout::all_listed(PAGE_ROWS)).await?;
        Ok(rows
            .iter()
            .filter_map(|(sort, _)| String::from_utf8(sort.to_vec()).ok())
            .collect())
    }

    /// Runs that have ended, the oldest first, with when.
    pub(crate) async fn finished(&self, workflow: &str) -> Result<Vec<(u64, String)>> {
        let (rows, _) = self
            .rows_of(layout::all_finished(workflow, PAGE_ROWS))
            .await?;
        Ok(rows
            .iter()
            .filter_map(|(sort, _)| layout::finished_of(sort))
            .collect())
    }

    /// Removes a run that has ended then, unless another of its id has begun since. Its row goes last, and with that among the ended,
    /// so that a death leaves something to go on from, and who begins another under its id meets neither.
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
            self.is_apart()
                .then(|| Update::delete(layout::refused(workflow, run))),
        );
        match self.rows.transact(last).await? {
            Transacted::Done { .. } => Ok(()),
            Transacted::Conflict { .. } => self.forget_end(workflow, ended_ms, run).await,
        }
    }

    /// Removes what is left of a run that somebody else has forgotten, perhaps nothing.
    async fn forget_end(&self, workflow: &str, ended_ms: u64, run: &str) -> Result<()> {
        self.rows
            .update(Update::delete(layout::finished(workflow, ended_ms, run)))
            .await?;
        Ok(())
    }

    pub(crate) async fn rows_of(
        &self,
        mut scan: Scan,
    ) -> Result<(Vec<(Bytes, Arc<Item>)>, DurabilityPoint)> {
        let (mut rows, mut point) = (Vec::new(), DurabilityPoint::DURABLE);
        loop {
            let read = self.rows.scan(&scan).await?;
            rows.extend(read.value.items);
            point = point.max(read.point);
            match read.value.next {
                Some(next) => scan.from = next,
                None => return Ok((rows, point)),
            }
        }
    }
}
