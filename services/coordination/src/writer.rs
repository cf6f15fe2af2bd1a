//! The writer: validates a session's requests in order, and decides them in the session's row.
//!
//! An event function, triggered by the session's group of the request queue. One invocation runs
//! per session at a time, and many sessions run in parallel. It works on batches of waiting
//! requests (`faaskeeper.txt`, algorithm 1, made crash-safe by C-1 to C-3):
//!
//! 1. For each request, lock the znodes that it touches, in path order, and validate ([`plan`],
//!    [`tree`]).
//! 2. Decide: one conditional write to the session's row, which then holds the outcomes and the new
//!    states.
//! 3. Install the new states and unlock ([`batch`]).
//! 4. Push the outcomes, including refusals, to the distributor. The writer itself sends no
//!    answers.
//!
//! A writer may die between any two steps. Before step 2 it leaves locks of an undecided request.
//! Its successor, or any writer that meets a lock, fences that request out. From step 2 on, the
//! outbox in the row holds the remaining work, and [`Turn::recover`] repeats it. Pushing twice is
//! harmless, because the distributor knows what it has applied. Installing precedes pushing, so the
//! outbox entry of an applied update is never needed again, and the distributor may remove it.
//!
//! Deciding, installing and unlocking depend on the locks and rows that led to them
//! ([`Dependency`]). A pushed message says in which incarnation of the store it was planned,
//! because a queue accepts any message.
//!
//! If the planning of a request fails repeatedly, the request is decided as failed, at its position
//! (rule P1), so that it does not block its client's later requests forever; see
//! [`PLANNINGS_FAILED_MAX`]. Only failed planning attempts count, and the session's row counts them
//! ([`Turn::begin_planning`]). A failure before or after planning, or in a delivery shared with
//! other requests, has other causes and may be retried until they are gone.

mod batch;
mod outbox;
mod plan;
mod tree;

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{Clock, Event, Handler, KeyValue, Queue, Result, functions::Failure, queue::Delivery};
use primitives::Mutant;

use self::{
    batch::{Batch, PlanError},
    plan::{Plan, Planned},
};
pub(crate) use self::{
    batch::{install, install_outbox},
    outbox::{finish, finish_or_skip},
};
use crate::{
    Error,
    broken::Broken,
    config::Config,
    dependency::Dependency,
    model::SessionId,
    records::{Effect, Operation, Submitted, decode},
    storage::{
        ephemerals::Ephemerals,
        node::Nodes,
        session::{Row, Sessions, State, Transition},
    },
};

/// The most requests in one decision. More would save little and delay the distributor.
const BATCH_REQUESTS_MAX: usize = 64;

/// The outcomes of one decision take at most the largest item divided by this, because the row
/// holds a few such batches.
const BATCH_BYTES_PART: usize = 8;

/// The paths of the ephemerals that one decision deletes take at most the largest item divided by
/// this. The other data per path is a few times as long.
const CLOSE_PATHS_PART: usize = 10;

/// The most ephemerals that one decision deletes. The distributor applies them together, at about
/// 40 us each. Meanwhile the requests of other clients wait, and so do creates under the same
/// parents.
const CLOSE_EPHEMERALS_MAX: usize = 1000;

/// The first and the last wait for the previous part of an end to be applied.
const PART_APPLIED_WAITS: RangeInclusive<Duration> =
    Duration::from_millis(2)..=Duration::from_secs(1);

/// From this delivery on, the planning of a request is noted before it begins and after it ends,
/// because it may be the planning that fails or kills its writers. Earlier deliveries save these
/// two writes, because most failures occur once.
const NOTED_ATTEMPTS_MIN: u32 = 3;

/// After this many noted failures the next failed planning is the last. By then, at its sixth
/// delivery, the request was retried for one or two seconds. A failure that lasts that long is more
/// likely caused by the request than by the store.
const PLANNINGS_FAILED_MAX: u64 = 3;

