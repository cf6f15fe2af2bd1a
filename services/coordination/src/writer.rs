//! The writer: validates a session's requests in order, and decides them in the session's row.
//!
//! An event function, triggered by the session's group of the request queue. One invocation runs
//! per session at a time, for one session or several, and many sessions run in parallel. It works
//! on batches of waiting requests (`faaskeeper.txt`, algorithm 1, made crash-safe by C-1 to C-3):
//!
//! 1. For each request, lock the znodes that it touches, in path order, and validate ([`plan`],
//!    [`tree`]).
//! 2. Decide: one conditional write to the session's row, which then holds the outcomes and the new
//!    states.
//! 3. Install the new states and unlock ([`batch`]).
//! 4. Push the outcomes, including refusals, to the distributor. The writer itself sends no
//!    answers.
//!
//! Where the store's transactions cross partitions, a writer first tries without locks. It reads
//! the znodes in step 1, and one transaction does steps 2 and 3. If no other process uses the
//! store, this transaction also numbers and applies the outcomes ([`crate::distributor`]). They
//! then enter no outbox, and step 4 is left out. Such a transaction may serve several sessions
//! ([`together`]). Ends of sessions, and requests that do not fit, take the steps above.
//!
//! A writer may die between any two steps. Before step 2 it leaves locks of an undecided request.
//! Its successor, or any writer that meets a lock, fences that request out. From step 2 on, the
//! outbox in the row holds the remaining work, and [`finish`] repeats it. Pushing twice is
//! harmless, because the distributor knows what it has applied. Installing precedes pushing, so the
//! outbox entry of an applied update is never needed again, and the distributor may remove it.
//!
//! Deciding, installing and unlocking depend on the locks and rows that led to them
//! ([`TrackedStore`]). A pushed message says in which incarnation of the store it was planned,
//! because a queue accepts any message.
//!
//! If the planning of a request fails repeatedly, the request is decided as failed, at its position
//! (rule P1), so that it does not block its client's later requests forever; see
//! [`PLANNINGS_FAILED_MAX`]. Only failed planning attempts count, and the session's row counts them
//! ([`Turn::begin_planning`]). A failure before or after planning, or in a delivery shared with
//! other requests, has other causes and may be retried until they are gone.

mod batch;
mod end;
mod hard_limits;
mod outbox;
mod own_rows;
mod plan;
mod together;
mod tree;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use ports::{Event, Handler, Result, functions::Failure, queue::Delivery};

pub(crate) use self::outbox::{finish, finish_or_skip};
use self::{
    batch::{Batch, Known, PlanError},
    end::CLOSE_EPHEMERALS_MAX,
    own_rows::{KeptRow, OwnRows},
    plan::Plan,
    tree::Asked,
};
use crate::{
    Error,
    broken::Broken,
    dependency::TrackedStore,
    distributor::{Directly, Distributor, RowDecision},
    environment::{Environment, Parts},
    model::SessionId,
    queue_names,
    records::{Operation, Submitted, decode},
    storage::{
        node::Locking,
        session::{self, Row, State, Together, Transition},
        user_store::UserStore,
    },
};

/// The most requests in one decision. More would save little and delay the distributor.
const BATCH_REQUESTS_MAX: usize = 32;

/// The outcomes of one decision take at most the largest item divided by this, because the row
/// holds a few such batches.
const BATCH_BYTES_PART: usize = 8;

/// Requests that are applied at once touch at most the items of a transaction divided by this. Each
/// znode has two items, and as many are left for the last request.
const BATCH_ZNODES_PART: usize = 4;

/// A multi, or a part of a session's end, takes at most the largest item divided by this, as a
/// decision and as an entry of a slot. A slot ends once it has half of that item.
const DECISION_BYTES_PART: usize = 3;

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

#[derive(Debug)]
pub(crate) struct Writer {
    env: Arc<Environment>,
    locking: Locking,
    /// Applies decisions directly, if the settings say so.
    distributor: Option<Arc<Distributor>>,
    /// The states that this process installed last. None if other processes install states too.
    known: Option<Known>,
    /// The session rows that this process wrote last, under the same condition.
    own_rows: Option<OwnRows>,
    /// The store with the quotas to enforce, if the settings say so.
    quotas: Option<UserStore>,
}

