//! The sequencer: one order for all commits of the keyspaces it has (T-4).
//!
//! ```text
//!  a commit: its row is handed over (prepared), what it writes is at rest
//!    ──▶ what waits is validated, in order ──▶ one slot of a fenced log: that decides
//!    ──▶ installed in the index ──▶ answered ──▶ its row says it, too (settled)
//! ```
//!
//! A row that was handed over is decided by this log alone, so there is one place of decision at any time. The slot is the
//! commit timestamp; one slot holds all who waited while the one before was under way.
//!
//! Taking over is to seal the log: from then on the predecessor decides nothing. What it has decided is settled before
//! the first validation; the rest of what was handed over is aborted by the resolver of its owner's log. Of what was
//! written before nothing is known, so whoever had read before is told that its snapshot is too old.
//!
//! While there is one node, the process that serves is the sequencer, and it closes attempts in memory: whoever could
//! still bring a closed one lives and ends with it. More nodes elect one, which is whoever calls
//! [`Sequencer::take_over`]; requests and closings then come as messages, and a closing needs an entry in the log.
//!
//! Invariants
//! - Slots are installed in their order, and heard of only then: what is heard is visible.
//! - An attempt that is closed is refused from then on, and one that is in the log is never closed.
//! - A slot is trimmed once the rows of all it decided say so.

pub(crate) mod validation;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ports::{Clock, DurabilityPoint, ErrorKind};
use primitives::{Cursor, Epoch, FencedLog, SlotIndex, Writer};
use tokio::sync::{self, oneshot};

use crate::{
    Config, Error, Result,
    broken::Broken,
    engine::Core,
    heard::Progress,
    layout,
    model::{Attempt, Call, NodeId, Outcome, TransactionId},
    node::Node,
    open::Found,
    records::{CommitRecord, SequencedCommit, SequencedSlot, StoredRecord, Write, WriteSet, decode, encode},
    store::{Decision, Store},
    transaction::Transaction,
};
use validation::{LastWriters, Observed, Trace, Verdict};

/// The most commits in one slot.
const COMMITS_MAX: usize = 4_096;
/// Slots that are done and still there.
const SLOTS_UNTRIMMED_MAX: u64 = 64;

/// Who wants to commit.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) transaction: Arc<Transaction>,
    /// What it read; none: it does not ask whether that was written since.
    pub(crate) observed: Option<Observed>,
    pub(crate) writes: Vec<Write>,
    pub(crate) set: WriteSet,
    pub(crate) effects: u32,
}

type Told = oneshot::Sender<Result<Arc<CommitRecord>>>;

/// A commit that is decided, and whose row does not say so yet.
#[derive(Debug)]
struct Unsettled {
    record: Arc<CommitRecord>,
    stored: StoredRecord,
}

/// The sequencer of one epoch.
#[derive(Debug)]
pub(crate) struct Sequencer {
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    log: FencedLog,
    epoch: Epoch,
    slot_bytes_max: usize,
    waiting: Mutex<VecDeque<(Request, Told)>>,
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
    unsettled: BTreeMap<Attempt, Unsettled>,
    settled: Progress,
    /// The last slot that is installed.
    last: u64,
    /// Where the log is trimmed to.
    trimmed: u64,
}

impl Sequencer {
    /// Seals the log, and settles what it has decided.
    pub(crate) async fn take_over(
        store: &Arc<Store>,
        clock: Arc<dyn Clock>,
        config: &Config,
        slot_bytes_max: usize,
    ) -> Result<Self> {
        let log = FencedLog::new(store.key_value().clone(), layout::sequencer_log());
        let (writer, slots) = if config.is_broken(Broken::SequencerDoesNotSeal) {
            let start = store.again(|| log.start()).await?;
            store.again(|| log.take_over_without_seal(start)).await?
        } else {
            store.again(|| log.take_over(Cursor::START)).await?
        };
        store.seen(writer.point())?;
        for slot in &slots {
            let stored: SequencedSlot = decode(&slot.payload, "a slot of the sequencer's log")?;
            for (place, commit) in (0..).zip(&stored.commits) {
                let record = commit.record(slot.index.0, place);
                store.settle_committed(&commit.id, commit.attempt, &record).await?;
            }
        }
        let (epoch, sealed) = (writer.epoch(), writer.sealed().0);
        let settled = Cursor { next: SlotIndex(sealed + 1), epoch };
        if !slots.is_empty() && !config.is_broken(Broken::SequencerDoesNotSeal) {
            store.again(|| log.trim_resting_on(settled, store.basis())).await?;
        }
        tracing::info!(epoch = epoch.0, slots = slots.len(), "the sequencer's log is taken over");
        let last_writers = LastWriters::new(sealed, config.last_writers_max);
        let state = State {
            unsettled: BTreeMap::new(),
            settled: Progress::from(sealed),
            last: sealed,
            trimmed: sealed,
        };
        Ok(Self {
            store: Arc::clone(store),
            clock,
            log,
            epoch,
            slot_bytes_max,
            waiting: Mutex::default(),
            ordering: sync::Mutex::new(Ordering { writer, last_writers }),
            state: Mutex::new(state),
        })
    }

