//! The next slot, while proposals are decided in turn.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{Noted, Validator};
use crate::{
    broken::Broken,
    model::NodeId,
    serializable::{
        apply::{Base, numbers_of, resolve},
        lock_table::LockTable,
        model::{
            Key, KeyRange, Predicate, Proposal, ProposalId, Refusal, Slot, Verdict, Write, Writes,
            proposal::ID_BYTES_MAX,
        },
        rows::verdict_of,
        slots::{
            Changes, NUMBERS_BYTES_MAX, SLOT_BYTES_MAX, SlotCommit, VolumeSlot, number_bytes_len,
        },
    },
};

/// The most bytes of one position of an append.
const POSITION_BYTES: usize = 10;
/// The room that a slot keeps for its head.
const HEAD_BYTES: usize = 64;

/// A proposal that waits for its decision.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// The proposal.
    pub proposal: &'a Proposal,
    /// Its writes; those of a stage are decoded.
    pub writes: &'a [Write],
    /// The change rows up to this slot do not decide it ([`LateCheck`]).
    ///
    /// [`LateCheck`]: crate::serializable::rows::LateCheck
    pub checked: Slot,
    /// A reason to refuse it which only the shell knows: quota, room, or its stage.
    pub refusal: Option<&'a Refusal>,
}

impl<'a> Candidate<'a> {
    /// A proposal whose writes are not staged.
    pub fn inline(proposal: &'a Proposal) -> Self {
        let writes = match &proposal.writes {
            Writes::Inline(writes) => &writes[..],
            Writes::Staged { .. } => &[],
        };
        Self {
            proposal,
            writes,
            checked: proposal.at,
            refusal: None,
        }
    }

    /// The most bytes that it adds to a slot.
    pub fn bytes_len(&self) -> usize {
        let writes: usize = match &self.proposal.writes {
            Writes::Inline(writes) => writes.iter().map(Write::bytes_len).sum(),
            Writes::Staged { .. } => NUMBERS_BYTES_MAX + 48,
        };
        // The id of a commit, or the id and the key of a refusal.
        writes + 2 * ID_BYTES_MAX + self.proposal.id.id().len() + 512
    }

    /// Whether the numbers and positions of a staged one would not fit its slot.
    fn has_too_many_numbers(&self) -> bool {
        if matches!(self.proposal.writes, Writes::Inline(_)) {
            return false;
        }
        let is_append = |write: &&Write| matches!(write, Write::Append { .. });
        let positions = self.writes.iter().filter(is_append).count() * POSITION_BYTES;
        let keys: BTreeSet<&Key> = numbers_of(self.writes).collect();
        let numbers: usize = keys.into_iter().map(number_bytes_len).sum();
        positions + numbers > NUMBERS_BYTES_MAX
    }

    fn is_read_only(&self) -> bool {
        matches!(&self.proposal.writes, Writes::Inline(writes) if writes.is_empty())
    }
}

/// The next step for a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Answer it now: this does not depend on the slot.
    Now(Verdict),
    /// Answer it once the slot is written. If it is not, decide again.
    AfterSlot(Outcome),
    /// Load these values ([`Validator::learn`]), and decide again.
    Wants(Vec<Key>),
    /// Check the change rows up to this slot, and decide again.
    Outdated(Slot),
}

/// An answer that holds once the slot is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It commits.
    Commits {
        /// The position of each append.
        appended_at: Vec<u64>,
    },
    /// It does not.
    Fails(Verdict),
}

impl Outcome {
    /// The verdict after slot `slot` was written.
    pub fn verdict(self, slot: Slot) -> Verdict {
        match self {
            Self::Commits { appended_at } => Verdict::Committed { slot, appended_at },
            Self::Fails(verdict) => verdict,
        }
    }
}

/// A slot in the making.
#[derive(Debug)]
pub struct Draft<'a> {
    validator: &'a Validator,
    decided: BTreeMap<Bytes, (ProposalId, Outcome)>,
    commits: Vec<SlotCommit>,
    closed: Vec<(ProposalId, Verdict)>,
    noted: Noted,
    bytes: usize,
}

impl<'a> Draft<'a> {
    pub(super) fn new(validator: &'a Validator) -> Self {
        Self {
            validator,
            decided: BTreeMap::new(),
            commits: Vec::new(),
            closed: Vec::new(),
            noted: Noted::default(),
            bytes: HEAD_BYTES,
        }
    }

    /// Whether the slot has room for `candidate`. An empty one has.
    pub fn has_room_for(&self, candidate: &Candidate<'_>) -> bool {
        self.bytes + candidate.bytes_len() <= SLOT_BYTES_MAX
    }

    /// Whether nothing needs to be written.
    pub fn is_empty(&self) -> bool {
        self.commits.is_empty() && self.closed.is_empty()
    }