impl Writer {
    /// A writer that may hand its decisions directly to `distributor`, which is the one of this
    /// process.
    pub(crate) fn new(env: Arc<Environment>, distributor: &Arc<Distributor>) -> Self {
        let is_direct = env.config.applies_directly;
        let Parts { clock, entropy, .. } = env.parts.clone();
        let locking = Locking::new(clock, entropy, &env.config);
        let quotas = env.config.enforces_quotas.then(|| UserStore::of(&env));
        let distributor = is_direct.then(|| Arc::clone(distributor));
        let known = is_direct.then(Known::new);
        Self {
            env,
            locking,
            distributor,
            known,
            own_rows: is_direct.then(OwnRows::new),
            quotas,
        }
    }

    async fn handle_messages(&self, deliveries: &[Delivery]) -> Result<(), Failure> {
        let (received, undecodable) = received(deliveries);
        let session = |received: &Received| received.submitted.session;
        let sessions = received.chunk_by(|one, other| session(one) == session(other));
        let sessions: Vec<&[Received]> = sessions.collect();
        let is_shared = sessions.len() > 1;
        let mut begun = self.decide_together(&sessions).await?;
        // Side by side, so that none waits for another one's locks or failure.
        let handled = sessions.into_iter().map(|received| {
            let begun = begun.remove(&session(&received[0]));
            self.handle_session(received, begun, is_shared)
        });
        let handled = join_all(handled).await;
        handled.into_iter().collect::<Result<(), Failure>>()?;
        undecodable.map_or(Ok(()), |(message, error)| {
            Err(Failure::after(message, error.to_string()))
        })
    }

    /// Handles requests of one session. If the work on it has begun, so many of them are finished.
    async fn handle_session(
        &self,
        received: &[Received],
        begun: Option<(Turn<'_>, usize)>,
        is_shared: bool,
    ) -> Result<(), Failure> {
        if let Some((turn, done)) = begun {
            return turn.handle(&received[done..]).await;
        }
        let turn = self.begin_turn(received).await;
        match turn.map_err(|error| received[0].failed(&error))? {
            Some(mut turn) => {
                turn.is_shared = is_shared;
                turn.handle(received).await
            }
            // The session has ended and all its requests are applied, so no client waits for these.
            None => Ok(()),
        }
    }

    /// Begins the work on requests of one session. None if the session has ended.
    async fn begin_turn(&self, received: &[Received]) -> Result<Option<Turn<'_>>> {
        let session = received[0].submitted.session;
        let mut store = self.store();
        let Some(row) = self.take_over(&mut store, session, received).await? else {
            return Ok(None);
        };
        let mut turn = self.turn(row, store);
        let redelivered = is_redelivered(received);
        if redelivered
            && let Some(distributor) = &self.distributor
            && !self.env.breaks(Broken::AnnouncesOnce)
        {
            distributor.announce_again().await?;
        }
        // No client sends requests in an ended session. Only the heartbeat does, to finish the
        // session's end.
        if redelivered || turn.row.state == State::Closed {
            finish(&mut turn.store, &*self.env.parts.queue, &turn.row).await?;
        }
        Ok(Some(turn))
    }

    fn turn(&self, row: Row, store: TrackedStore) -> Turn<'_> {
        Turn {
            writer: self,
            session: row.session,
            row,
            store,
            ephemerals_max: CLOSE_EPHEMERALS_MAX,
            conflicts: 0,
            is_shared: false,
        }
    }

    fn store(&self) -> TrackedStore {
        let store = self.env.system();
        if self.env.breaks(Broken::DecidesUnderLostLocks) {
            store.untracked()
        } else {
            store
        }
    }

    /// Takes over a session, by raising its fence unless this process wrote its row last. None if
    /// the session has ended.
    async fn take_over(
        &self,
        store: &mut TrackedStore,
        session: SessionId,
        received: &[Received],
    ) -> Result<Option<Row>> {
        if let Some((row, point)) = self.own_row(session, received) {
            store.observe(point)?;
            return Ok(Some(row));
        }
        Ok(match session::acquire(store, session).await? {
            Transition::Done(row) => Some(row),
            Transition::Refused(_) => None,
        })
    }

    /// Whether a row has no room for more than a few such batches, or one transaction none for the
    /// next request.
    fn is_large(&self, batch: &Batch<'_>) -> bool {
        let limits = batch.store.store().limits();
        // Zero if no request fits into a transaction anyway.
        let znodes_max = limits.transact_items_max / BATCH_ZNODES_PART;
        let fills_transaction =
            self.distributor.is_some() && znodes_max > 0 && batch.znodes() > znodes_max;
        fills_transaction || batch.bytes_len * BATCH_BYTES_PART > limits.item_bytes_max
    }

    /// The row of a session, if this process wrote it last and it serves these requests.
    fn own_row(&self, session: SessionId, received: &[Received]) -> Option<KeptRow> {
        let own_rows = self.own_rows.as_ref()?;
        own_rows.take(&self.env, session, received)
    }
}

