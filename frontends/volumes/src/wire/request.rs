//! Requests: all calls of [`Volumes`] and [`VolumeStore`].
//!
//! [`Volumes`]: transactions::serializable::Volumes
//! [`VolumeStore`]: transactions::serializable::VolumeStore

use bytes::Bytes;
use ports::DurabilityPoint;
use serde::{Deserialize, Serialize};
use transactions::serializable::{
    model::{
        At, Groups, KEYS_MAX, Key, KeyRange, Lock, Owner, PageLimits, PinName, Predicate, Proposal,
        ProposalId, SessionId, Slot, StageId, Write, Writes,
        proposal::{INLINE_BYTES_MAX, READS_MAX},
    },
    volumes::{VolumeName, VolumeSettings},
};

use super::List;

/// The most writes in a proposal: each has at least 16 bytes by the count of the model.
const WRITES_MAX: usize = INLINE_BYTES_MAX / 16;

/// The number that a client gave to a volume when it opened it. It means nothing to other
/// connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VolumeNumber(pub u32);

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A call of one volume. Answer: that of the call.
    On(VolumeNumber, Call),
    /// Opens a volume under a number, for this connection. Answer: `Opened`.
    Open(VolumeNumber, VolumeName),
    /// Closes a number. Answer: `Done`.
    Close(VolumeNumber),
    /// Creates a volume. Answer: `Done`.
    Create(VolumeName, VolumeSettings),
    /// Lists all volumes. Answer: `Listed`.
    List,
    /// Changes the quota of a volume, in bytes. Answer: `Done`.
    SetQuota(VolumeName, Option<u64>),
    /// Clones a volume. Answer: `Done`.
    Clone {
        /// The original.
        from: VolumeName,
        /// The state that is cloned; `None`: now.
        at: Option<Slot>,
        /// The new volume.
        to: VolumeName,
    },
    /// Deletes a volume. Answer: `Done`.
    Delete(VolumeName),
    /// Ends the wait of the lock with that number, which is then answered `Cancelled`. Has no
    /// answer of its own.
    Cancel(u64),
    /// Ends the session at once. Answer: `Done`.
    Goodbye,
}

/// A call of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Answer: `Snapshot`.
    Snapshot,
    /// Answer: `Values`.
    GetMany(At, List<Key, KEYS_MAX>),
    /// A read at the tail with leases on the groups of the keys. Answer: `Leased`.
    GetLeased(SessionId, List<Key, KEYS_MAX>),
    /// Waits for a recall of leases, and acknowledges those up to a number. Answer: `Recalled`.
    Recalled(SessionId, u64),
    /// Answer: `Page`.
    Scan(At, KeyRange, PageLimits),
    /// `None`: all groups. Answer: `Changed`.
    ChangedSince(Slot, Option<List<Bytes, KEYS_MAX>>),
    /// Answer: `Point`.
    Stage(StageId, u32, Bytes),
    /// Answer: `Verdict`.
    Commit(SentProposal),
    /// A commit that recalls no leases of the session. Answer: `Verdict`.
    CommitLeased(SessionId, SentProposal),
    /// Answer: `Done`.
    Externalize(DurabilityPoint),
    /// Answer: `Done`.
    Pin(PinName, Slot),
    /// Answer: `Done`.
    Unpin(PinName),
    /// Answer: `Pins`.
    Pins,
    /// Answer: `Granted`.
    Lock(Owner, Lock),
    /// Takes a lock that the client had when the former server ended. Answer: `Granted`.
    Reclaim(Owner, Lock),
    /// Answer: `Done`.
    Hold(SessionId, Key),
    /// Answer: `Done`.
    Release(SessionId, Key),
    /// Answer: `IsHeld`.
    IsHeld(Key),
    /// Answer: `Done`.
    EndSession(SessionId),
    /// Answer: `Numbers`.
    ReserveNumbers,
    /// Answer: `Usage`.
    Usage,
}

/// A proposal whose lists have bounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentProposal {
    at: Slot,
    id: ProposalId,
    reads: List<Key, READS_MAX>,
    predicates: List<Predicate, READS_MAX>,
    writes: SentWrites,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum SentWrites {
    Inline(List<Write, WRITES_MAX>),
    Staged {
        stage: StageId,
        parts: u32,
        bytes: u64,
        crc: u32,
    },
}

impl From<Proposal> for SentProposal {
    fn from(proposal: Proposal) -> Self {
        let writes = match proposal.writes {
            Writes::Inline(writes) => SentWrites::Inline(List(writes)),
            Writes::Staged {
                stage,
                parts,
                bytes,
                crc,
            } => SentWrites::Staged {
                stage,
                parts,
                bytes,
                crc,
            },
        };
        Self {
            at: proposal.at,
            id: proposal.id,
            reads: List(proposal.reads),
            predicates: List(proposal.predicates),
            writes,
        }
    }
}

impl From<SentProposal> for Proposal {
    fn from(sent: SentProposal) -> Self {
        let writes = match sent.writes {
            SentWrites::Inline(writes) => Writes::Inline(writes.0),
            SentWrites::Staged {
                stage,
                parts,
                bytes,
                crc,
            } => Writes::Staged {
                stage,
                parts,
                bytes,
                crc,
            },
        };
        Self {
            at: sent.at,
            id: sent.id,
            reads: sent.reads.0,
            predicates: sent.predicates.0,
            writes,
        }
    }
}

impl Call {
    /// A call of `changed_since`.
    pub fn changed_since(slot: Slot, groups: &Groups) -> Self {
        let groups = match groups {
            Groups::All => None,
            Groups::Of(groups) => Some(List(groups.clone())),
        };
        Self::ChangedSince(slot, groups)
    }
}

impl SentProposal {
    /// Its approximate length, in bytes.
    pub fn bytes_len(&self) -> usize {
        let writes = match &self.writes {
            SentWrites::Inline(writes) => writes.0.iter().map(Write::bytes_len).sum(),
            SentWrites::Staged { .. } => 0,
        };
        let reads: usize = self.reads.0.iter().map(Key::bytes_len).sum();
        reads + writes + self.predicates.0.len() * 32
    }
}
