//! The sequencer: one order for all commits of its keyspaces (T-4).
//!
//! ```text
//!  a commit: its row is handed over (prepared), its data is stored
//!    ──▶ waiting commits are validated, in order ──▶ one slot of a fenced log: that decides
//!    ──▶ installed in the index ──▶ answered ──▶ its row is settled
//! ```
//!
//! This log alone decides a row that was handed over, so there is one place of decision at any
//! time. The slot is the commit timestamp. One slot holds all commits that waited while the
//! previous slot was written. To learn the outcome of an attempt, a node has it *closed*: either it
//! is in the log already, or a slot records that it never commits.
//!
//! A new sequencer takes over by sealing the log: from then on its predecessor decides nothing. It
//! settles the rows of the predecessor's decisions before its first validation, and builds the
//! table of last writers from the slots.
//!
//! `sequencing/follow.rs` reads the log on every node, `sequencing/leader.rs` takes it over
//! where there are several, and `sequencing/ask.rs` lets the others ask for decisions.
//!
//! Invariants
//! - An attempt is in the log once, as committed or as closed. A decision is remembered until its
//!   row is settled. A caller that asks has seen an unsettled row; [`State::generation`] tells how
//!   long ago.
//! - Slots are installed in their order, and only then applied: everything within the frontier is
//!   visible.
//! - A slot is trimmed once the rows of all its decisions are settled, and every node has applied
//!   it.
//! - If a task is dropped while it writes a slot, the node ends: no other task may take that slot
//!   for its own.

pub(crate) mod followed;
pub(crate) mod proposal;
#[cfg(test)]
mod tests;
pub(crate) mod validation;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use ports::DurabilityPoint;
use primitives::{Cursor, Epoch, FencedLog, SlotIndex, Writer};
use tokio::sync::{self, oneshot};
use validation::{Batch, LastWriters, Observed, Trace, Verdict};

use crate::{
    Error, Result,
    broken::Broken,
    context::Context,
    model::{Attempt, KeyspaceId, NodeId, Outcome, TransactionId},
    storage::{
        frontier::Progress,
        layout,
        records::{
            CommitRecord, SequencedCommit, SequencedSlot, StoredRecord, Write, WriteSet, decode,
            encode,
        },
        store::Store,
    },
};

pub(crate) use self::{followed::Followed, proposal::Proposal};

/// The most decisions in one slot.
pub(crate) const DECISIONS_MAX: usize = 4_096;
/// The most settled slots that are kept.
pub(crate) const SLOTS_UNTRIMMED_MAX: u64 = 64;
/// The most decisions that are remembered although their rows are settled.
pub(crate) const SETTLED_MAX: usize = 8_192;

/// The answer to a proposal; `None` if the caller must read the row again.
pub(crate) type Sequenced = Option<Result<Arc<CommitRecord>>>;

/// A proposal in the queue.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) proposal: Proposal,
    /// Its writes.
    pub(crate) writes: Vec<Write>,
    /// The generation at which its row was known to be handed over and undecided.
    pub(crate) seen: u64,
    pub(crate) told: oneshot::Sender<Sequenced>,
}

/// The decision about an attempt in the log.
#[derive(Debug, Clone)]
pub(crate) enum Decision {
    Committed(Arc<CommitRecord>, StoredRecord),
    Closed(TransactionId),
}

#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) decision: Decision,
    pub(crate) slot: u64,
    /// Whether its row is settled.
    pub(crate) is_settled: bool,
}

/// The sequencer of one epoch.
#[derive(Debug)]
pub(crate) struct Sequencer {
    pub(crate) store: Arc<Store>,
    pub(crate) context: Arc<Context>,
    pub(crate) log: FencedLog,
    pub(crate) epoch: Epoch,
    pub(crate) sealed: u64,
    pub(crate) waiting: Mutex<VecDeque<Waiting>>,
    pub(crate) ordering: sync::Mutex<Ordering>,
    pub(crate) state: Mutex<State>,
}

/// Held while a slot is validated and written.
#[derive(Debug)]
pub(crate) struct Ordering {
    pub(crate) writer: Writer,
    pub(crate) last_writers: LastWriters,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) decided: BTreeMap<Attempt, Decided>,
    pub(crate) settled_count: usize,
    /// How often decisions were forgotten. A row that was read before that must be read again.
    pub(crate) generation: u64,
    pub(crate) settled: Progress,
    /// The last slot that is installed.
    pub(crate) last: u64,
    /// The last slot that the leader's upkeep has processed.
    pub(crate) tended: u64,
    /// Where the log is trimmed to.
    pub(crate) trimmed: u64,
}