    /// Decides the next proposal, which has passed [`Proposal::check`]. `locks` are those of now.
    pub fn decide(&mut self, candidate: &Candidate<'_>, locks: &LockTable) -> Decision {
        let proposal = candidate.proposal;
        if let Some(decision) = self.known(&proposal.id) {
            return decision;
        }
        if candidate.is_read_only() && !self.breaks(Broken::ValidatesReaders) {
            return Decision::Now(read_only(proposal, locks));
        }
        if proposal.at > self.validator.last {
            // Its slot was lost with the end of the store's last incarnation.
            return Decision::Now(Verdict::SnapshotTooOld);
        }
        let checked = proposal.at.max(candidate.checked);
        if checked < self.validator.oldest() {
            return Decision::Outdated(self.validator.last);
        }
        if let Some(decision) = self.late_read(candidate, checked)
            && !self.breaks(Broken::SkipsValidation)
        {
            return decision;
        }
        if let Some(refusal) = candidate.refusal {
            return self.fail(proposal, Verdict::Refused(refusal.clone()));
        }
        if candidate.has_too_many_numbers() {
            return self.fail(proposal, Verdict::Refused(Refusal::TooManyNumbers));
        }
        let wants = self.unknown_numbers(candidate);
        if !wants.is_empty() {
            return Decision::Wants(wants);
        }
        if let Some(key) = self.failed_predicate(proposal, locks) {
            let key = key.clone();
            return self.fail(proposal, Verdict::Conflict { key });
        }
        self.commit(candidate)
    }

    /// Closes an attempt and all before it, as a begin of a later one does, unless the transaction
    /// has committed. If its begin is older than [`Validator::oldest`], the shell has looked for
    /// its commit in the rows.
    pub fn close(&mut self, id: &ProposalId) -> Decision {
        if let Some(decision) = self.known(id) {
            return decision;
        }
        let verdict = Verdict::Refused(Refusal::Superseded);
        self.closed.push((id.clone(), verdict.clone()));
        self.decide_after(id, Outcome::Fails(verdict))
    }

    /// The slot, and its effect for [`Validator::note`].
    pub fn finish(self, written_ms: u64, by: NodeId) -> (VolumeSlot, Noted) {
        let slot = VolumeSlot {
            written_ms,
            by,
            commits: self.commits,
            closed: self.closed,
        };
        (slot, self.noted)
    }

    fn breaks(&self, rule: Broken) -> bool {
        self.validator.mutant.breaks(rule)
    }

    fn known(&self, id: &ProposalId) -> Option<Decision> {
        if self.breaks(Broken::ForgetsProposalIds) {
            return None;
        }
        if let Some(verdict) = self.validator.answer(id) {
            return Some(Decision::Now(verdict));
        }
        let (decided, outcome) = self.decided.get(id.id())?;
        // The number of the slot does not matter here.
        let verdict = outcome.clone().verdict(self.validator.last);
        let outcome = match verdict_of(decided, &verdict, id)? {
            Verdict::Committed { appended_at, .. } => Outcome::Commits { appended_at },
            verdict => Outcome::Fails(verdict),
        };
        Some(Decision::AfterSlot(outcome))
    }

    /// The conflict of a proposal whose reads were written after slot `checked`. A conflict with an
    /// earlier slot stays one. A conflict with this draft holds once its slot is written.
    fn late_read(&self, candidate: &Candidate<'_>, checked: Slot) -> Option<Decision> {
        let proposal = candidate.proposal;
        let (writers, written) = (&self.validator.writers, &self.noted.written);
        if self.breaks(Broken::ValidatesWrites)
            && let Some(write) = candidate.writes.first()
            && let Write::Put { key, .. } = write
            && writers.is_written_since(key, checked.0)
        {
            return Some(Decision::Now(Verdict::Conflict { key: key.clone() }));
        }
        let ranges = || {
            let are_checked = !self.breaks(Broken::ForgetsRanges);
            proposal
                .predicates
                .iter()
                .filter_map(move |predicate| match predicate {
                    Predicate::Untouched(range) if are_checked => Some(range),
                    _ => None,
                })
        };
        let mut reads = proposal.reads.iter();
        let earlier = reads.find(|key| writers.is_written_since(key, checked.0));
        let earlier = earlier.or_else(|| {
            ranges().find_map(|range| {
                let is_past = |key: &Key| range.is_before(key);
                writers.first_written_since(&range.first(), is_past, checked.0)
            })
        });
        let conflict = |key: &Key| Verdict::Conflict { key: key.clone() };
        if let Some(key) = earlier {
            return Some(Decision::Now(conflict(key)));
        }
        let here = proposal.reads.iter().find(|key| written.contains(*key));
        let here = here.or_else(|| ranges().find_map(|range| first_in(written, range)));
        here.map(|key| Decision::AfterSlot(Outcome::Fails(conflict(key))))
    }

