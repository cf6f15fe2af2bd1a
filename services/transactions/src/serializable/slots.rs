//! The slots of a volume's log. A slot decides its commits, and holds their changes.
//!
//! Decoding checks everything that the encoder guarantees: bounds of keys and values, one change
//! for each key, and verdicts. A damaged slot must not become a value.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    model::NodeId,
    serializable::{
        FORMAT,
        apply::{Base, Change, Resolved, is_in_bounds, resolve},
        model::{Key, ProposalId, Refusal, Slot, StageId, Verdict, Write},
    },
};

/// The most bytes of a slot. One proposal always fits: its writes are at most 64 KiB, or staged.
pub const SLOT_BYTES_MAX: usize = 256 << 10;
/// The most bytes of the numbers and positions of one staged commit.
pub const NUMBERS_BYTES_MAX: usize = 128 << 10;

/// A slot of a volume's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSlot {
    /// When it was written, by its writer's wall clock, in milliseconds.
    pub written_ms: u64,
    /// The node that wrote it.
    pub by: NodeId,
    /// Its commits, in order.
    pub commits: Vec<SlotCommit>,
    /// Proposals that never commit, with their verdicts.
    pub closed: Vec<(ProposalId, Verdict)>,
}

/// A commit: its presence in the log decides it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotCommit {
    /// Its identity.
    pub id: ProposalId,
    /// The changes that it writes.
    pub changes: Changes,
    /// The positions of its appends.
    pub appended_at: Vec<u64>,
}

/// The changes of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Changes {
    /// Here, one for each key, in their order.
    Inline(Vec<(Key, Change)>),
    /// In a stage.
    Staged {
        /// The stage.
        stage: StageId,
        /// The number of its parts.
        parts: u32,
        /// The bytes of all parts.
        bytes: u64,
        /// The CRC-32 of all parts.
        crc: u32,
        /// The values before it that its writes use as numbers, in the order of their keys.
        numbers: Vec<(Key, Base)>,
    },
}

impl Changes {
    /// Inline changes.
    pub fn inline(changes: BTreeMap<Key, Change>) -> Self {
        Self::Inline(changes.into_iter().collect())
    }

    /// Their approximate encoded length in bytes.
    pub fn bytes_len(&self) -> usize {
        match self {
            Self::Inline(changes) => {
                let lengths = changes.iter();
                lengths
                    .map(|(key, change)| key.bytes_len() + change.bytes_len())
                    .sum()
            }
            Self::Staged { numbers, .. } => {
                let keys = numbers.iter().map(|(key, _)| key);
                48 + keys.map(number_bytes_len).sum::<usize>()
            }
        }
    }

    /// The changes; `staged` are the decoded writes of the stage, if there is one.
    ///
    /// Errors: `Corrupt` if the stage is not the one that was decided.
    pub fn resolve(&self, staged: &[Write]) -> Result<BTreeMap<Key, Change>> {
        match self {
            Self::Inline(changes) => Ok(changes.iter().cloned().collect()),
            Self::Staged { numbers, .. } => {
                let numbers: BTreeMap<&Key, &Base> =
                    numbers.iter().map(|(key, base)| (key, base)).collect();
                let base = |key: &Key| match numbers.get(key) {
                    Some(base) => (*base).clone(),
                    None => Base::Short(None),
                };
                let resolved: Result<Resolved, Refusal> = resolve(staged, base);
                let differs = |_| Error::Corrupt("a stage differs from its commit".into());
                resolved.map(|resolved| resolved.changes).map_err(differs)
            }
        }
    }
}

/// The approximate encoded length of one number of a staged commit, in bytes.
pub fn number_bytes_len(key: &Key) -> usize {
    key.bytes_len() + 11
}

impl VolumeSlot {
    /// The verdict of each proposal that it decides, given its number.
    pub fn decided(&self, slot: Slot) -> impl Iterator<Item = (ProposalId, Verdict)> {
        let commits = self.commits.iter().map(move |commit| {
            let appended_at = commit.appended_at.clone();
            (commit.id.clone(), Verdict::Committed { slot, appended_at })
        });
        commits.chain(self.closed.iter().cloned())
    }

    /// The change of each key over all commits, which is all that a snapshot sees of the slot.
    /// `staged` has the writes of each stage that it names.
    ///
    /// Errors: `Corrupt` if a stage is missing, or is not the one that was decided.
    pub fn folded(&self, staged: &BTreeMap<StageId, Vec<Write>>) -> Result<BTreeMap<Key, Change>> {
        let mut folded = BTreeMap::<Key, Change>::new();
        for commit in &self.commits {
            let writes = match &commit.changes {
                Changes::Inline(_) => None,
                Changes::Staged { stage, .. } => {
                    let missing = || Error::Corrupt("the stage of a commit is missing".into());
                    Some(staged.get(stage).ok_or_else(missing)?)
                }
            };
            let writes = writes.map_or(&[][..], |writes| writes);
            for (key, change) in commit.changes.resolve(writes)? {
                let change = match folded.remove(&key) {
                    None => change,
                    Some(earlier) => earlier.then(change),
                };
                folded.insert(key, change);
            }
        }
        Ok(folded)
    }

    /// The stages that its commits name.
    pub fn stages(&self) -> BTreeSet<StageId> {
        let stages = self
            .commits
            .iter()
            .filter_map(|commit| match commit.changes {
                Changes::Staged { stage, .. } => Some(stage),
                Changes::Inline(_) => None,
            });
        stages.collect()
    }

    /// Encodes it for the log.
    pub fn encode(&self) -> Bytes {
        let commits = self
            .commits
            .iter()
            .map(|commit| commit.changes.bytes_len() + 64);
        FORMAT.encode(self, commits.sum::<usize>() + 64 * self.closed.len() + 32)
    }

    /// Decodes the bytes of [`VolumeSlot::encode`]. Errors: `Corrupt`.
    pub fn decode(payload: &[u8]) -> Result<Self> {
        let slot: Self = FORMAT.decode(payload, "a slot of a volume's log")?;
        let are_sound = slot.commits.iter().all(|commit| match &commit.changes {
            Changes::Inline(changes) => {
                changes.is_sorted_by(|(one, _), (next, _)| one < next)
                    && changes.iter().all(|(_, change)| is_in_bounds(change))
            }
            Changes::Staged { numbers, .. } => {
                numbers.is_sorted_by(|(one, _), (next, _)| one < next)
            }
        });
        let are_closed = slot
            .closed
            .iter()
            .all(|(_, verdict)| matches!(verdict, Verdict::Conflict { .. } | Verdict::Refused(_)));
        if !are_sound || !are_closed {
            let why = "a slot of a volume's log decodes to changes that no writer makes";
            return Err(Error::Corrupt(why.into()));
        }
        Ok(slot)
    }
}
