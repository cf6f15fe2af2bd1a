//! The sequencer: one order for all commits of the keyspaces it has (T-4).
//!
//! ```text
//!  a commit: its row is handed over (prepared), what it writes is at rest
//!    ──▶ what waits is validated, in order ──▶ one slot of a fenced log: that decides
//!    ──▶ installed in the index ──▶ answered ──▶ its row says it, too (settled)
//! ```
//!
//! A row that was handed over is decided by this log alone, so there is one place of decision at any time. The slot is the
//! commit timestamp; one slot holds all who waited while the one before was under way. Whoever wants to know what became of
//! an attempt has it *closed*: it stands in the log already, or a slot says that it never commits.
//!
//! Taking over is to seal the log: from then on the predecessor decides nothing. Of what it has decided the rows say so before
//! the first validation, and the table of last writers is made of its slots.
//!
//! `sequencer/follow.rs` reads the log at every node, `sequencer/office.rs` takes it over where there are several, and
//! `sequencer/ask.rs` is how the others have it decide.
//!
//! Invariants
//! - An attempt stands in the log once, as committed or as closed. What is decided is remembered until its row says it, and
//!   whoever asks has seen a row that does not: since when is [`State::generation`].
//! - Slots are installed in their order, and heard of only then: what is heard is visible.
//! - A slot is trimmed once the rows of all it decided say so, and everybody has heard of it.
//! - Whoever is dropped while they write a slot end the node: nobody takes that slot for theirs.

mod ask;
mod follow;
mod leader;
#[cfg(test)]
mod tests;
pub(crate) mod validation;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ports::{Clock, DurabilityPoint};
use primitives::{Cursor, Epoch, FencedLog, SlotIndex, Writer};
use serde::{Deserialize, Serialize};
use tokio::sync::{self, oneshot};

pub(crate) use self::{
    ask::{Ordered, Wish},
    follow::Followed,
};
use crate::{
    Config, Error, Result,
    broken::Broken,
    engine::Core,
    model::{Attempt, NodeId, Outcome, TransactionId},
    node::Node,
    storage::{
        frontier::Progress,
        layout, node_registry,
        records::{
            CommitRecord, SequencedCommit, SequencedSlot, StoredRecord, Write, WriteSet, decode,
            encode,
        },
        store::Store,
    },
};
use validation::{Batch, LastWriters, Observed, Trace, Verdict};

/// The most decisions in one slot.
const DECISIONS_MAX: usize = 4_096;
/// Slots that are done and still there.
const SLOTS_UNTRIMMED_MAX: u64 = 64;
/// Decisions that are remembered although their rows say so.
const SETTLED_MAX: usize = 8_192;

/// Who wants to commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// What it read; none: it does not ask whether that was written since.
    pub(crate) observed: Option<Observed>,
    pub(crate) set: WriteSet,
    pub(crate) effects: u32,
}

/// What a wish came to; none: it has to be looked again what its row says.
type Answer = Option<Result<Arc<CommitRecord>>>;

/// A wish in the queue.
#[derive(Debug)]
struct Waiting {
    wish: Wish,
    /// What it writes.
    writes: Vec<Write>,
    /// The generation since when its row is known to be handed over, and not decided.
    seen: u64,
    told: oneshot::Sender<Answer>,
}

/// What stands in the log about an attempt.
#[derive(Debug, Clone)]
enum Decision {
    Committed(Arc<CommitRecord>, StoredRecord),
    Closed(TransactionId),
}

#[derive(Debug)]
struct Decided {
    decision: Decision,
    slot: u64,
    /// Whether its row says it.
    is_settled: bool,
}

/// The sequencer of one epoch.
#[derive(Debug)]
pub(crate) struct Sequencer {
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    log: FencedLog,
    epoch: Epoch,
    sealed: u64,
    broken: Option<Broken>,
    slot_bytes_max: usize,
    waiting: Mutex<VecDeque<Waiting>>,
    ordering: sync::Mutex<Ordering>,
    state: Mutex<State>,
}