impl Sequencer {
    /// Seals the log, and settles the rows of its decisions. Where other nodes may have read
    /// before, the table of last writers is built from its slots, which stay. A single node has no
    /// reader from before.
    pub(crate) async fn take_over(
        context: &Arc<Context>,
        store: &Arc<Store>,
        is_alone: bool,
    ) -> Result<Self> {
        let log = FencedLog::new(
            store.key_value().clone(),
            layout::sequencer_log(KeyspaceId::default()),
        );
        let seals = !context.breaks(Broken::SequencerDoesNotSeal);
        let (writer, slots) = if seals {
            store.again(|| log.take_over(Cursor::START)).await?
        } else {
            let start = store.again(|| log.start()).await?;
            store.again(|| log.take_over_without_seal(start)).await?
        };
        store.seen(writer.point())?;
        let slots = slots
            .iter()
            .map(|slot| Ok((slot.index.0, decode_slot(&slot.payload)?)));
        let slots: Vec<(u64, SequencedSlot)> = slots.collect::<Result<_>>()?;
        settle_all(store, &slots).await?;
        let (epoch, sealed) = (writer.epoch(), writer.sealed().0);
        let writes_max = context.config.last_writers_max;
        let (last_writers, trimmed) = if is_alone {
            if !slots.is_empty() && seals {
                let settled = Cursor {
                    next: SlotIndex(sealed + 1),
                    epoch,
                };
                store
                    .again(|| log.trim_depending_on(settled, store.basis()))
                    .await?;
            }
            (LastWriters::new(sealed, writes_max), sealed)
        } else {
            // Read after the seal: until then the predecessor may have trimmed the log.
            let trimmed = store.again(|| log.start()).await?.next.0 - 1;
            let table = last_writers(store, trimmed, &slots, writes_max).await?;
            (table, trimmed)
        };
        tracing::info!(
            epoch = epoch.0,
            slots = slots.len(),
            "the sequencer's log is taken over"
        );
        Ok(Self {
            store: Arc::clone(store),
            context: Arc::clone(context),
            log,
            epoch,
            sealed,
            waiting: Mutex::default(),
            ordering: sync::Mutex::new(Ordering {
                writer,
                last_writers,
            }),
            state: Mutex::new(State::after(sealed, trimmed)),
        })
    }

    /// The position after all decisions of its predecessors.
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

    /// The present generation. If a row is read after this and is handed over and undecided, this
    /// sequencer's next writes decide it.
    pub(crate) fn generation(&self) -> u64 {
        self.state().generation
    }

    pub(crate) fn next_batch(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting.lock();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(next) = waiting.front() {
            bytes += next.proposal.bytes_len();
            if batch.len() == DECISIONS_MAX
                || bytes > self.context.slot_bytes_max() && !batch.is_empty()
            {
                break;
            }
            batch.extend(waiting.pop_front());
        }
        batch
    }

    /// Answers a proposal without a slot if possible; `None`: the slot decides.
    pub(crate) fn judge(
        &self,
        waiting: &Waiting,
        batch: &Batch<'_>,
        ordered: &BTreeSet<Attempt>,
    ) -> Option<Sequenced> {
        let attempt = waiting.proposal.attempt;
        {
            let state = self.state();
            if let Some(decided) = state.decided.get(&attempt) {
                return Some(Some(decided.decision.answer()));
            }
            if waiting.seen != state.generation || ordered.contains(&attempt) {
                return Some(None);
            }
        }
        let request = waiting.proposal.request.as_ref()?;
        match batch.validate(request.observed.as_ref()) {
            Verdict::Conflicts if !self.context.breaks(Broken::SkipsValidation) => {
                Some(Some(Err(Error::Conflict)))
            }
            Verdict::TooOld => Some(Some(Err(Error::SnapshotTooOld))),
            Verdict::Conflicts | Verdict::Passes => None,
        }
    }

