//! The writer: validates a session's requests one after the other, and decides them in their session's row.
//!
//! An event function, triggered by the session's group of the request queue, so that one runs per session
//! while many run side by side. It works in batches of what waits (`faaskeeper.txt`, algorithm 1, made
//! crash-proof by C-1 to C-3):
//!
//! 1. per request: lock the znodes that it touches, in path order, and validate ([`plan`], [`crate::tree`]);
//! 2. decide: one conditional write to the session's row, which now carries the outcomes and the new states;
//! 3. install the new states and unlock ([`batch`]);
//! 4. push the outcomes, failures too, to the distributor. The writer itself answers nobody.
//!
//! A writer may die between any two of these. Before step 2 it has left locks that name a request which
//! its successor, or whoever meets the lock, shuts out; from step 2 on the outbox in the row says what is
//! left to do, and [`Turn::recover`] does it again. Pushing twice is harmless, since the distributor knows
//! what it has applied. Installing comes before pushing, so that the outbox entry of an applied update is
//! never needed again and the distributor may drop it.
//!
//! What is decided, installed and unlocked rests on the locks and rows that led to it ([`Basis`]); what is pushed says in
//! which start of the store it was planned, since a queue takes everything.
//!
//! A request whose planning fails again and again is decided as failed in its place (rule P1), so that what its client
//! sent after it is not held up for ever; see [`PLANNINGS_FAILED_MAX`]. Only its planning counts, which the session's
//! row keeps count of ([`Turn::begin_planning`]): what fails before it or after it, or in a delivery that it shared with
//! others, fails for reasons of others, and may go on until they are gone.

mod batch;
mod outbox;
mod plan;
mod tree;

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{Clock, Event, Handler, KeyValue, Queue, Result, functions::Failure, queue::Delivery};

use self::{
    batch::{Batch, Unplanned},
    plan::{Plan, Planned},
};
pub(crate) use self::{
    batch::{install, install_outbox},
    outbox::{finish, finish_one_of_many},
};
use crate::{
    Error,
    broken::Broken,
    config::Config,
    dependency::Basis,
    model::SessionId,
    records::{Effect, Operation, Submitted, decode},
    storage::{
        ephemerals::Ephemerals,
        node::Nodes,
        session::{Moved, Row, Sessions, State},
    },
};

/// The most requests of one decision. More would save little and keep the distributor waiting.
const BATCH_REQUESTS_MAX: usize = 64;

/// Their outcomes together take at most this part of the largest item: the row holds a few such batches.
const BATCH_BYTES_PART: usize = 8;

/// The paths of the ephemerals that vanish in one decision may together take this part of the largest item; what
/// else is written of each takes a few times as much.
const CLOSE_PATHS_PART: usize = 10;

/// So many ephemerals may vanish in one decision. The distributor applies them in one go, some 40 us each, and what others
/// ask for meanwhile waits; so do those who create beside them.
const CLOSE_EPHEMERALS_MAX: usize = 1000;

/// How long to wait, from first to last, for the part of an end before to be applied.
const PART_APPLIED_WAITS: RangeInclusive<Duration> =
    Duration::from_millis(2)..=Duration::from_secs(1);

/// From this delivery on the planning of a request is noted before it begins and after it has ended, since it may be what
/// fails, or what kills its writers. Before, those two writes are saved: most of what fails does so once.
const NOTED_ATTEMPTS_MIN: u32 = 3;

/// Once so many plannings of a request have failed that were noted, the next one that fails is its last: by its sixth
/// delivery it was tried for a second or two, and what fails that long is more likely the request than the store.
const PLANNINGS_FAILED_MAX: u64 = 3;