    fn base(&self, key: &Key) -> Option<&Base> {
        let here = self.noted.numbers.get(key);
        here.or_else(|| self.validator.numbers.get(key))
    }

    fn unknown_numbers(&self, candidate: &Candidate<'_>) -> Vec<Key> {
        let compared = candidate
            .proposal
            .predicates
            .iter()
            .filter_map(|predicate| {
                let is_compared = !self.breaks(Broken::ComparesNumbersAtSnapshot);
                match predicate {
                    Predicate::Number { key, .. } if is_compared => Some(key),
                    _ => None,
                }
            });
        let used = compared.chain(numbers_of(candidate.writes));
        let unknown: BTreeSet<&Key> = used.filter(|key| self.base(key).is_none()).collect();
        unknown.into_iter().cloned().collect()
    }

    fn failed_predicate<'p>(&self, proposal: &'p Proposal, locks: &LockTable) -> Option<&'p Key> {
        proposal
            .predicates
            .iter()
            .find_map(|predicate| match predicate {
                Predicate::Untouched(_) => None,
                Predicate::Number { .. } if self.breaks(Broken::ComparesNumbersAtSnapshot) => None,
                Predicate::Number { key, is } => {
                    let number = self.base(key).and_then(Base::number);
                    (!number.is_some_and(|number| is.holds(number))).then_some(key)
                }
                Predicate::LockFree(key) => (!locks.is_free_since(key, proposal.at)).then_some(key),
            })
    }

    /// The values that the writes use as numbers. All of them are known.
    fn numbers_used(&self, writes: &[Write]) -> Vec<(Key, Base)> {
        let keys: BTreeSet<&Key> = numbers_of(writes).collect();
        let known = |key: &Key| self.base(key).cloned().map(|base| (key.clone(), base));
        keys.into_iter().filter_map(known).collect()
    }

    fn commit(&mut self, candidate: &Candidate<'_>) -> Decision {
        let proposal = candidate.proposal;
        let resolved = resolve(candidate.writes, |key| {
            let base = self.base(key).cloned();
            base.expect("the numbers that it uses were found to be known")
        });
        let resolved = match resolved {
            Ok(resolved) => resolved,
            Err(refusal) => return self.fail(proposal, Verdict::Refused(refusal)),
        };
        let staged = match proposal.writes {
            Writes::Inline(_) => None,
            Writes::Staged {
                stage,
                parts,
                bytes,
                crc,
            } => Some(Changes::Staged {
                stage,
                parts,
                bytes,
                crc,
                numbers: self.numbers_used(candidate.writes),
            }),
        };
        for (key, change) in &resolved.changes {
            if let Some(after) = self.base(key).map(|base| base.after(change)) {
                self.noted.numbers.insert(key.clone(), after);
            }
        }
        let written = resolved.changes.keys().cloned();
        self.noted.written.extend(written);
        let changes = staged.unwrap_or_else(|| Changes::inline(resolved.changes));
        self.bytes += changes.bytes_len() + POSITION_BYTES * resolved.appended_at.len();
        self.commits.push(SlotCommit {
            id: proposal.id.clone(),
            changes,
            appended_at: resolved.appended_at.clone(),
        });
        let appended_at = resolved.appended_at;
        self.decide_after(&proposal.id, Outcome::Commits { appended_at })
    }

    /// Closes the proposal, because the state that it failed on may change.
    fn fail(&mut self, proposal: &Proposal, verdict: Verdict) -> Decision {
        self.closed.push((proposal.id.clone(), verdict.clone()));
        self.decide_after(&proposal.id, Outcome::Fails(verdict))
    }

    fn decide_after(&mut self, id: &ProposalId, outcome: Outcome) -> Decision {
        self.bytes += id.id().len() + 2 * ID_BYTES_MAX + 512;
        let decided = (id.clone(), outcome.clone());
        self.decided.insert(id.id().clone(), decided);
        Decision::AfterSlot(outcome)
    }
}

/// A proposal that writes nothing takes place at the slot that it read. Locks that it elided may
/// hide a state that no other transaction was to see.
fn read_only(proposal: &Proposal, locks: &LockTable) -> Verdict {
    let locked = proposal
        .predicates
        .iter()
        .find_map(|predicate| match predicate {
            Predicate::LockFree(key) if !locks.is_free_since(key, proposal.at) => Some(key.clone()),
            _ => None,
        });
    match locked {
        Some(key) => Verdict::Conflict { key },
        None => Verdict::Committed {
            slot: proposal.at,
            appended_at: Vec::new(),
        },
    }
}

fn first_in<'k>(written: &'k BTreeSet<Key>, range: &KeyRange) -> Option<&'k Key> {
    let first = written.range(range.first()..).next();
    first.filter(|key| !range.is_before(key))
}
