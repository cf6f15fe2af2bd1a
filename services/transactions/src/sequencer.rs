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

pub(crate) mod followed;
#[cfg(test)]
mod tests;
pub(crate) mod validation;
pub(crate) mod wish;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ports::{Clock, DurabilityPoint};
use primitives::{Cursor, Epoch, FencedLog, SlotIndex, Writer};
use tokio::sync::{self, oneshot};
use validation::{Batch, LastWriters, Observed, Trace, Verdict};

use crate::{
    Config, Error, Result,
    broken::Broken,
    model::{Attempt, NodeId, Outcome, TransactionId},
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

pub(crate) use self::{followed::Followed, wish::Wish};

/// The most decisions in one slot.
pub(crate) const DECISIONS_MAX: usize = 4_096;
/// Slots that are done and still there.
pub(crate) const SLOTS_UNTRIMMED_MAX: u64 = 64;
/// Decisions that are remembered although their rows say so.
pub(crate) const SETTLED_MAX: usize = 8_192;

/// What a wish came to; none: it has to be looked again what its row says.
pub(crate) type Answer = Option<Result<Arc<CommitRecord>>>;

/// A wish in the queue.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) wish: Wish,
    /// What it writes.
    pub(crate) writes: Vec<Write>,
    /// The generation since when its row is known to be handed over, and not decided.
    pub(crate) seen: u64,
    pub(crate) told: oneshot::Sender<Answer>,
}

/// What stands in the log about an attempt.
#[derive(Debug, Clone)]
pub(crate) enum Decision {
    Committed(Arc<CommitRecord>, StoredRecord),
    Closed(TransactionId),
}

#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) decision: Decision,
    pub(crate) slot: u64,
    /// Whether its row says it.
    pub(crate) is_settled: bool,
}

/// The sequencer of one epoch.
#[derive(Debug)]
pub(crate) struct Sequencer {
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) log: FencedLog,
    pub(crate) epoch: Epoch,
    pub(crate) sealed: u64,
    pub(crate) broken: Option<Broken>,
    pub(crate) slot_bytes_max: usize,
    pub(crate) waiting: Mutex<VecDeque<Waiting>>,
    pub(crate) ordering: sync::Mutex<Ordering>,
    pub(crate) state: Mutex<State>,
}

/// Held while a slot is validated and under way.
#[derive(Debug)]
pub(crate) struct Ordering {
    pub(crate) writer: Writer,
    pub(crate) last_writers: LastWriters,
}

#[derive(Debug)]
pub(crate) struct State {
    /// The slot that it sealed when it took over.
    pub(crate) sealed: u64,
    pub(crate) decided: BTreeMap<Attempt, Decided>,
    pub(crate) settled_count: usize,
    /// How often decisions were forgotten: a row that was read before has to be read again.
    pub(crate) generation: u64,
    pub(crate) settled: Progress,
    /// The last slot that is installed.
    pub(crate) last: u64,
    /// The last slot that the office has looked at.
    pub(crate) tended: u64,
    /// Where the log is trimmed to.
    pub(crate) trimmed: u64,
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

    pub(crate) fn next_batch(&self) -> Vec<Waiting> {
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
    pub(crate) fn judge(
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
                self.store.settle_aborted(&id, attempt).await.map(drop)?;
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

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Sequencer {
    /// What was decided before the last look, and whose rows do not say so.
    pub(crate) fn lately_unsettled(&self) -> Vec<Attempt> {
        let mut state = self.state();
        let unsettled = state
            .decided
            .iter()
            .filter(|(_, decided)| !decided.is_settled);
        let unsettled = unsettled.filter(|(_, decided)| decided.slot <= state.tended);
        let unsettled = unsettled.map(|(attempt, _)| *attempt).collect();
        state.tended = state.last;
        unsettled
    }

    /// Says who the sequencer is.
    pub(crate) async fn say_who(&self, by: NodeId) -> Result<(u64, SequencedSlot)> {
        let mut ordering = self.ordering.lock().await;
        let settled = self.state().settled.through();
        let written_ms = self.clock.now().0;
        let slot = SequencedSlot {
            written_ms,
            by,
            settled,
            commits: Vec::new(),
            closed: Vec::new(),
        };
        let (index, _) = self
            .store
            .append_resting(&mut ordering.writer, encode(&slot))
            .await?;
        self.note(index, &slot, &[]);
        Ok((index, slot))
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

/// Has the rows of all that `slots` decide say so, but for those of which the last slot says that they do.
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

/// The table as `slots` make it, where nothing is known of what was written up to `oldest`.
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
            // Of one whose row is dropped it may be gone: then nobody reads below it any more.
            let writes = store.write_set(commit.attempt, &commit.writes).await?;
            written.extend(writes.iter().map(|write| Trace::of(&write.key)));
        }
        table.note(*index, written);
    }
    Ok(table)
}

/// What has committed in a slot; `writes` are those of each commit.
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
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
