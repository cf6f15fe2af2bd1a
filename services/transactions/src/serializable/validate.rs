//! Validation: which proposals commit, and the slot that decides them.
//!
//! ```text
//!  Validator::draft ──▶ Draft::decide, for each waiting proposal in turn
//!    ──▶ Draft::finish ──▶ VolumeSlot ──▶ appended to the log: that decides ──▶ Validator::note
//! ```
//!
//! A draft changes nothing, so a slot that was not written leaves no trace. The shell does the I/O
//! that a decision asks for: it loads numbers, and reads the change rows for old proposals.
//!
//! Invariants
//! - No proposal commits if an earlier slot, or an earlier member of its draft, has written its
//!   reads since its `at`. Numbers are compared with all of these applied.
//! - A proposal id is decided once. Change rows have the decisions that the validator has
//!   forgotten. The shell reads them before the validator decides a proposal from that time.
//! - A refusal that could pass later closes the proposal in the slot.
//!
//! Pure: no I/O, no clock.

mod draft;
mod ids;
mod numbers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use primitives::Mutant;

pub use self::draft::{Candidate, Decision, Draft, Outcome};
use self::{ids::Ids, numbers::Numbers};
use crate::{
    broken::Broken,
    sequencer::validation::{LastWriters, Remembered},
    serializable::{
        apply::Base,
        model::{Key, ProposalId, Slot, Verdict},
        slots::VolumeSlot,
    },
};

/// The memory of one validator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of written keys that it remembers.
    pub keys_bytes_max: usize,
    /// The most proposals that it remembers.
    pub ids_max: usize,
    /// The most numbers that it knows, twice. One proposal may use as many, and no more.
    pub numbers_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keys_bytes_max: 48 << 20,
            ids_max: 100_000,
            numbers_max: 131_072,
        }
    }
}

/// Keys are bounded by their approximate memory, in the table and in the list of their slot.
impl Remembered for Key {
    fn weight(&self) -> usize {
        192 + self.bytes_len()
    }
}

/// Decides the proposals on one volume.
#[derive(Debug)]
pub struct Validator {
    writers: LastWriters<Key>,
    ids: Ids,
    numbers: Numbers,
    last: Slot,
    mutant: Mutant<Broken>,
}

/// The effect of a slot on the validator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Noted {
    /// The keys that it writes.
    pub written: BTreeSet<Key>,
    /// The values after it that are used as numbers.
    pub numbers: BTreeMap<Key, Base>,
}

impl Validator {
    /// A validator after slot `last`, which remembers nothing up to it.
    pub fn new(last: Slot, limits: Limits) -> Self {
        Self::broken(last, limits, Mutant::NONE)
    }

    pub(crate) fn broken(last: Slot, limits: Limits, mutant: Mutant<Broken>) -> Self {
        Self {
            writers: LastWriters::new(last.0, limits.keys_bytes_max),
            ids: Ids::new(last, limits.ids_max),
            numbers: Numbers::new(limits.numbers_max),
            last,
            mutant,
        }
    }

    /// The last slot that was noted.
    pub fn last(&self) -> Slot {
        self.last
    }

    /// Proposals from before this slot need the change rows up to it.
    pub fn oldest(&self) -> Slot {
        Slot(self.writers.oldest()).max(self.ids.oldest())
    }

    /// The verdict on a proposal that is decided, if it is remembered.
    pub fn answer(&self, id: &ProposalId) -> Option<Verdict> {
        if self.mutant.breaks(Broken::ForgetsProposalIds) {
            return None;
        }
        self.ids.verdict(id)
    }

    /// Begins the next slot.
    pub fn draft(&self) -> Draft<'_> {
        Draft::new(self)
    }

    /// Learns the value of a key as of slot `at`, as [`Decision::Wants`] asks for. Returns whether
    /// it is still known to be the present one. If it is not, load it again.
    pub fn learn(&mut self, key: &Key, at: Slot, value: Option<&Bytes>) -> bool {
        let is_present = at.0 >= self.writers.oldest() && !self.writers.is_written_since(key, at.0);
        if is_present {
            self.numbers.set(key.clone(), Base::of(value));
        }
        is_present
    }

    /// Notes a slot that was written, which follows all noted before. At a take-over these are the
    /// slots of predecessors, with the keys that each has written and no numbers.
    pub fn note(&mut self, number: Slot, slot: &VolumeSlot, noted: Noted) {
        for (id, verdict) in slot.decided(number) {
            self.ids.note(number, &id, verdict);
        }
        for key in &noted.written {
            self.numbers.forget(key);
        }
        for (key, base) in noted.numbers {
            self.numbers.set(key, base);
        }
        self.writers.note(number.0, noted.written);
        self.last = number;
    }
}