/// Held while a slot is validated and under way.
#[derive(Debug)]
struct Ordering {
    writer: Writer,
    last_writers: LastWriters,
}

#[derive(Debug)]
struct State {
    /// The slot that it sealed when it took over.
    sealed: u64,
    decided: BTreeMap<Attempt, Decided>,
    settled_count: usize,
    /// How often decisions were forgotten: a row that was read before has to be read again.
    generation: u64,
    settled: Progress,
    /// The last slot that is installed.
    last: u64,
    /// The last slot that the office has looked at.
    tended: u64,
    /// Where the log is trimmed to.
    trimmed: u64,
}

impl Sequencer {
    /// Seals the log, and has the rows of what it has decided say so. Where other nodes may have read before, the table of last
    /// writers is made of its slots, which stay; a node that is alone has no reader from before.
    pub(crate) async fn take_over(
        store: &Arc<Store>,
        clock: Arc<dyn Clock>,
        config: &Config,
        slot_bytes_max: usize,
        is_alone: bool,
    ) -> Result<(Self, Vec<(u64, SequencedSlot)>)> {
        let log = FencedLog::new(store.key_value().clone(), layout::sequencer_log());
        let mut start = store.again(|| log.start()).await?;
        let seals = !config.is_broken(Broken::SequencerDoesNotSeal);
        let (writer, slots) = if seals {
            store.again(|| log.take_over(Cursor::START)).await?
        } else {
            store.again(|| log.take_over_without_seal(start)).await?
        };
        store.seen(writer.point())?;
        let slots = slots
            .iter()
            .map(|slot| Ok((slot.index.0, decode_slot(&slot.payload)?)));
        let slots: Vec<(u64, SequencedSlot)> = slots.collect::<Result<_>>()?;
        settle_all(store, &slots).await?;
        let (epoch, sealed) = (writer.epoch(), writer.sealed().0);
        let settled = Cursor {
            next: SlotIndex(sealed + 1),
            epoch,
        };
        let last_writers = if is_alone {
            if !slots.is_empty() && seals {
                store
                    .again(|| log.trim_resting_on(settled, store.basis()))
                    .await?;
            }
            LastWriters::new(sealed, config.last_writers_max)
        } else {
            // Read anew: until it was sealed, whoever was before may have trimmed it.
            start = store.again(|| log.start()).await?;
            last_writers(store, start.next.0 - 1, &slots, config.last_writers_max).await?
        };
        tracing::info!(
            epoch = epoch.0,
            slots = slots.len(),
            "the sequencer's log is taken over"
        );
        let state = State {
            sealed,
            decided: BTreeMap::new(),
            settled_count: 0,
            generation: 0,
            settled: Progress::from(sealed),
            last: sealed,
            tended: sealed,
            trimmed: if is_alone { sealed } else { start.next.0 - 1 },
        };
        let sequencer = Self {
            store: Arc::clone(store),
            clock,
            log,
            epoch,
            sealed,
            broken: config.broken,
            slot_bytes_max,
            waiting: Mutex::default(),
            ordering: sync::Mutex::new(Ordering {
                writer,
                last_writers,
            }),
            state: Mutex::new(state),
        };
        Ok((sequencer, slots))
    }

    /// Behind all that its predecessors have decided.
    pub(crate) fn sealed(&self) -> Cursor {
        Cursor {
            next: SlotIndex(self.sealed + 1),
            epoch: self.epoch,
        }
    }

    /// The last slot that is installed.
    pub(crate) fn last(&self) -> u64 {
        self.state().last
    }

    /// A row that is read after this, and is handed over and not decided, is decided by whatever this sequencer writes next.
    pub(crate) fn generation(&self) -> u64 {
        self.state().generation
    }

    fn next_batch(&self) -> Vec<Waiting> {
        let mut waiting = lock(&self.waiting);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(next) = waiting.front() {
            bytes += next.wish.bytes_len();
            if batch.len() == DECISIONS_MAX || bytes > self.slot_bytes_max && !batch.is_empty() {
                break;
            }
            batch.extend(waiting.pop_front());
        }
        batch
    }

