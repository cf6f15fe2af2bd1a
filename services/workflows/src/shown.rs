//! What callers are shown of runs, once it is durable; and how they end one.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use ports::DurabilityPoint;
use transactions::model::Isolation;

use crate::{
    Broken, Error, Result, Service,
    active::Key,
    homes::Home,
    records::{RunRow, Status},
    service::check_id,
    store::{Place, Store},
    view::{RunView, StepView},
};

/// Runs in one answer.
const PAGE_RUNS: usize = 100;
/// How long a store may take for what an answer rests on: a connection that is quiet for longer is cut, and nobody is told why.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Lanes that are opened for one that rests on nothing refused: each that does not has found out what else is.
const SOUND_LANES_MAX: usize = 100;
/// The wait before it is looked again whether a run has been taken up.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The home that an answer waits for now: who gives up says what the trouble is with that one, and not with another of the workflow.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waited(Arc<Mutex<Option<Home>>>);

impl Waited {
    fn is_for(&self, home: &Home) {
        *self.0.lock() = Some(home.clone());
    }

    fn home(&self) -> Option<Home> {
        self.0.lock().clone()
    }
}

/// A run, and where it lies.
type Found = (Home, Store, (RunRow, DurabilityPoint));

/// What has become of a run that is to be ended.
#[derive(Debug)]
pub(crate) enum End {
    /// It has ended.
    Written,
    /// It has an end of its own, which is only to be written.
    Own,
    /// Another process is at it, as this row says, or was a moment ago.
    Elsewhere(RunRow),
}