/// A request in a delivered batch.
struct Received {
    /// The place of its message in the batch.
    message: usize,
    /// The delivery attempt of its message.
    attempt: u32,
    submitted: Submitted,
}

impl Received {
    /// Everything before this request is done.
    fn failed(&self, error: &ports::Error) -> Failure {
        Failure::after(self.message, error.to_string())
    }
}

fn is_end(submitted: &Submitted) -> bool {
    matches!(submitted.operation, Operation::Close | Operation::Expire)
}

/// Whether any of these requests may have been decided before.
fn is_redelivered(received: &[Received]) -> bool {
    received.iter().any(|received| received.attempt > 1)
}

/// The requests in these messages, up to the first that does not decode, and the place of its
/// message.
fn received(deliveries: &[Delivery]) -> (Vec<Received>, Option<(usize, ports::Error)>) {
    let mut received = Vec::with_capacity(deliveries.len());
    for (message, delivery) in deliveries.iter().enumerate() {
        for record in queue_names::unpacked(&delivery.body) {
            match record.and_then(|record| decode(record, "a request")) {
                Ok(submitted) => received.push(Received {
                    message,
                    attempt: delivery.handle.attempt,
                    submitted,
                }),
                Err(error) => return (received, Some((message, error))),
            }
        }
    }
    (received, None)
}

#[async_trait]
impl Handler for Writer {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let Event::Messages { deliveries, .. } = event else {
            return Err(Failure::new("the writer accepts only messages"));
        };
        self.handle_messages(&deliveries).await?;
        Ok(Bytes::new())
    }
}

/// The work of one invocation on one session, under one fencing number.
struct Turn<'writer> {
    writer: &'writer Writer,
    session: SessionId,
    row: Row,
    store: TrackedStore,
    /// The most ephemerals that the next decision of an end deletes.
    ephemerals_max: usize,
    /// How many batches in a row failed without locks.
    conflicts: u32,
    /// Whether its invocation has requests of other sessions, which would wait for a long end.
    is_shared: bool,
}

impl<'writer> Turn<'writer> {
    /// Decides all of `received`, and leaves the row to the session's next writer.
    async fn handle(mut self, received: &[Received]) -> Result<(), Failure> {
        // Any of them may have caused an earlier failure. Deciding them one by one isolates it.
        let most = if is_redelivered(received) {
            1
        } else {
            BATCH_REQUESTS_MAX
        };
        let mut rest = received;
        while let Some(next) = rest.first() {
            let decided = self.decide_some(rest, most).await;
            let count = decided.map_err(|error| next.failed(&error))?;
            rest = &rest[count..];
        }
        if let Some(own_rows) = &self.writer.own_rows {
            own_rows.keep(self.row, self.store.point());
        }
        Ok(())
    }