    /// What a wish is told before there is a slot for it; none: the slot decides.
    fn judge(
        &self,
        waiting: &Waiting,
        batch: &Batch<'_>,
        ordered: &BTreeSet<Attempt>,
    ) -> Option<Answer> {
        let attempt = waiting.wish.attempt();
        {
            let state = self.state();
            if let Some(decided) = state.decided.get(&attempt) {
                return Some(Some(decided.decision.answer()));
            }
            if waiting.seen != state.generation || ordered.contains(&attempt) {
                return Some(None);
            }
        }
        let request = waiting.wish.request()?;
        match batch.validate(request.observed.as_ref()) {
            Verdict::Conflicts if self.broken != Some(Broken::SkipsValidation) => {
                Some(Some(Err(Error::Conflict)))
            }
            Verdict::TooOld => Some(Some(Err(Error::SnapshotTooOld))),
            Verdict::Conflicts | Verdict::Passes => None,
        }
    }

    /// A slot is written: what it decides is known from now on.
    fn note(&self, index: u64, slot: &SequencedSlot, records: &[Arc<CommitRecord>]) {
        let mut state = self.state();
        state
            .settled
            .start(index, slot.commits.len() + slot.closed.len());
        let commits = (0..)
            .zip(&slot.commits)
            .zip(records)
            .map(|((place, commit), record)| {
                (
                    commit.attempt,
                    Decision::Committed(Arc::clone(record), commit.record(index, place)),
                )
            });
        let closed = slot
            .closed
            .iter()
            .map(|(id, attempt)| (*attempt, Decision::Closed(id.clone())));
        for (attempt, decision) in commits.chain(closed) {
            state.decided.insert(
                attempt,
                Decided {
                    decision,
                    slot: index,
                    is_settled: false,
                },
            );
        }
        state.last = index;
    }

    /// Has the row of an attempt that the log decides about say so.
    pub(crate) async fn settle(&self, attempt: Attempt) -> Result<()> {
        let decision = {
            let state = self.state();
            let unsettled = state
                .decided
                .get(&attempt)
                .filter(|decided| !decided.is_settled);
            unsettled.map(|decided| decided.decision.clone())
        };
        match decision {
            None => return Ok(()),
            Some(Decision::Committed(record, stored)) => {
                self.store
                    .settle_committed(&record.id, attempt, &stored)
                    .await?;
            }
            Some(Decision::Closed(id)) => {
                self.store.settle_aborted(&id, attempt).await.map(drop)?
            }
        }
        self.state().is_settled(attempt);
        Ok(())
    }