impl Service {
    /// What is said in place of what is not durable in time: as the far store that was waited for says, or does not answer.
    pub(crate) fn late(&self, waited: &Waited) -> impl FnOnce() -> ports::Error + Send + 'static {
        let (inner, waited) = (Arc::clone(&self.inner), waited.clone());
        move || {
            let trouble = waited.home().and_then(|home| inner.trouble(&home));
            let why = trouble.unwrap_or_else(|| "its store does not answer in time".to_owned());
            ports::Error::unavailable(format!("show what is not durable yet: {why}"))
        }
    }

    /// A run, once what is said of it is durable (W3). Errors: `Unavailable` if that takes too long.
    pub async fn run(&self, name: &str, id: &str) -> Result<RunView> {
        self.shown_within(ANSWER_MAX, name, id).await
    }

    async fn shown_within(&self, most: Duration, name: &str, id: &str) -> Result<RunView> {
        let waited = Waited::default();
        self.within(
            most,
            self.late(&waited),
            Box::pin(self.show(name, id, &waited)),
        )
        .await
    }

    /// The answer, or `late` in its place.
    pub(crate) fn within<T>(
        &self,
        most: Duration,
        late: impl FnOnce() -> ports::Error + Send,
        answer: impl Future<Output = Result<T>>,
    ) -> impl Future<Output = Result<T>> {
        // On the heap, or whoever asks for several would be as large as all of them.
        let answer = Box::pin(answer);
        async move {
            tokio::select! {
                biased;
                answer = answer => answer.map_err(|error| self.inner.told(error)),
                () = self.inner.parts.clock.sleep(most) => Err(late().into()),
            }
        }
    }

    /// What a run has come to is what its row says, once that is far: also where a later start has sent what was refused before.
    /// Only of one whose row is not far, or has no end, does a note beside it say that it has failed.
    async fn show(&self, name: &str, id: &str, waited: &Waited) -> Result<RunView> {
        let (home, store, (row, point)) = self.find(name, id, waited).await?;
        match store.externalize(point).await {
            Err(error) if store.is_apart() && error.is_refusal() => {
                self.show_refused(&home, name, id).await
            }
            externalized => {
                externalized?;
                self.show_far(&home, (name, id), row).await
            }
        }
    }

    /// A run whose row is far. One that has not ended, and is noted as refused, will be ended by whoever takes it up.
    async fn show_far(
        &self,
        home: &Home,
        (name, id): (&str, &str),
        row: RunRow,
    ) -> Result<RunView> {
        if matches!(home, Home::Far(_)) && row.status == Status::Running {
            // In a lane that has read nothing else of it.
            let store = self.inner.homes.store(home).await?;
            if let Some((row, point)) = store.refused(name, id, row.began_ms).await? {
                store.externalize(point).await?;
                return Ok(RunView::of(id.to_owned(), &row));
            }
        }
        Ok(RunView::of(id.to_owned(), &row))
    }

    /// A run of which it seems that the far store has refused its row for good. If so, nothing can be written behind that row, which
    /// may say that the run has succeeded; that it has failed is noted beside it.
    async fn show_refused(&self, home: &Home, name: &str, id: &str) -> Result<RunView> {
        let store = self.sound_lane(home).await?;
        let found = store.run(name, id).await?;
        let (row, point) = found.ok_or_else(|| Error::NoSuchRun(id.to_owned()))?;
        let refused = match store.externalize(point).await {
            Err(error) if error.is_refusal() => error,
            externalized => {
                externalized?;
                return self.show_far(home, (name, id), row).await;
            }
        };
        self.note_and_show(home, (name, id), &row, refused).await
    }

    /// Notes that a run has failed whose `row` the far store has refused, and shows that once it is far.
    async fn note_and_show(
        &self,
        home: &Home,
        (name, id): (&str, &str),
        row: &RunRow,
        refused: Error,
    ) -> Result<RunView> {
        let store = self.inner.homes.store(home).await?;
        store
            .note_refused(name, id, &row.refused(&refused, self.inner.now_ms()))
            .await?;
        let noted = store.refused(name, id, row.began_ms).await?;
        let (row, point) = noted.ok_or(refused)?;
        store.externalize(point).await?;
        Ok(RunView::of(id.to_owned(), &row))
    }

    /// A lane that rests on nothing that is refused. One that was opened before it was known what the far store refuses of what an
    /// earlier start has left rests on that too, whoever wrote it: what is refused there says nothing of a run.
    async fn sound_lane(&self, home: &Home) -> Result<Store> {
        let mut refused = None;
        for _ in 0..SOUND_LANES_MAX {
            let store = self.inner.homes.store(home).await?;
            match store.externalize(store.rows.point()).await {
                Err(error) if error.is_refusal() => refused = Some(error),
                externalized => return externalized.map(|()| store),
            }
        }
        Err(refused
            .unwrap_or_else(|| ports::Error::unavailable("find what the far store takes").into()))
    }

    /// A run, and where it lies: first of all where its workflow is at home now, and at last where another process has noted some.
    async fn find(&self, name: &str, id: &str, waited: &Waited) -> Result<Found> {
        let known = self.inner.homes_of(name).unwrap_or_default();
        let missing = match self.find_in(&known, (name, id), waited).await {
            Err(missing) => missing,
            found => return found,
        };
        let all = self.inner.all_homes_of(name).await?;
        let more: Vec<Home> = all
            .into_iter()
            .filter(|home| !known.contains(home))
            .collect();
        match self.find_in(&more, (name, id), waited).await {
            Err(Error::NoSuchRun(_)) => Err(missing),
            found => found,
        }
    }

    async fn find_in(
        &self,
        homes: &[Home],
        (name, id): (&str, &str),
        waited: &Waited,
    ) -> Result<Found> {
        let mut missing = Error::NoSuchRun(id.to_owned());
        for home in homes {
            waited.is_for(home);
            let found = async {
                let Some(store) = self.inner.homes.store_to_search(home).await? else {
                    return Ok(None);
                };
                let row = store.run(name, id).await?;
                Ok(row.map(|row| (store, row)))
            };
            match found.await {
                Ok(Some((store, row))) => return Ok((home.clone(), store, row)),
                Ok(None) => {}
                // It may be there.
                Err(error) => missing = error,
            }
        }
        Err(missing)
    }

    /// The same once it has ended, or after `most`.
    pub async fn wait(&self, name: &str, id: &str, most: Duration) -> Result<RunView> {
        let until = self.inner.parts.clock.monotonic() + most;
        let key = (name.to_owned(), id.to_owned());
        loop {
            let ended = self.inner.active.ended(&key);
            let is_under_way = ended.is_some();
            let left = until.since(self.inner.parts.clock.monotonic());
            if let Some(mut ended) = ended {
                tokio::select! {
                    biased;
                    _ = ended.wait_for(|ended| *ended) => {}
                    () = self.inner.parts.clock.sleep(left) => {}
                }
            }
            let left = until.since(self.inner.parts.clock.monotonic());
            let view = self.shown_within(left.max(ANSWER_MAX), name, id).await?;
            if view.status != Status::Running || left.is_zero() {
                return Ok(view);
            }
            if !is_under_way
                || self
                    .inner
                    .active
                    .ended(&key)
                    .is_some_and(|ended| *ended.borrow())
            {
                // It is just being taken up.
                self.inner.parts.clock.sleep(LOOK_AGAIN.min(left)).await;
            }
        }
    }

    /// The same of a run that whoever asks has just begun. Errors: `Unseen` if nothing of it can be shown.
    pub async fn wait_for_begun(&self, name: &str, id: &str, most: Duration) -> Result<RunView> {
        let said = || {
            format!(
                "the run {id:?} has begun, and what it comes to cannot be shown yet: ask for it by this id, \
                 and begin it again under this id only"
            )
        };
        self.wait(name, id, most)
            .await
            .map_err(|error| error.unseen(id, said()))
    }

    /// Some runs of a workflow behind `after`, in the order of their ids, as lists have them, and where to go on.
    /// Errors: `Unavailable` if that takes too long.
    pub async fn runs(
        &self,
        name: &str,
        status: Option<Status>,
        after: Option<&str>,
    ) -> Result<(Vec<RunView>, Option<String>)> {
        after.map(check_id).transpose()?;
        let waited = Waited::default();
        let page = Box::pin(self.page((name, status, after), &waited));
        self.within(ANSWER_MAX, self.late(&waited), page).await
    }

    async fn page(
        &self,
        (name, status, after): (&str, Option<Status>, Option<&str>),
        waited: &Waited,
    ) -> Result<(Vec<RunView>, Option<String>)> {
        let mut rows = Vec::new();
        let mut until: Option<String> = None;
        for home in self.inner.all_homes_of(name).await? {
            waited.is_for(&home);
            let Some(store) = self.inner.homes.store_to_search(&home).await? else {
                continue;
            };
            let here = store.runs(name, after, PAGE_RUNS).await?;
            store.externalize(here.point).await?;
            // Behind the end of a page there may be more, here and in between what is elsewhere.
            if let Some((last, _)) = here.rows.last().filter(|_| here.has_more) {
                until = Some(until.map_or_else(|| last.clone(), |until| until.min(last.clone())));
            }
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

    /// The steps of a run that count, in the order in which they ended. Errors: `Unavailable` if that takes too long.
    pub async fn steps(&self, name: &str, id: &str) -> Result<Vec<StepView>> {
        let waited = Waited::default();
        self.within(
            ANSWER_MAX,
            self.late(&waited),
            Box::pin(self.counted(name, id, &waited)),
        )
        .await
    }

    async fn counted(&self, name: &str, id: &str, waited: &Waited) -> Result<Vec<StepView>> {
        let (_, store, (row, _)) = self.find(name, id, waited).await?;
        let (steps, point) = store.steps(name, id, row.began_ms).await?;
        store.externalize(point).await?;
        let mut steps: Vec<StepView> = steps
            .into_iter()
            .map(|(path, row)| StepView::of(path, row))
            .collect();
        steps.sort_by_key(|step| (step.ended_ms, step.began_ms));
        Ok(steps)
    }

    /// Ends a run (W6). A run that has ended stays as it is. Errors: `Unseen` if that takes too long, and then it is still under way
    /// or ends a moment later.
    pub async fn cancel(&self, name: &str, id: &str) -> Result<RunView> {
        let waited = Waited::default();
        let found = self.find(name, id, &waited);
        let (home, _, (row, _)) = self.within(ANSWER_MAX, self.late(&waited), found).await?;
        if row.status != Status::Running {
            return self.run(name, id).await;
        }
        let (service, key) = (self.clone(), (name.to_owned(), id.to_owned()));
        let ended = self.apart(async move { service.end(key, home).await });
        let shown = async {
            self.within(ANSWER_MAX, self.late(&waited), ended).await?;
            self.run(name, id).await
        };
        let said = || {
            format!(
                "the run {id:?} is being ended, and that cannot be shown yet: ask for it, or end it again"
            )
        };
        shown.await.map_err(|error| error.unseen(id, said()))
    }

    /// Stops a run, and ends it, here or at the process that is at it; goes on with it where it cannot be ended.
    pub(crate) async fn end(&self, key: Key, home: Home) -> Result<()> {
        while let Some(row) = self.end_here(&key, &home).await? {
            let elsewhere = self.end_elsewhere(&key, &home, &row).await;
            if elsewhere.is_err()
                && let Some(claim) = self.inner.active.claim(&key)
            {
                // It may have been this process's until just now.
                self.work(claim, home.clone(), None);
            }
            elsewhere?;
        }
        Ok(())
    }

    /// The same, unless another process is at it: then its row.
    async fn end_here(&self, key: &Key, home: &Home) -> Result<Option<RunRow>> {
        if self.inner.options.breaks(Broken::GoesOnAfterCancelling) {
            return self.end_claimed(key, home).await.map(|_| None);
        }
        let (claim, stopped) = self.inner.active.seize(key).await;
        if let Some(stopped) = stopped {
            stopped.settled().await;
        }
        let ended = self.end_claimed(key, home).await;
        match ended {
            Ok(End::Written) => Ok(None),
            Ok(End::Elsewhere(row)) => Ok(Some(row)),
            Ok(End::Own) => {
                self.work(claim, home.clone(), None);
                Ok(None)
            }
            Err(error) => {
                self.work(claim, home.clone(), None);
                Err(error)
            }
        }
    }

    /// Ends a run, for who has claimed it.
    pub(crate) async fn end_claimed(&self, (name, id): &Key, home: &Home) -> Result<End> {
        let store = self.inner.homes.store(home).await?;
        let Some((seen, _)) = store.run(name, id).await? else {
            return Ok(End::Written);
        };
        if seen.status != Status::Running {
            return Ok(End::Written);
        }
        let row = match store.take((name, id), seen.clone()).await {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(End::Elsewhere(seen)),
            // Whether its driver lives cannot be said yet: it is asked, and somebody will know.
            Err(error) if error.passes() && seen.driver.is_some() => {
                return Ok(End::Elsewhere(seen));
            }
            Err(error) => return Err(error),
        };
        // Of an atomic run it must be known that it will not commit.
        let is_atomic = store.given(name, id).await?.workflow.atomic;
        let RunRow {
            began_ms, driver, ..
        } = row;
        let place = Place {
            workflow: name,
            run: id,
            began_ms,
            driver,
            path: "",
        };
        if is_atomic
            && store
                .begin_atomic(place, Isolation::default())
                .await?
                .is_none()
        {
            return Ok(End::Own);
        }
        let cancelled = || {
            let ended_ms = Some(self.inner.now_ms());
            RunRow {
                status: Status::Cancelled,
                output: None,
                ended_ms,
                ..row.clone()
            }
        };
        // What was said of it stays.
        let noted = store.refused(name, id, row.began_ms).await?;
        let row = noted.map_or_else(cancelled, |(refused, _)| refused);
        match store.end_run(name, id, &row).await {
            Ok(_) => {
                self.inner.tally.ended(row.status);
                if let Some(gone) = seen.driver.filter(|seen| Some(*seen) != driver) {
                    store.ask_no_more((name, id), gone, began_ms).await?;
                }
                Ok(End::Written)
            }
            Err(Error::RunEnded) => Ok(match store.run(name, id).await? {
                // Another process has taken it just now.
                Some((there, _))
                    if there.status == Status::Running && there.began_ms == began_ms =>
                {
                    End::Elsewhere(there)
                }
                _ => End::Written,
            }),
            Err(error) => Err(error),
        }
    }

    /// Where a workflow is at home now; of one that is not deployed any more, where it was.
    pub(crate) async fn now_at(&self, name: &str, waited: &Waited) -> Result<Store> {
        let homes = match self.inner.homes_of(name) {
            Err(_) => self.inner.all_homes_of(name).await?,
            known => known?,
        };
        let home = homes.into_iter().next();
        let home = home.ok_or_else(|| Error::NoSuchWorkflow(name.to_owned()))?;
        waited.is_for(&home);
        self.inner.homes.store(&home).await
    }

    /// The last value that counts of a key of the workflow's state, once it is durable. Errors: `Unavailable` if that takes too long.
    pub async fn state(&self, name: &str, key: &Bytes) -> Result<Option<Bytes>> {
        let waited = Waited::default();
        let durable = async {
            let store = self.now_at(name, &waited).await?;
            store.check_key(key.len())?;
            let (value, point) = store.get(key).await?;
            store.externalize(point).await?;
            Ok(value)
        };
        self.within(ANSWER_MAX, self.late(&waited), durable).await
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use async_trait::async_trait;
    use functions::manifest::workflow::Workflow;
    use ports::{
        key_value::SharedKeyValue,
        runtime::{Invocation, Ran},
    };
    use simulated::World;

    use super::*;
    use crate::{FarStores, Options, Parts, Runner};

    const AWAY: &str = "redis://away:1";

    /// A workflow whose far store is another one now.
    #[derive(Debug)]
    struct Moved;

    #[async_trait]
    impl Runner for Moved {
        fn workflow(&self, _: &str) -> Option<Arc<Workflow>> {
            let now = serde_json::json!({ "steps": ["f"], "far": "redis://here:1" });
            Some(Arc::new(serde_json::from_value(now).expect("it is one")))
        }

        fn workflows(&self) -> BTreeMap<String, Arc<Workflow>> {
            self.workflow("w")
                .map(|workflow| ("w".to_owned(), workflow))
                .into_iter()
                .collect()
        }

        fn retries(&self, _: &str) -> Option<u32> {
            None
        }

        async fn run(&self, _: &str, _: Invocation) -> Result<Ran, String> {
            Err("nothing runs here".to_owned())
        }
    }

    #[derive(Debug)]
    struct AllButOne(World);

    #[async_trait]
    impl FarStores for AllButOne {
        async fn open(&self, address: &str) -> ports::Result<SharedKeyValue> {
            if address == AWAY {
                Err(ports::Error::unavailable("reach it"))
            } else {
                Ok(self.0.key_value())
            }
        }
    }

    pub(crate) fn service(near: &World) -> Service {
        let (key_value, clock, entropy) = (near.key_value(), near.clock(), near.entropy());
        let parts = transactions::Parts {
            key_value: Arc::clone(&key_value),
            clock: Arc::clone(&clock),
            entropy: Arc::clone(&entropy),
        };
        let engine = transactions::Service::builder(parts)
            .build(transactions::Config::default())
            .engine();
        let parts = Parts {
            runner: Arc::new(Moved),
            key_value,
            transactions: engine,
            far_stores: Arc::new(AllButOne(World::new(2))),
            clock,
            entropy,
        };
        Service::new(parts, Options::default())
    }

    /// The trouble with where a workflow was before is none of an answer that waits for where it is now.
    #[test]
    fn who_gives_up_is_told_of_the_far_store_that_was_waited_for() {
        simulated::run(async {
            let service = service(&World::new(1));
            service
                .inner
                .homes
                .near()
                .list_home("w", AWAY)
                .await
                .expect("it is noted");
            service.start().await.expect("it starts");
            let waited = Waited::default();
            let said = || service.late(&waited)().to_string();
            service
                .find("w", "run", &waited)
                .await
                .expect_err("it may be where nobody answers");
            assert!(
                said().contains(&format!("the far store {AWAY} does not take it: ")),
                "{}",
                said()
            );
            service
                .now_at("w", &waited)
                .await
                .expect("this one answers");
            assert!(
                said().contains("its store does not answer in time"),
                "{}",
                said()
            );
            service.stop().await;
        });
    }
}