/// Once so many have failed, it is decided as failed without being looked at, by its ninth delivery: planning it has
/// killed writers, since one that fails and leaves its writer alive was the last one before.
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
    broken: Option<Broken>,
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
            broken: config.broken,
        }
    }

    async fn handle_messages(&self, deliveries: &[Delivery]) -> Result<(), Failure> {
        let Some(first) = deliveries.first() else {
            return Ok(());
        };
        let session = decode::<Submitted>(&first.body, "a request")?.session;
        let is_broken = self.broken == Some(Broken::DecidesByLostLocks);
        let mut basis = if is_broken {
            Basis::ignored()
        } else {
            Basis::default()
        };
        let row = match self.sessions.take_up(session, &mut basis).await? {
            Moved::Done(row) => row,
            // The session has ended and all it asked for is applied; nobody waits for these.
            Moved::Refused(_) => return Ok(()),
        };
        let redelivered = deliveries
            .iter()
            .any(|delivery| delivery.handle.attempt > 1);
        let mut turn = Turn {
            writer: self,
            session,
            row,
            basis,
        };
        // Nobody asks anything of a session that has ended, except the heartbeat, for what may be left of its end.
        if redelivered || turn.row.state == State::Closed {
            turn.recover().await?;
        }
        let mut done = 0;
        while done < deliveries.len() {
            // What was delivered before may have failed by any of these; one at a time, the one is found.
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
            _ => Err(Failure::new("the writer takes messages only")),
        }
    }
}

/// One invocation's work on one session, under one fencing number.
struct Turn<'writer> {
    writer: &'writer Writer,
    session: SessionId,
    row: Row,
    /// All that the turn has seen of the system store.
    basis: Basis,
}

