//! Ordering: waiting proposals are decided in turn, and those that need it share one slot.
//!
//! The caller that holds the lock decides for all that wait. Its future may be dropped at any time,
//! so everything is kept in [`Ordering`]: the next caller finishes the slot.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use ports::Read;
use primitives::{SlotIndex, Writer};
use tokio::sync::oneshot;

use super::{UNINSTALLED_BYTES_MAX, Volume, leases::Writing};
use crate::{
    Error, Result,
    broken::Broken,
    serializable::{
        model::{Key, Proposal, Refusal, SessionId, Slot, StageId, Verdict, Write, Writes},
        overlay::LoggedSlot,
        registry::record,
        rows::{self, OutcomeRow},
        slots::VolumeSlot,
        validate::{Candidate, Decision, Noted, Outcome, Validator},
    },
};

/// The most decisions of one slot.
const DECISIONS_MAX: usize = 1_024;
/// The length of a random id. A client's id of this length is taken for one: its outcome is known
/// for as long as that of a random id.
const RANDOM_ID_BYTES: usize = 16;
/// The most bytes of values that a proposal may write to a full store, if it deletes keys.
const FULL_STORE_BYTES_MAX: usize = 4 << 10;

type Answer = Result<Read<Verdict>>;

/// A proposal in the queue.
#[derive(Debug)]
pub(super) struct Waiting {
    proposal: Proposal,
    /// Those of a stage.
    staged: Vec<Write>,
    /// The change rows up to this slot do not decide it.
    checked: Slot,
    is_outdated: bool,
    refusal: Option<Refusal>,
    told: oneshot::Sender<Answer>,
    /// Ends once the proposal is decided.
    writing: Option<Writing>,
}

/// Held while proposals are decided and their slot is written.
#[derive(Debug)]
pub(super) struct Ordering {
    writer: Writer,
    pub(super) validator: Validator,
    batch: VecDeque<Waiting>,
    in_flight: Option<InFlight>,
}

/// A slot that may be in the log.
#[derive(Debug)]
struct InFlight {
    payload: Bytes,
    slot: VolumeSlot,
    noted: Noted,
    staged: BTreeMap<StageId, Vec<Write>>,
    answers: Vec<(Outcome, oneshot::Sender<Answer>, Option<Writing>)>,
}

/// The reads that proposals need before they are decided.
#[derive(Debug, Default)]
struct Needs {
    numbers: BTreeSet<Key>,
    is_late_check: bool,
}

impl Ordering {
    pub(super) fn new(writer: Writer, validator: Validator) -> Self {
        Self {
            writer,
            validator,
            batch: VecDeque::new(),
            in_flight: None,
        }
    }
}

impl Waiting {
    fn candidate(&self) -> Candidate<'_> {
        Candidate {
            proposal: &self.proposal,
            writes: writes_of(&self.proposal, &self.staged),
            checked: self.checked,
            refusal: self.refusal.as_ref(),
        }
    }
}

fn writes_of<'a>(proposal: &'a Proposal, staged: &'a [Write]) -> &'a [Write] {
    match &proposal.writes {
        Writes::Inline(writes) => writes,
        Writes::Staged { .. } => staged,
    }
}