    /// Decides as many of `received` together as possible, at most `most`. Returns how many are
    /// finished. Returns zero if the row has changed and they must be checked again.
    async fn decide_some(&mut self, received: &[Received], most: usize) -> Result<usize> {
        let mut batch = self.batch();
        if self.conflicts < self.conflicts_max() {
            batch.try_without_locks();
        }
        let mut done = 0;
        for received in received {
            let submitted = &received.submitted;
            assert_eq!(submitted.session, self.session, "a group has one session");
            if self.needs_no_decision(submitted, &batch)? {
                done += 1;
                continue;
            }
            let is_end = is_end(submitted);
            if is_end && !batch.is_empty() {
                break;
            }
            if is_end && self.end_in_parts(submitted).await? {
                return Ok(0);
            }
            let outcome = match self.outcome(submitted, received.attempt, &mut batch).await {
                Ok(plan) => Ok(plan),
                Err(PlanError::Refused(refusal)) => Err(refusal),
                Err(PlanError::Unneeded) => {
                    batch.drop_plan().await?;
                    done += 1;
                    continue;
                }
                // The requests before it need not wait for it. If it fails again, it fails alone.
                Err(_) if !batch.is_empty() => break,
                Err(PlanError::Contended) if batch.is_optimistic() => {
                    self.take_locks_next(batch).await?;
                    return Ok(done);
                }
                Err(PlanError::Contended | PlanError::Waited) => {
                    unreachable!("a batch without requests waits for its locks")
                }
                Err(PlanError::Failed(error)) => {
                    // Any writer that meets these locks breaks them. Releasing them saves that wait.
                    let _ = batch.release().await;
                    return Err(error);
                }
            };
            let is_planned_end = outcome.as_ref().ok().filter(|_| is_end);
            if is_planned_end.is_some_and(|end| self.must_be_halved(end, &batch)) {
                self.store = batch.release().await?;
                return Ok(0);
            }
            batch.add(submitted, self.now_ms(), outcome);
            done += 1;
            if is_end || batch.len() >= most || self.writer.is_large(&batch) {
                break;
            }
        }
        if !batch.is_empty() && !self.commit(batch).await? {
            return Ok(0);
        }
        self.conflicts = 0;
        Ok(done)
    }

    /// How many batches in a row may fail without locks before one takes them. The first one may have
    /// been planned from outdated known states.
    fn conflicts_max(&self) -> u32 {
        if self.writer.known.is_some() { 2 } else { 1 }
    }

    /// Ends a batch that cannot be planned without locks.
    async fn take_locks_next(&mut self, batch: Batch<'_>) -> Result<()> {
        self.store = batch.release().await?;
        self.conflicts = u32::MAX;
        Ok(())
    }