impl Turn<'_> {
    /// Does again what an earlier writer may have left undone: installs and pushes all of the outbox.
    async fn recover(&mut self) -> Result<()> {
        finish(
            &self.writer.nodes,
            &*self.writer.queue,
            &self.row,
            &mut self.basis,
        )
        .await
    }

    /// Decides as many of `deliveries` together as can be, but not more than `most`. Answers how many are done
    /// with; none if the row has changed meanwhile and they must be judged by that.
    async fn decide_some(&mut self, deliveries: &[Delivery], most: usize) -> Result<usize> {
        let mut batch = Batch::new(&self.writer.nodes, self.session, &self.row, self.basis);
        let mut done = 0;
        for delivery in deliveries {
            let submitted = decode::<Submitted>(&delivery.body, "a request")?;
            assert_eq!(
                submitted.session, self.session,
                "a group holds the requests of one session"
            );
            if self.is_void(&submitted, &batch)? {
                done += 1;
                continue;
            }
            let is_end = matches!(submitted.operation, Operation::Close | Operation::Expire);
            if is_end && !batch.is_empty() {
                break;
            }
            if is_end && self.end_a_part(&submitted).await? {
                return Ok(0);
            }
            let outcome = match self
                .outcome(&submitted, delivery.handle.attempt, &mut batch)
                .await
            {
                Ok(plan) => Ok(plan),
                Err(Unplanned::Refused(refusal)) => Err(refusal),
                // Whatever it is, those before it need not wait for it. If it stays, it fails alone.
                Err(_) if !batch.is_empty() => break,
                Err(Unplanned::Contended) => {
                    unreachable!("a batch without requests waits for its locks")
                }
                Err(Unplanned::Failed(error)) => {
                    // Whoever meets these locks breaks them; giving them back only saves the wait.
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

    /// Whether nobody waits for the answer to a request, or it was decided before.
    fn is_void(&self, submitted: &Submitted, batch: &Batch<'_>) -> Result<bool> {
        let broken = self.writer.broken;
        let is_numbered = submitted.request > 0;
        let is_of_old_attach =
            submitted.attach != self.row.attach && broken != Some(Broken::AcceptsOldAttaches);
        let is_decided =
            submitted.request <= batch.request() && broken != Some(Broken::ForgetsRequestNumbers);
        if is_numbered && (is_of_old_attach || is_decided) {
            // Of an older connection, which nobody listens to, or decided before and pushed by `recover`.
            return Ok(true);
        }
        let is_due = match (self.row.state, &submitted.operation) {
            (State::Open, Operation::Expire) | (State::Closed, _) => false,
            (State::Open, _) | (State::Closing, Operation::Expire) => true,
            // The end that its client asked for and that has begun; or, where the heartbeat was faster, as good as its.
            (State::Closing, Operation::Close) => submitted.request == batch.request() + 1,
            (State::Closing, _) => false,
        };
        if !is_due {
            return Ok(true);
        }
        if is_numbered && submitted.request > batch.request() + 1 && broken.is_none() {
            return Err(ports::Error::corrupt(format!(
                "request {} of session {:?} came after {}",
                submitted.request,
                self.session,
                batch.request()
            )));
        }
        Ok(false)
    }

    /// Plans a request. A client's update whose planning fails for good is refused in its place (rule P1).
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
        if is_update && self.writer.sessions.room() < submitted.operation.room_min() {
            // It was sent before its gateway knew. Refusing it takes of the reserve, a little.
            return Err(Unplanned::Refused(Error::NoRoom));
        }
        let may_fail =
            is_update && batch.is_empty() && self.writer.broken != Some(Broken::BlocksForEver);
        if !may_fail || attempt < NOTED_ATTEMPTS_MIN {
            return self.planned(&submitted.operation, batch).await;
        }
        let failed = self.row.plannings;
        if failed >= PLANNINGS_MAX {
            tracing::error!(session = ?self.session, request = submitted.request, "gave a request up unseen");
            return Err(Unplanned::Refused(Error::System));
        }
        self.begin_planning(batch).await;
        match self.planned(&submitted.operation, batch).await {
            Err(Unplanned::Failed(error)) if failed >= PLANNINGS_FAILED_MAX => {
                tracing::error!(session = ?self.session, request = submitted.request, %error, "gave a request up");
                Err(Unplanned::Refused(Error::System))
            }
            Err(Unplanned::Failed(error)) => Err(Unplanned::Failed(error)),
            planned => {
                self.end_planning(batch).await;
                planned
            }
        }
    }

    /// Notes in the session's row that the next request is about to be planned, so that whoever comes after a writer
    /// that has died of it knows. Without the note its planning does not count: that the row could not be changed is
    /// no fault of the request, and if it stays so nothing is decided anyway.
    async fn begin_planning(&mut self, batch: &mut Batch<'_>) {
        if let Ok(Moved::Done(row)) = self
            .writer
            .sessions
            .begin_planning(self.session, &self.row, batch.basis())
            .await
        {
            self.row = row;
        }
    }

    /// Takes that back before anything else is done: it has been planned, and what fails or dies from here on says
    /// nothing of it. A decision takes it back as well. Also where the note seemed to fail: its answer may be all that did.
    ///
    /// A writer that dies between the last call of the planning and this one has counted against a request that is good:
    /// the two are calls of a store and cannot be one. It takes [`PLANNINGS_MAX`] deaths in just that moment, with none
    /// before it or after it, until such a request is given up.
    async fn end_planning(&mut self, batch: &mut Batch<'_>) {
        if self.writer.broken == Some(Broken::CountsWhatWasPlanned) {
            return;
        }
        if let Ok(Moved::Done(row)) = self
            .writer
            .sessions
            .end_planning(self.session, &self.row, batch.basis())
            .await
        {
            self.row = row;
        }
    }

    async fn planned(&self, operation: &Operation, batch: &mut Batch<'_>) -> Plan {
        loop {
            if let Some(planned) = self.placed(operation, batch).await? {
                return Ok(planned);
            }
        }
    }

    /// A plan, or a refusal in its place; none: the locks are others now, plan again.
    async fn placed(
        &self,
        operation: &Operation,
        batch: &mut Batch<'_>,
    ) -> Result<Option<Planned>, Unplanned> {
        match plan::plan(self.writer, operation, batch).await {
            Ok(planned) => Ok(Some(planned)),
            Err(Unplanned::Refused(refusal))
                if self.writer.broken == Some(Broken::ForgetsWhatRefused) =>
            {
                batch.forget_what_was_seen();
                Err(Unplanned::Refused(refusal))
            }
            Err(Unplanned::Refused(refusal)) if batch.anchor().await? => {
                Err(Unplanned::Refused(refusal))
            }
            Err(Unplanned::Refused(_)) => Ok(None),
            Err(unplanned) => Err(unplanned),
        }
    }

    /// Decides, installs and pushes a batch: false if the row refused it, and is now known as it is.
    async fn commit(&mut self, mut batch: Batch<'_>) -> Result<bool> {
        let decision = batch.decision();
        match self.writer.sessions.decide(decision, batch.basis()).await? {
            Moved::Done(row) => self.row = row,
            Moved::Refused(row) => {
                self.basis = *batch.basis();
                batch.release().await?;
                return self.refused(row).map(|()| false);
            }
        }
        let (outcomes, basis) = batch.install(&self.writer.ephemerals).await?;
        self.basis = basis;
        outbox::push(&*self.writer.queue, outcomes).await?;
        Ok(true)
    }

    /// Another connection, another writer or the heartbeat was faster.
    fn refused(&mut self, row: Option<Row>) -> Result<()> {
        let overtaken = row.as_ref().is_some_and(|row| row.fence != self.row.fence);
        match row {
            Some(row) => self.row = row,
            // Ended and applied: whatever is left is asked of nobody.
            None => self.row.state = State::Closed,
        }
        if overtaken {
            let session = self.session;
            return Err(ports::Error::unavailable(format!(
                "write for session {session:?}, which another writer took up"
            )));
        }
        Ok(())
    }

    /// A session whose ephemerals do not fit into one decision loses some of them before it ends: true if it
    /// did, or the row has changed.
    ///
    /// It is closing from before the first of them goes. An end that has begun is final, as in ZooKeeper, where a
    /// session that the leader is closing takes no connection any more: else another connection could take the session
    /// up with only part of what it owns.
    async fn end_a_part(&mut self, submitted: &Submitted) -> Result<bool> {
        self.let_others_in().await?;
        let some = CLOSE_EPHEMERALS_MAX + 1;
        let all = self
            .writer
            .ephemerals
            .first(self.session, some, &mut self.basis)
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
        if self.row.state == State::Open && self.writer.broken != Some(Broken::EndsOpenSessions) {
            return self.begin_end().await.map(|()| true);
        }
        let mut batch = Batch::new(&self.writer.nodes, self.session, &self.row, self.basis);
        let (paths, touched) = match plan::end(self.session, part.clone(), &mut batch).await {
            Ok(planned) => planned,
            Err(Unplanned::Failed(error)) => return Err(error),
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
                // Entries that turned out to name nothing of this session's, which makes no more: it is closing.
                self.writer
                    .ephemerals
                    .discard(self.session, path, &mut self.basis)
                    .await?;
            }
        }
        Ok(true)
    }

    /// Waits until the part of the end before is applied, so that what other sessions have decided meanwhile comes before
    /// the next: else a large end would stand in the distributor's queue as a whole. Whatever keeps the distributor, the end
    /// goes on after a while.
    async fn let_others_in(&mut self) -> Result<()> {
        if self.row.state != State::Closing || self.writer.broken == Some(Broken::EndsInOneGo) {
            return Ok(());
        }
        let mut wait = *PART_APPLIED_WAITS.start();
        while self.row.applied < self.row.sequence && wait <= *PART_APPLIED_WAITS.end() {
            self.writer.clock.sleep(wait).await;
            wait *= 2;
            match self
                .writer
                .sessions
                .get(self.session, &mut self.basis)
                .await?
            {
                Some(row) if row.fence == self.row.fence => self.row = row,
                row => return self.refused(row),
            }
        }
        Ok(())
    }

    /// Nothing but its end is decided in the session from here on, whoever asks.
    async fn begin_end(&mut self) -> Result<()> {
        match self
            .writer
            .sessions
            .begin_end(self.session, &self.row, &mut self.basis)
            .await?
        {
            Moved::Done(row) => {
                self.row = row;
                Ok(())
            }
            Moved::Refused(row) => self.refused(row),
        }
    }
}

#[cfg(test)]
mod tests;