    /// Notes the decisions of a slot that was written.
    pub(crate) fn note(&self, index: u64, slot: &SequencedSlot, records: &[Arc<CommitRecord>]) {
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

    /// Settles the row of an attempt that the log has decided.
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
                self.store.settle_aborted(&id, attempt).await.map(drop)?;
            }
        }
        self.state().is_settled(attempt);
        Ok(())
    }

    /// Trims settled slots, at most up to `through`, once that is worth the cost.
    pub(crate) async fn trim(&self, through: u64) -> Result<()> {
        let until = {
            let mut state = self.state();
            let through = state.settled.through().min(through);
            // Slots before its own seal belong to an earlier epoch, and a start of the present
            // epoch before them would void them.
            let is_below_seal =
                through < self.sealed && !self.context.breaks(Broken::TrimsBelowOwnSeal);
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
            .again(|| self.log.trim_depending_on(until, self.store.basis()))
            .await
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The attempts decided before the last round whose rows are not settled.
    pub(crate) fn lately_unsettled(&self) -> Vec<Attempt> {
        let mut state = self.state();
        let is_due = |decided: &Decided| !decided.is_settled && decided.slot <= state.tended;
        let unsettled = state.decided.iter().filter(|(_, decided)| is_due(decided));
        let unsettled = unsettled.map(|(attempt, _)| *attempt).collect();
        state.tended = state.last;
        unsettled
    }

    /// Writes the id of the sequencer's node.
    pub(crate) async fn say_who(&self, by: NodeId) -> Result<()> {
        let mut ordering = self.ordering.lock().await;
        let slot = SequencedSlot {
            written_ms: self.context.clock.now().0,
            by,
            settled: self.state().settled.through(),
            commits: Vec::new(),
            closed: Vec::new(),
        };
        let (index, _) = self
            .store
            .append_resting(&mut ordering.writer, encode(&slot))
            .await?;
        self.note(index, &slot, &[]);
        Ok(())
    }
}

impl Decision {
    pub(crate) fn answer(&self) -> Result<Arc<CommitRecord>> {
        match self {
            Self::Committed(record, _) => Ok(Arc::clone(record)),
            Self::Closed(_) => Err(Error::TransactionFinished(Outcome::Aborted)),
        }
    }
}

impl State {
    /// The state of a sequencer that has decided nothing yet after its seal.
    fn after(sealed: u64, trimmed: u64) -> Self {
        Self {
            decided: BTreeMap::new(),
            settled_count: 0,
            generation: 0,
            settled: Progress::from(sealed),
            last: sealed,
            tended: sealed,
            trimmed,
        }
    }

    pub(crate) fn is_settled(&mut self, attempt: Attempt) {
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

    pub(crate) fn forget_settled(&mut self) {
        if self.settled_count > 0 {
            self.decided.retain(|_, decided| !decided.is_settled);
            self.settled_count = 0;
            self.generation += 1;
        }
    }
}

pub(crate) fn decode_slot(payload: &[u8]) -> Result<SequencedSlot> {
    Ok(decode(payload, "a slot of the sequencer's log")?)
}

/// Settles the rows of all decisions in `slots`, except those that the last slot lists as settled.
pub(crate) async fn settle_all(store: &Store, slots: &[(u64, SequencedSlot)]) -> Result<()> {
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

/// The table built from `slots`; writes up to `oldest` are unknown.
pub(crate) async fn last_writers(
    store: &Store,
    oldest: u64,
    slots: &[(u64, SequencedSlot)],
    writes_max: usize,
) -> Result<LastWriters> {
    let mut table = LastWriters::new(oldest, writes_max);
    for (index, slot) in slots {
        let mut written = BTreeSet::new();
        for commit in &slot.commits {
            // The write set of a dropped row may be gone: then no transaction reads below it any
            // more.
            let writes = store.write_set(commit.attempt, &commit.writes).await?;
            written.extend(writes.iter().map(|write| Trace::of(&write.key)));
        }
        table.note(*index, written);
    }
    Ok(table)
}

/// The commits of a slot; `writes` are those of each commit.
pub(crate) fn records(
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

pub(crate) fn record(
    index: u64,
    place: u32,
    commit: &SequencedCommit,
    writes: Vec<Write>,
    point: DurabilityPoint,
) -> CommitRecord {
    let stored = commit.record(index, place);
    stored.with(&commit.id, commit.attempt, writes, point)
}