impl Volume {
    /// Decides a proposal, once no session but `own` has leases on what it writes.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        proposal: Proposal,
        own: Option<SessionId>,
    ) -> Answer {
        self.check()?;
        proposal.check()?;
        if let Some(verdict) = self.earlier_outcome(&proposal).await? {
            return Ok(self.state().answer(verdict));
        }
        {
            let mut state = self.state();
            state.touch(proposal.at, self.context.clock.monotonic());
            if state.is_unknown(proposal.at) {
                // The slots after it are lost as well, so the proposal has not committed.
                return Ok(state.answer(Verdict::SnapshotTooOld));
            }
        }
        let (staged, mut refusal) = match self.staged(&proposal.writes).await? {
            Some(staged) => (staged, None),
            None => (Vec::new(), Some(Refusal::Stage)),
        };
        let writes = writes_of(&proposal, &staged);
        if !self.store.key_value().has_room() && adds(writes) {
            return Ok(self.state().answer(Verdict::Refused(Refusal::NoRoom)));
        }
        if refusal.is_none() && self.exceeds_quota(writes).await? {
            refusal = Some(Refusal::Quota);
        }
        while self.state().overlay.bytes() > UNINSTALLED_BYTES_MAX {
            self.install().await?;
        }
        let writes = if refusal.is_none() { writes } else { &[] };
        let writing = self.recall(writes, own).await?;
        let (told, decided) = oneshot::channel();
        self.waiting.lock().push_back(Waiting {
            checked: proposal.at,
            proposal,
            staged,
            is_outdated: false,
            refusal,
            told,
            writing,
        });
        self.decided(decided).await
    }

    /// Decides waiting proposals until this one is decided.
    async fn decided(self: &Arc<Self>, mut decided: oneshot::Receiver<Answer>) -> Answer {
        loop {
            let ordering = &mut *self.ordering.lock().await;
            // The caller that held the lock may have decided this proposal as well.
            match decided.try_recv() {
                Ok(answer) => return answer,
                Err(oneshot::error::TryRecvError::Closed) => {
                    return Err(Error::unavailable("the volume is closed"));
                }
                Err(oneshot::error::TryRecvError::Empty) => self.decide_waiting(ordering).await?,
            }
        }
    }

    /// The verdict on a client's id that was decided earlier, if its row tells.
    async fn earlier_outcome(&self, proposal: &Proposal) -> Result<Option<Verdict>> {
        if !is_of_client(proposal.id.id()) {
            return Ok(None);
        }
        let key = rows::outcome(self.keyspace, proposal.id.id());
        let Some(item) = self.store.get(&key).await?.value else {
            return Ok(None);
        };
        let outcome = OutcomeRow::decode(record(&item)?)?;
        Ok(outcome.verdict_on(&proposal.id))
    }

    /// Finishes the slot in flight, or decides proposals and writes the next one. Then provides
    /// the reads that the rest needs.
    async fn decide_waiting(self: &Arc<Self>, ordering: &mut Ordering) -> Result<()> {
        if ordering.in_flight.is_none() {
            let needs = self.decide(ordering);
            self.write_slot(ordering).await;
            return self.provide(ordering, needs).await;
        }
        self.write_slot(ordering).await;
        Ok(())
    }

    /// Decides the waiting proposals, and answers those that need no slot.
    fn decide(&self, ordering: &mut Ordering) -> Needs {
        let Ordering {
            validator,
            batch,
            in_flight,
            ..
        } = ordering;
        batch.append(&mut self.waiting.lock());
        let state = self.state();
        let (mut draft, mut needs) = (validator.draft(), Needs::default());
        let (mut answers, mut kept) = (Vec::new(), VecDeque::new());
        let mut staged = BTreeMap::new();
        while let Some(mut waiting) = batch.pop_front() {
            if let Writes::Staged { stage, .. } = &waiting.proposal.writes
                && (state.stages_used.contains(stage) || staged.contains_key(stage))
            {
                // A slot has it already, and the stage goes with the installation of that slot.
                waiting.refusal = Some(Refusal::Stage);
            }
            let candidate = waiting.candidate();
            if answers.len() == DECISIONS_MAX || !draft.has_room_for(&candidate) {
                kept.push_back(waiting);
                break;
            }
            match draft.decide(&candidate, &state.locks) {
                Decision::Now(verdict) => {
                    // Sending fails only if the caller is gone.
                    let _ = waiting.told.send(Ok(state.answer(verdict)));
                }
                Decision::AfterSlot(outcome) => {
                    if let Writes::Staged { stage, .. } = waiting.proposal.writes {
                        staged.entry(stage).or_insert(waiting.staged);
                    }
                    answers.push((outcome, waiting.told, waiting.writing));
                }
                Decision::Wants(keys) => {
                    needs.numbers.extend(keys);
                    kept.push_back(waiting);
                }
                Decision::Outdated(_) => {
                    waiting.is_outdated = true;
                    needs.is_late_check = true;
                    kept.push_back(waiting);
                }
            }
        }
        kept.append(batch);
        *batch = kept;
        if !draft.is_empty() {
            let (slot, noted) = draft.finish(self.context.clock.now().0, self.by);
            *in_flight = Some(InFlight {
                payload: slot.encode(),
                slot,
                noted,
                staged,
                answers,
            });
        }
        needs
    }

    /// Writes the slot in flight, makes it visible, and answers its callers.
    async fn write_slot(self: &Arc<Self>, ordering: &mut Ordering) {
        let Some(in_flight) = &ordering.in_flight else {
            return;
        };
        let payload = in_flight.payload.clone();
        // If this future is dropped, the writer and `in_flight` remember the payload.
        let appended = self
            .store
            .append_resting(&mut ordering.writer, payload)
            .await;
        let Some(in_flight) = ordering.in_flight.take() else {
            return;
        };
        let shown = appended.and_then(|(index, point)| {
            let index = SlotIndex(index);
            let slot = self.number(index);
            let written = LoggedSlot {
                slot,
                index,
                epoch: self.epoch,
                written_ms: in_flight.slot.written_ms,
                changes: in_flight.slot.folded(&in_flight.staged)?,
                decided: in_flight.slot.decided(slot).collect(),
                stages: in_flight.slot.stages(),
            };
            ordering
                .validator
                .note(slot, &in_flight.slot, in_flight.noted);
            let mut state = self.state();
            state.use_stages(&written.stages);
            state.overlay.push(Arc::new(written));
            state.visible = slot;
            state.point = state.point.max(point);
            Ok((slot, state.point))
        });
        if shown.is_ok() {
            self.arm();
        }
        for (outcome, told, _writing) in in_flight.answers {
            let answer = match &shown {
                Ok((slot, point)) => Ok(Read {
                    value: outcome.verdict(*slot),
                    point: *point,
                }),
                Err(Error::NoRoom) => {
                    let value = Verdict::Refused(Refusal::NoRoom);
                    Ok(self.state().answer(value))
                }
                Err(error) => Err(error.clone()),
            };
            let _ = told.send(answer);
        }
    }

    /// Loads the numbers that waiting proposals use, and checks old ones against change rows.
    async fn provide(&self, ordering: &mut Ordering, needs: Needs) -> Result<()> {
        for key in needs.numbers {
            let at = ordering.validator.last();
            let value = self.value(&key, at).await?;
            // While the lock is held, nothing is written after that slot.
            ordering.validator.learn(&key, at, value.as_ref());
        }
        if !needs.is_late_check {
            return Ok(());
        }
        let oldest = ordering.validator.oldest();
        self.install_through(oldest).await?;
        let checked_to = self.state().installed.slot.max(oldest);
        let mut place = 0;
        while let Some(waiting) = ordering.batch.get(place) {
            if !waiting.is_outdated {
                place += 1;
                continue;
            }
            let verdict = if self.context.breaks(Broken::SkipsChangeRows) {
                None
            } else {
                self.late_verdict(&waiting.proposal, checked_to).await?
            };
            let Some(verdict) = verdict else {
                if let Some(waiting) = ordering.batch.get_mut(place) {
                    waiting.is_outdated = false;
                    waiting.checked = checked_to;
                }
                place += 1;
                continue;
            };
            if let Some(waiting) = ordering.batch.remove(place) {
                let answer = self.state().answer(verdict);
                let _ = waiting.told.send(Ok(answer));
            }
        }
        Ok(())
    }
}

/// Whether a client chose the id.
pub(super) fn is_of_client(id: &Bytes) -> bool {
    id.len() != RANDOM_ID_BYTES
}

/// Whether `writes` need room in the store beyond the uses of its reserve.
fn adds(writes: &[Write]) -> bool {
    let values: usize = writes
        .iter()
        .map(|write| match write {
            Write::Put { value, .. } => value.len(),
            Write::Patch { data, .. } => data.len(),
            Write::Append { data, .. } => data.len(),
            Write::Delete { .. } | Write::Add { .. } | Write::Max { .. } => 0,
        })
        .sum();
    let deletes = writes
        .iter()
        .any(|write| matches!(write, Write::Delete { .. }));
    values > if deletes { FULL_STORE_BYTES_MAX } else { 0 }
}