    /// Whether a request needs no decision: no client waits for its answer, or it was decided
    /// before.
    fn needs_no_decision(&self, submitted: &Submitted, batch: &Batch<'_>) -> Result<bool> {
        let env = &self.writer.env;
        let is_numbered = submitted.request > 0;
        let is_of_old_attach =
            submitted.attach != self.row.attach && !env.breaks(Broken::AcceptsOldAttaches);
        let is_decided =
            submitted.request <= batch.request && !env.breaks(Broken::ForgetsRequestNumbers);
        if is_numbered && (is_of_old_attach || is_decided) {
            // From a replaced connection, or decided before and pushed by `finish`.
            return Ok(true);
        }
        let is_due = match (self.row.state, &submitted.operation) {
            (State::Open, Operation::Expire) | (State::Closed, _) => false,
            (State::Open, _) | (State::Closing, Operation::Expire) => true,
            // The client's own request for an end that has begun. If the heartbeat requested the
            // end first, this request serves as well.
            (State::Closing, Operation::Close) => submitted.request == batch.request + 1,
            (State::Closing, _) => false,
        };
        if !is_due {
            return Ok(true);
        }
        if is_numbered && submitted.request > batch.request + 1 && !env.config.mutant.is_any() {
            return Err(ports::Error::corrupt(format!(
                "request {} of session {:?} came after {}",
                submitted.request, self.session, batch.request
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
            Operation::Create { .. }
                | Operation::Delete { .. }
                | Operation::SetData { .. }
                | Operation::SetAcl { .. }
                | Operation::Multi(_)
                | Operation::RemoveExpired { .. }
        );
        if is_update && submitted.operation.needs_room() && !self.store.store().has_room() {
            // It was sent before its gateway saw the full disk. The refusal uses a little of the
            // reserve.
            return Err(Error::NoRoom.into());
        }
        let may_fail =
            is_update && batch.is_empty() && !self.writer.env.breaks(Broken::BlocksForever);
        if !may_fail || attempt < NOTED_ATTEMPTS_MIN {
            return self.plan_request(submitted, batch).await;
        }
        let failed = self.row.planning_attempts;
        if failed >= PLANNINGS_MAX {
            tracing::error!(session = ?self.session, request = submitted.request, "gave up a request without planning it");
            return Err(Error::System.into());
        }
        self.begin_planning(batch).await;
        match self.plan_request(submitted, batch).await {
            Err(PlanError::Failed(error)) if failed >= PLANNINGS_FAILED_MAX => {
                tracing::error!(session = ?self.session, request = submitted.request, %error, "gave up a request");
                Err(Error::System.into())
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
        let noted = session::begin_planning(&mut batch.store, &self.row).await;
        if let Ok(Transition::Done(row)) = noted {
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
        if self.writer.env.breaks(Broken::CountsSuccessfulPlannings) {
            return;
        }
        let removed = session::end_planning(&mut batch.store, &self.row).await;
        if let Ok(Transition::Done(row)) = removed {
            self.row = row;
        }
    }

    /// A plan, or a refusal with its position in the order.
    async fn plan_request(&self, submitted: &Submitted, batch: &mut Batch<'_>) -> Plan {
        let asked = Asked {
            identities: &submitted.identities,
            now_ms: self.now_ms(),
            bytes_max: self.decision_bytes_max(),
        };
        loop {
            let refusal = match plan::plan(&submitted.operation, asked, batch).await {
                Err(PlanError::Refused(refusal)) => refusal,
                planned => return planned,
            };
            let has_place = if self.writer.env.breaks(Broken::ForgetsCausesOfRefusals) {
                batch.forget_planned_from();
                true
            } else {
                batch.lock_ancestor().await?
            };
            if has_place {
                return Err(PlanError::Refused(refusal));
            }
            // The locks have changed, so the request is planned again.
        }
    }

    /// Decides, installs and pushes a batch. Returns false if the row refused the decision; then
    /// `self.row` is up to date.
    async fn commit(&mut self, mut batch: Batch<'_>) -> Result<bool> {
        if batch.is_optimistic()
            && batch.may_be_direct()
            && let Some(distributor) = &self.writer.distributor
        {
            let after = self.row.after_applied(batch.len(), batch.request);
            let row = &self.row;
            let rows = [RowDecision { row, after }];
            match batch.apply_directly(distributor, &rows).await? {
                Directly::Applied(point) => {
                    let [RowDecision { after, .. }] = rows;
                    self.row = after;
                    batch.store.observe(point)?;
                    (_, self.store) = batch.install().await?;
                    return Ok(true);
                }
                Directly::Conflict => return self.direct_conflict(batch).await,
                Directly::Unfit => {}
            }
        }
        match batch.decide(&self.row).await? {
            Together::Row(Transition::Done(row)) => self.row = row,
            Together::Row(Transition::Refused(row)) => {
                self.store = batch.release().await?;
                return self.refused(row).map(|()| false);
            }
            Together::Conflict => return self.conflict(batch).await,
        }
        let outcomes;
        (outcomes, self.store) = batch.install().await?;
        outbox::push(&*self.writer.env.parts.queue, &outcomes).await?;
        Ok(true)
    }

    /// Handles a direct decision that was not made. It does not say which row refused.
    async fn direct_conflict(&mut self, mut batch: Batch<'_>) -> Result<bool> {
        let row = session::get(&mut batch.store, self.session).await?;
        let owner = |row: &Row| (row.fence, row.state, row.attach);
        if row.as_ref().map(owner) == Some(owner(&self.row)) {
            return self.conflict(batch).await;
        }
        self.store = batch.release().await?;
        self.refused(row).map(|()| false)
    }

    /// Handles a znode that changed or was locked while an optimistic batch was planned.
    async fn conflict(&mut self, batch: Batch<'_>) -> Result<bool> {
        self.store = batch.release().await?;
        self.conflicts = self.conflicts.saturating_add(1);
        Ok(false)
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

    /// The most bytes that one decision takes: a part of an item, because a row and a slot hold
    /// several.
    fn decision_bytes_max(&self) -> usize {
        let functions = &self.writer.env.parts.functions;
        let payload_bytes_max = functions.limits().payload_bytes_max;
        self.item_bytes_max().min(payload_bytes_max) / DECISION_BYTES_PART
    }

    /// An empty batch of requests after the decided ones.
    fn batch(&self) -> Batch<'writer> {
        let mut batch = Batch::new(&self.writer.locking, &self.row, self.store.clone());
        batch.known = self.writer.known.as_ref();
        batch.quotas = self.writer.quotas.as_ref();
        batch
    }

    fn now_ms(&self) -> i64 {
        self.writer.env.parts.clock.now().0 as i64
    }

    fn item_bytes_max(&self) -> usize {
        self.store.store().limits().item_bytes_max
    }
}

#[cfg(test)]
mod tests;