    /// The last slot that is installed.
    pub(crate) fn last(&self) -> u64 {
        self.state().last
    }

    /// Nobody has taken the log over, as of a moment after this was asked. Errors: somebody has, and the node cannot go
    /// on.
    pub(crate) async fn confirm(&self) -> Result<()> {
        let from = Cursor { next: SlotIndex(self.last() + 1), epoch: self.epoch };
        // Behind what is installed there is a seal, or one slot of ours that is under way. A second one of ours, or
        // slots that are trimmed already, were written later: then the log was ours still.
        let read = || async {
            match self.log.read(from, 2).await {
                Ok(read) => Ok((read.cursor.epoch, read.point)),
                Err(error) if error.kind() == ErrorKind::Invalid => {
                    self.log.start().await.map(|start| (start.epoch, DurabilityPoint::DURABLE))
                }
                Err(error) => Err(error),
            }
        };
        let (epoch, point) = self.store.again(read).await?;
        self.store.seen(point)?;
        if epoch > self.epoch {
            self.store.fall();
        }
        self.store.standing()
    }

    /// The record of an attempt that is decided and whose row does not say so yet.
    pub(crate) fn unsettled(&self, attempt: Attempt) -> Option<Arc<CommitRecord>> {
        self.state().unsettled.get(&attempt).map(|unsettled| Arc::clone(&unsettled.record))
    }

    /// Has the row of a commit say what the log says.
    pub(crate) async fn settle(&self, id: &TransactionId, attempt: Attempt) -> Result<()> {
        let stored = self.state().unsettled.get(&attempt).map(|unsettled| unsettled.stored.clone());
        let Some(stored) = stored else { return Ok(()) };
        self.store.settle_committed(id, attempt, &stored).await?;
        let done = {
            let mut state = self.state();
            if state.unsettled.remove(&attempt).is_none() {
                return Ok(());
            }
            state.settled.finish(stored.position.slot);
            state.trimmable(self.epoch)
        };
        if let Some(until) = done {
            self.store.again(|| self.log.trim_resting_on(until, self.store.basis())).await?;
        }
        Ok(())
    }

    fn next_batch(&self) -> Vec<(Request, Told)> {
        let mut waiting = lock(&self.waiting);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some((request, _)) = waiting.front() {
            bytes += request.set.bytes_len() + 64 + request.transaction.id.as_bytes().len();
            if batch.len() == COMMITS_MAX || bytes > self.slot_bytes_max && !batch.is_empty() {
                break;
            }
            batch.extend(waiting.pop_front());
        }
        batch
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Up to where the log is to be trimmed, once that is worth it.
    fn trimmable(&mut self, epoch: Epoch) -> Option<Cursor> {
        let through = self.settled.through();
        if through < self.trimmed + SLOTS_UNTRIMMED_MAX {
            return None;
        }
        self.trimmed = through;
        Some(Cursor { next: SlotIndex(through + 1), epoch })
    }
}

impl Core {
    /// Becomes the sequencer, of the store as it is.
    pub(crate) async fn take_over_sequencer(&self, store: &Arc<Store>) -> Result<Sequencer> {
        let clock = Arc::clone(&self.clock);
        Sequencer::take_over(store, clock, &self.config, self.slot_bytes_max()).await
    }

    /// Has the sequencer decide. Errors: `Conflict`, `SnapshotTooOld`, `TransactionFinished`, `NoRoom` and `Corrupt`, and
    /// it has not committed; `Unavailable` once the node cannot go on, and it may have.
    pub(crate) async fn sequence(&self, node: &Arc<Node>, request: Request) -> Result<Arc<CommitRecord>> {
        let sequencer = node.sequencer().ok_or_else(|| Error::unavailable("there is no sequencer"))?;
        let (told, mut decided) = oneshot::channel();
        lock(&sequencer.waiting).push_back((request, told));
        loop {
            let mut ordering = sequencer.ordering.lock().await;
            // Whoever ordered before may have ordered this as well.
            match decided.try_recv() {
                Ok(decided) => return decided,
                Err(oneshot::error::TryRecvError::Closed) => {
                    return Err(Error::unavailable("the sequencer is gone"));
                }
                Err(oneshot::error::TryRecvError::Empty) => {
                    self.order_waiting(node, sequencer, &mut ordering).await;
                }
            }
        }
    }