    /// Trims what is settled, at most up to `through`, once that is worth it.
    pub(crate) async fn trim(&self, through: u64) -> Result<()> {
        let until = {
            let mut state = self.state();
            let through = state.settled.through().min(through);
            // Slots before its own seal are of an earlier epoch, and a start of this one before them would make them void.
            let is_below_seal =
                through < state.sealed && self.broken != Some(Broken::TrimsBelowOwnSeal);
            if is_below_seal || through < state.trimmed + SLOTS_UNTRIMMED_MAX {
                return Ok(());
            }
            state.forget_settled();
            state.trimmed = through;
            Cursor {
                next: SlotIndex(through + 1),
                epoch: self.epoch,
            }
        };
        self.store
            .again(|| self.log.trim_resting_on(until, self.store.basis()))
            .await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Decision {
    fn answer(&self) -> Result<Arc<CommitRecord>> {
        match self {
            Self::Committed(record, _) => Ok(Arc::clone(record)),
            Self::Closed(_) => Err(Error::TransactionFinished(Outcome::Aborted)),
        }
    }
}

impl State {
    fn is_settled(&mut self, attempt: Attempt) {
        let Some(decided) = self.decided.get_mut(&attempt) else {
            return;
        };
        // Two may have written the row.
        if std::mem::replace(&mut decided.is_settled, true) {
            return;
        }
        self.settled.finish(decided.slot);
        self.settled_count += 1;
        if self.settled_count > SETTLED_MAX {
            self.forget_settled();
        }
    }

    fn forget_settled(&mut self) {
        if self.settled_count > 0 {
            self.decided.retain(|_, decided| !decided.is_settled);
            self.settled_count = 0;
            self.generation += 1;
        }
    }
}

fn decode_slot(payload: &[u8]) -> Result<SequencedSlot> {
    Ok(decode(payload, "a slot of the sequencer's log")?)
}

/// Has the rows of all that `slots` decide say so, but for those of which the last slot says that they do.
async fn settle_all(store: &Store, slots: &[(u64, SequencedSlot)]) -> Result<()> {
    let settled = slots
        .iter()
        .map(|(_, slot)| slot.settled)
        .max()
        .unwrap_or_default();
    for (index, slot) in slots.iter().filter(|(index, _)| *index > settled) {
        for (place, commit) in (0..).zip(&slot.commits) {
            let record = commit.record(*index, place);
            store
                .settle_committed(&commit.id, commit.attempt, &record)
                .await?;
        }
        for (id, attempt) in &slot.closed {
            store.settle_aborted(id, *attempt).await?;
        }
    }
    Ok(())
}

/// The table as `slots` make it, where nothing is known of what was written up to `oldest`.
async fn last_writers(
    store: &Store,
    oldest: u64,
    slots: &[(u64, SequencedSlot)],
    writes_max: usize,
) -> Result<LastWriters> {
    let mut table = LastWriters::new(oldest, writes_max);
    for (index, slot) in slots {
        let mut written = BTreeSet::new();
        for commit in &slot.commits {
            // Of one whose row is dropped it may be gone: then nobody reads below it any more.
            let writes = store.write_set(commit.attempt, &commit.writes).await?;
            written.extend(writes.iter().map(|write| Trace::of(&write.key)));
        }
        table.note(*index, written);
    }
    Ok(table)
}

impl Core {
    /// Becomes the sequencer of a node that is alone, of the store as it is. Errors: `Unavailable` also if there is a later start:
    /// that has its row before it seals the log, and then closes by their rows what others handed over to it.
    pub(crate) async fn take_over_sequencer(
        &self,
        store: &Arc<Store>,
        own: NodeId,
    ) -> Result<Sequencer> {
        let clock = Arc::clone(&self.context.clock);
        let taken = Sequencer::take_over(
            store,
            clock,
            &self.context.config,
            self.slot_bytes_max(),
            true,
        )
        .await?;
        let is_last = node_registry::list_from(store, NodeId(own.0 + 1))
            .await?
            .is_empty();
        if !is_last && !self.context.config.is_broken(Broken::OrdersBehindSuccessor) {
            store.fall();
            store.standing()?;
        }
        Ok(taken.0)
    }

    /// Has this node's sequencer decide. None: the row that was seen has to be looked at again.
    async fn order(
        &self,
        node: &Arc<Node>,
        sequencer: &Sequencer,
        wish: Wish,
        writes: Vec<Write>,
        seen: u64,
    ) -> Answer {
        let (told, mut decided) = oneshot::channel();
        lock(&sequencer.waiting).push_back(Waiting {
            wish,
            writes,
            seen,
            told,
        });
        loop {
            let mut ordering = sequencer.ordering.lock().await;
            // Whoever ordered before may have ordered this as well.
            match decided.try_recv() {
                Ok(decided) => return decided,
                Err(oneshot::error::TryRecvError::Closed) => {
                    return Some(Err(Error::unavailable("the sequencer is gone")));
                }
                Err(oneshot::error::TryRecvError::Empty) => {
                    self.order_waiting(node, sequencer, &mut ordering).await;
                }
            }
        }
    }

    /// Decides about what waits, up to the bound of a slot, and tells those who wait.
    async fn order_waiting(
        &self,
        node: &Arc<Node>,
        sequencer: &Sequencer,
        ordering: &mut Ordering,
    ) {
        let mut batch = ordering.last_writers.batch();
        let (mut commits, mut closed, mut ordered) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut conflicting = Vec::new();
        for waiting in sequencer.next_batch() {
            match sequencer.judge(&waiting, &batch, &ordered) {
                None => {}
                Some(Some(Err(Error::Conflict))) => {
                    conflicting.push(waiting);
                    continue;
                }
                Some(answer) => {
                    // Nobody hears it only if who asked is gone.
                    let _ = waiting.told.send(answer);
                    continue;
                }
            }
            ordered.insert(waiting.wish.attempt());
            batch.admit(waiting.writes.iter().map(|write| Trace::of(&write.key)));
            if waiting.wish.request().is_some() {
                commits.push(waiting)
            } else {
                closed.push(waiting)
            }
        }
        let written = batch.into_written();
        if ordered.is_empty() {
            self.refuse(conflicting, true);
            return;
        }
        let slot = SequencedSlot {
            written_ms: sequencer.clock.now().0,
            by: node.id,
            settled: sequencer.state().settled.through(),
            commits: commits
                .iter()
                .filter_map(|waiting| waiting.wish.commit())
                .collect(),
            closed: closed.iter().map(|waiting| waiting.wish.name()).collect(),
        };
        let writing = sequencer.store.writing();
        let appended = sequencer
            .store
            .append_resting(&mut ordering.writer, encode(&slot))
            .await;
        writing.has_ended();
        let records = appended.map(|(index, point)| {
            ordering.last_writers.note(index, written);
            let writes = commits.iter().map(|waiting| waiting.writes.clone());
            let records = records(index, &slot, writes, point);
            sequencer.note(index, &slot, &records);
            let cursor = Cursor {
                next: SlotIndex(index + 1),
                epoch: sequencer.epoch,
            };
            self.hear_slot(node, cursor, &slot, &records);
            records
        });
        self.refuse(conflicting, records.is_ok());
        for (place, waiting) in commits.into_iter().enumerate() {
            let answer = records
                .as_ref()
                .map(|records| Arc::clone(&records[place]))
                .map_err(Clone::clone);
            let _ = waiting.told.send(Some(answer));
        }
        for waiting in closed {
            let is_closed = Error::TransactionFinished(Outcome::Aborted);
            let _ = waiting.told.send(Some(Err(records
                .as_ref()
                .err()
                .cloned()
                .unwrap_or(is_closed))));
        }
    }

    /// Tells those who conflict with what was written, or with what their batch was to write: if that stands nowhere, the next
    /// batch judges them anew.
    fn refuse(&self, conflicting: Vec<Waiting>, is_written: bool) {
        let is_final = is_written || self.context.config.is_broken(Broken::RefusesBeforeSlot);
        for waiting in conflicting {
            if is_final {
                self.context.counters.conflict();
            }
            let _ = waiting.told.send(is_final.then_some(Err(Error::Conflict)));
        }
    }
}

/// What has committed in a slot; `writes` are those of each commit.
fn records(
    index: u64,
    slot: &SequencedSlot,
    writes: impl Iterator<Item = Vec<Write>>,
    point: DurabilityPoint,
) -> Vec<Arc<CommitRecord>> {
    let commits = (0..).zip(&slot.commits).zip(writes);
    commits
        .map(|((place, commit), writes)| Arc::new(record(index, place, commit, writes, point)))
        .collect()
}

fn record(
    index: u64,
    place: u32,
    commit: &SequencedCommit,
    writes: Vec<Write>,
    point: DurabilityPoint,
) -> CommitRecord {
    let stored = commit.record(index, place);
    CommitRecord {
        id: commit.id.clone(),
        attempt: commit.attempt,
        version: stored.version,
        position: stored.position,
        writes,
        parts: stored.writes.parts(),
        point,
    }
}

/// Locks `mutex`. A panic elsewhere ends the process, or the test.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