/// After this many noted failures the request is decided as failed without planning, by its ninth
/// delivery. Its planning has killed writers. If a writer had survived a failure, that attempt
/// would have been the last.
const PLANNINGS_MAX: u64 = 6;

/// The writer function.
#[derive(Debug)]
pub struct Writer {
    queue: Arc<dyn Queue>,
    clock: Arc<dyn Clock>,
    sessions: Sessions,
    nodes: Nodes,
    ephemerals: Ephemerals,
    item_bytes_max: usize,
    mutant: Mutant<Broken>,
}

impl Writer {
    /// A writer on `system`, pushing to `queue`.
    pub fn new(
        system: Arc<dyn KeyValue>,
        queue: Arc<dyn Queue>,
        clock: Arc<dyn Clock>,
        nodes: Nodes,
        config: &Config,
    ) -> Self {
        Self {
            queue,
            clock,
            sessions: Sessions::new(system.clone()),
            nodes,
            item_bytes_max: system.limits().item_bytes_max,
            ephemerals: Ephemerals::new(system),
            mutant: config.mutant,
        }
    }

    async fn handle_messages(&self, deliveries: &[Delivery]) -> Result<(), Failure> {
        let Some(first) = deliveries.first() else {
            return Ok(());
        };
        let session = decode::<Submitted>(&first.body, "a request")?.session;
        let mut dependency = if self.mutant.breaks(Broken::DecidesUnderLostLocks) {
            Dependency::untracked()
        } else {
            Dependency::default()
        };
        let row = match self.sessions.acquire(session, &mut dependency).await? {
            Transition::Done(row) => row,
            // The session has ended and all its requests are applied, so no client waits for these.
            Transition::Refused(_) => return Ok(()),
        };
        let redelivered = deliveries
            .iter()
            .any(|delivery| delivery.handle.attempt > 1);
        let mut turn = Turn {
            writer: self,
            session,
            row,
            dependency,
        };
        // No client sends requests in an ended session. Only the heartbeat does, to finish the
        // session's end.
        if redelivered || turn.row.state == State::Closed {
            turn.recover().await?;
        }
        let mut done = 0;
        while done < deliveries.len() {
            // Any of these may have caused an earlier failure. Deciding them one by one isolates
            // it.
            let most = if redelivered { 1 } else { BATCH_REQUESTS_MAX };
            match turn.decide_some(&deliveries[done..], most).await {
                Ok(count) => done += count,
                Err(error) => return Err(Failure::after(done, error.to_string())),
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Handler for Writer {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        match event {
            Event::Messages { deliveries, .. } => self
                .handle_messages(&deliveries)
                .await
                .map(|()| Bytes::new()),
            _ => Err(Failure::new("the writer accepts only messages")),
        }
    }
}

/// The work of one invocation on one session, under one fencing number.
struct Turn<'writer> {
    writer: &'writer Writer,
    session: SessionId,
    row: Row,
    /// Everything that the turn has observed of the system store.
    dependency: Dependency,
}

impl Turn<'_> {
    /// Repeats the work that an earlier writer may have left: installs and pushes the whole outbox.
    async fn recover(&mut self) -> Result<()> {
        finish(
            &self.writer.nodes,
            &*self.writer.queue,
            &self.row,
            &mut self.dependency,
        )
        .await
    }

    /// Decides as many of `deliveries` together as possible, at most `most`. Returns how many are
    /// finished. Returns zero if the row has changed and they must be checked again.
    async fn decide_some(&mut self, deliveries: &[Delivery], most: usize) -> Result<usize> {
        let mut batch = Batch::new(&self.writer.nodes, self.session, &self.row, self.dependency);
        let mut done = 0;
        for delivery in deliveries {
            let submitted = decode::<Submitted>(&delivery.body, "a request")?;
            assert_eq!(
                submitted.session, self.session,
                "a group holds the requests of one session"
            );
            if self.needs_no_decision(&submitted, &batch)? {
                done += 1;
                continue;
            }
            let is_end = matches!(submitted.operation, Operation::Close | Operation::Expire);
            if is_end && !batch.is_empty() {
                break;
            }
            if is_end && self.end_in_parts(&submitted).await? {
                return Ok(0);
            }
            let outcome = match self
                .outcome(&submitted, delivery.handle.attempt, &mut batch)
                .await
            {
                Ok(plan) => Ok(plan),
                Err(PlanError::Refused(refusal)) => Err(refusal),
                // The requests before it need not wait for it. If it fails again, it fails alone.
                Err(_) if !batch.is_empty() => break,
                Err(PlanError::Contended) => {
                    unreachable!("a batch without requests waits for its locks")
                }
                Err(PlanError::Failed(error)) => {
                    // Any writer that meets these locks breaks them. Releasing them only saves that
                    // wait.
                    let _ = batch.release().await;
                    return Err(error);
                }
            };
            batch.add(&submitted, self.writer.clock.now().0 as i64, outcome);
            done += 1;
            let is_large = batch.bytes_len() * BATCH_BYTES_PART > self.writer.item_bytes_max;
            if is_end || is_large || batch.len() >= most {
                break;
            }
        }
        Ok(if batch.is_empty() || self.commit(batch).await? {
            done
        } else {
            0
        })
    }

    /// Whether a request needs no decision: no client waits for its answer, or it was decided
    /// before.
    fn needs_no_decision(&self, submitted: &Submitted, batch: &Batch<'_>) -> Result<bool> {
        let mutant = self.writer.mutant;
        let is_numbered = submitted.request > 0;
        let is_of_old_attach =
            submitted.attach != self.row.attach && !mutant.breaks(Broken::AcceptsOldAttaches);
        let is_decided =
            submitted.request <= batch.request() && !mutant.breaks(Broken::ForgetsRequestNumbers);
        if is_numbered && (is_of_old_attach || is_decided) {
            // From a replaced connection, or decided before and pushed by `recover`.
            return Ok(true);
        }
        let is_due = match (self.row.state, &submitted.operation) {
            (State::Open, Operation::Expire) | (State::Closed, _) => false,
            (State::Open, _) | (State::Closing, Operation::Expire) => true,
            // The client's own request for an end that has begun. If the heartbeat requested the
            // end first, this request serves as well.
            (State::Closing, Operation::Close) => submitted.request == batch.request() + 1,
            (State::Closing, _) => false,
        };
        if !is_due {
            return Ok(true);
        }
        if is_numbered && submitted.request > batch.request() + 1 && !mutant.is_any() {
            return Err(ports::Error::corrupt(format!(
                "request {} of session {:?} came after {}",
                submitted.request,
                self.session,
                batch.request()
            )));
        }
        Ok(false)
    }

    /// Plans a request. If the planning of a client's update fails permanently, refuses the update
    /// at its position (rule P1).
    async fn outcome(
        &mut self,
        submitted: &Submitted,
        attempt: u32,
        batch: &mut Batch<'_>,
    ) -> Plan {
        let is_update = matches!(
            submitted.operation,
            Operation::Create { .. } | Operation::Delete { .. } | Operation::SetData { .. }
        );
        if is_update && submitted.operation.needs_room() && !self.writer.sessions.has_room() {
            // It was sent before its gateway saw the full disk. The refusal uses a little of the
            // reserve.
            return Err(PlanError::Refused(Error::NoRoom));
        }
        let may_fail =
            is_update && batch.is_empty() && !self.writer.mutant.breaks(Broken::BlocksForever);
        if !may_fail || attempt < NOTED_ATTEMPTS_MIN {
            return self.plan_request(&submitted.operation, batch).await;
        }
        let failed = self.row.planning_attempts;
        if failed >= PLANNINGS_MAX {
            tracing::error!(session = ?self.session, request = submitted.request, "gave up a request without planning it");
            return Err(PlanError::Refused(Error::System));
        }
        self.begin_planning(batch).await;
        match self.plan_request(&submitted.operation, batch).await {
            Err(PlanError::Failed(error)) if failed >= PLANNINGS_FAILED_MAX => {
                tracing::error!(session = ?self.session, request = submitted.request, %error, "gave up a request");
                Err(PlanError::Refused(Error::System))
            }
            Err(PlanError::Failed(error)) => Err(PlanError::Failed(error)),
            planned => {
                self.end_planning(batch).await;
                planned
            }
        }
    }

    /// Notes in the session's row that the next request is about to be planned, so that the
    /// successor of a writer that dies of it can see this. If the note fails, this planning does
    /// not count. The failed write is not the request's fault, and while it fails nothing can be
    /// decided anyway.
    async fn begin_planning(&mut self, batch: &mut Batch<'_>) {
        if let Ok(Transition::Done(row)) = self
            .writer
            .sessions
            .begin_planning(self.session, &self.row, batch.dependency())
            .await
        {
            self.row = row;
        }
    }

    /// Removes these notes before any other step: the request is planned, and a later failure or
    /// death says nothing about its planning. A decision removes them too. This is also done if
    /// writing the note seemed to fail, because only the response may have been lost.
    ///
    /// If a writer dies between the planning's last call and this one, a valid request gets one
    /// failure counted. The two are separate calls to a store and cannot be atomic. The request is
    /// given up only after [`PLANNINGS_MAX`] deaths at exactly this point.
    async fn end_planning(&mut self, batch: &mut Batch<'_>) {
        if self.writer.mutant.breaks(Broken::CountsSuccessfulPlannings) {
            return;
        }
        if let Ok(Transition::Done(row)) = self
            .writer
            .sessions
            .end_planning(self.session, &self.row, batch.dependency())
            .await
        {
            self.row = row;
        }
    }

    async fn plan_request(&self, operation: &Operation, batch: &mut Batch<'_>) -> Plan {
        loop {
            if let Some(planned) = self.try_plan(operation, batch).await? {
                return Ok(planned);
            }
        }
    }

    /// A plan, or a refusal with its position in the order. `None` if the locks have changed and
    /// the request must be planned again.
    async fn try_plan(
        &self,
        operation: &Operation,
        batch: &mut Batch<'_>,
    ) -> Result<Option<Planned>, PlanError> {
        match plan::plan(self.writer, operation, batch).await {
            Ok(planned) => Ok(Some(planned)),
            Err(PlanError::Refused(refusal))
                if self.writer.mutant.breaks(Broken::ForgetsCausesOfRefusals) =>
            {
                batch.forget_planned_from();
                Err(PlanError::Refused(refusal))
            }
            Err(PlanError::Refused(refusal)) if batch.lock_ancestor().await? => {
                Err(PlanError::Refused(refusal))
            }
            Err(PlanError::Refused(_)) => Ok(None),
            Err(unplanned) => Err(unplanned),
        }
    }

    /// Decides, installs and pushes a batch. Returns false if the row refused the decision; then
    /// `self.row` is up to date.
    async fn commit(&mut self, mut batch: Batch<'_>) -> Result<bool> {
        let decision = batch.decision();
        match self
            .writer
            .sessions
            .decide(decision, batch.dependency())
            .await?
        {
            Transition::Done(row) => self.row = row,
            Transition::Refused(row) => {
                self.dependency = *batch.dependency();
                batch.release().await?;
                return self.refused(row).map(|()| false);
            }
        }
        let (outcomes, dependency) = batch.install(&self.writer.ephemerals).await?;
        self.dependency = dependency;
        outbox::push(&*self.writer.queue, outcomes).await?;
        Ok(true)
    }

    /// Handles a refusal: another connection, another writer or the heartbeat changed the row
    /// first.
    fn refused(&mut self, row: Option<Row>) -> Result<()> {
        let overtaken = row.as_ref().is_some_and(|row| row.fence != self.row.fence);
        match row {
            Some(row) => self.row = row,
            // The session ended and its end is applied, so no client waits for the rest.
            None => self.row.state = State::Closed,
        }
        if overtaken {
            let session = self.session;
            return Err(ports::Error::unavailable(format!(
                "write for session {session:?}, which another writer has taken over"
            )));
        }
        Ok(())
    }

    /// If a session's ephemerals do not fit into one decision, deletes some of them before the
    /// session ends. Returns true if it did so, or if the row has changed.
    ///
    /// The session moves to closing before its first ephemeral is deleted. An end that has begun is
    /// final, as in ZooKeeper, where a closing session accepts no connection. Otherwise another
    /// connection could resume the session with only part of its ephemerals.
    async fn end_in_parts(&mut self, submitted: &Submitted) -> Result<bool> {
        self.wait_for_part().await?;
        let some = CLOSE_EPHEMERALS_MAX + 1;
        let all = self
            .writer
            .ephemerals
            .first(self.session, some, &mut self.dependency)
            .await?;
        let bytes_max = self.writer.item_bytes_max / CLOSE_PATHS_PART;
        let mut bytes = 0;
        let fits = |path: &&String| {
            let is_first = bytes == 0;
            bytes += path.len();
            is_first || bytes <= bytes_max
        };
        let part: Vec<String> = all
            .iter()
            .take(CLOSE_EPHEMERALS_MAX)
            .take_while(fits)
            .cloned()
            .collect();
        if part.len() == all.len() {
            return Ok(false);
        }
        if self.row.state == State::Open && !self.writer.mutant.breaks(Broken::EndsOpenSessions) {
            return self.begin_closing().await.map(|()| true);
        }
        let mut batch = Batch::new(&self.writer.nodes, self.session, &self.row, self.dependency);
        let (paths, touched) = match plan::end(self.session, part.clone(), &mut batch).await {
            Ok(planned) => planned,
            Err(PlanError::Failed(error)) => return Err(error),
            Err(unplanned) => {
                unreachable!("{unplanned:?}: a batch without requests waits for its locks")
            }
        };
        let unnumbered = Submitted {
            request: 0,
            ..submitted.clone()
        };
        let time_ms = self.writer.clock.now().0 as i64;
        batch.add(
            &unnumbered,
            time_ms,
            Ok((Effect::Delete { paths }, touched)),
        );
        if self.commit(batch).await? {
            for path in &part {
                // Some entries named no znode of this session. The session is closing and creates
                // no more.
                self.writer
                    .ephemerals
                    .discard(self.session, path, &mut self.dependency)
                    .await?;
            }
        }
        Ok(true)
    }

    /// Waits until the previous part of the end is applied, so that requests that other sessions
    /// decided meanwhile precede the next part. Otherwise a large end would fill the distributor's
    /// queue as one block. If the distributor is delayed, the end continues after a while.
    async fn wait_for_part(&mut self) -> Result<()> {
        if self.row.state != State::Closing || self.writer.mutant.breaks(Broken::EndsInOneGo) {
            return Ok(());
        }
        let mut wait = *PART_APPLIED_WAITS.start();
        while self.row.applied < self.row.sequence && wait <= *PART_APPLIED_WAITS.end() {
            self.writer.clock.sleep(wait).await;
            wait *= 2;
            match self
                .writer
                .sessions
                .get(self.session, &mut self.dependency)
                .await?
            {
                Some(row) if row.fence == self.row.fence => self.row = row,
                row => return self.refused(row),
            }
        }
        Ok(())
    }

    /// Moves the session to closing: from now on only its end is decided.
    async fn begin_closing(&mut self) -> Result<()> {
        match self
            .writer
            .sessions
            .begin_closing(self.session, &self.row, &mut self.dependency)
            .await?
        {
            Transition::Done(row) => {
                self.row = row;
                Ok(())
            }
            Transition::Refused(row) => self.refused(row),
        }
    }
}

#[cfg(test)]
mod tests;