    /// Decides about what waits, up to the bound of a slot, and tells those who wait.
    async fn order_waiting(&self, node: &Arc<Node>, sequencer: &Sequencer, ordering: &mut Ordering) {
        let mut batch = ordering.last_writers.batch();
        let mut admitted = Vec::new();
        for (request, told) in sequencer.next_batch() {
            let verdict = batch.validate(request.observed.as_ref());
            let refused = match verdict {
                _ if request.transaction.is_closed() => Error::TransactionFinished(Outcome::Aborted),
                Verdict::Conflicts if !self.config.is_broken(Broken::SkipsValidation) => Error::Conflict,
                Verdict::TooOld => Error::SnapshotTooOld,
                Verdict::Conflicts | Verdict::Passes => {
                    batch.admit(request.writes.iter().map(|write| Trace::of(&write.key)));
                    admitted.push((request, told));
                    continue;
                }
            };
            if refused == Error::Conflict {
                self.counters.conflict();
            }
            // Nobody hears it only if the engine is on its way out.
            let _ = told.send(Err(refused));
        }
        let written = batch.into_written();
        if admitted.is_empty() {
            return;
        }
        let commits = admitted.iter().map(|(request, _)| request.commit()).collect();
        let slot = SequencedSlot { written_ms: sequencer.clock.now().0, commits };
        let appended = sequencer.store.append_resting(&mut ordering.writer, encode(&slot)).await;
        if let Ok((index, _)) = &appended {
            ordering.last_writers.note(*index, written);
        }
        let placed =
            appended.map(|(index, point)| self.install_slot(node, sequencer, index, point, slot, &admitted));
        for (place, (_, told)) in admitted.into_iter().enumerate() {
            let _ =
                told.send(placed.as_ref().map(|records| Arc::clone(&records[place])).map_err(Clone::clone));
        }
    }

    /// What stands in a slot has committed: from now on everybody here sees it.
    fn install_slot(
        &self,
        node: &Arc<Node>,
        sequencer: &Sequencer,
        index: u64,
        point: DurabilityPoint,
        slot: SequencedSlot,
        admitted: &[(Request, Told)],
    ) -> Vec<Arc<CommitRecord>> {
        let mut records = Vec::with_capacity(admitted.len());
        {
            let mut state = sequencer.state();
            state.settled.start(index, admitted.len());
            for ((place, commit), (request, _)) in (0..).zip(slot.commits).zip(admitted) {
                let stored = commit.record(index, place);
                let record = Arc::new(CommitRecord {
                    id: commit.id,
                    attempt: commit.attempt,
                    version: stored.version,
                    position: stored.position,
                    writes: request.writes.clone(),
                    parts: stored.writes.parts(),
                    point,
                });
                records.push(Arc::clone(&record));
                state.unsettled.insert(commit.attempt, Unsettled { record, stored });
            }
            state.last = index;
        }
        let mut view = self.view();
        if view.is_served_by(node) {
            for record in &records {
                view.superseded_bytes += view.index.superseded_by(record);
                view.index.hear(record);
            }
            Arc::make_mut(&mut view.heard).advance(NodeId::SEQUENCER, index);
        }
        records
    }

    /// Finds out about an attempt whose row was handed over: what the log says of it, and if that is nothing, nothing
    /// ever. Returns the row as it is then.
    pub(crate) async fn close_prepared(
        &self,
        node: &Arc<Node>,
        id: &TransactionId,
        attempt: Attempt,
    ) -> Result<(Option<Decision>, DurabilityPoint)> {
        let sequencer = node.sequencer().ok_or_else(|| Error::unavailable("there is no sequencer"))?;
        let owner = self.view().open.find(&Call { id: id.clone(), attempt: Some(attempt) });
        let is_committed = if self.config.is_broken(Broken::ClosesPreparedRows) {
            false
        } else {
            // No slot is under way.
            let _ordering = sequencer.ordering.lock().await;
            if let Found::Here(owner) = owner {
                owner.close();
            }
            sequencer.unsettled(attempt).is_some()
        };
        if is_committed {
            sequencer.settle(id, attempt).await?;
        } else {
            if attempt.node != node.id {
                // No entry of a log may name it: then nothing else would ever drop its row.
                self.keep_names(node, vec![(id.clone(), attempt)]).await?;
            }
            // If it is settled already, that stands.
            node.store.settle_aborted(id, attempt).await?;
        }
        node.store.decision(id).await
    }
}

impl Request {
    fn commit(&self) -> SequencedCommit {
        let Transaction { id, attempt, .. } = &*self.transaction;
        let (writes, effects) = (self.set.clone(), self.effects);
        SequencedCommit { id: id.clone(), attempt: *attempt, writes, effects }
    }
}

/// Locks `mutex`. A panic elsewhere ends the process, or the test.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
