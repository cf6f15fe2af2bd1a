//! Answers, each with the durability point of its call.

use std::ops::Range;

use ports::{DurabilityPoint, Read};
use serde::{Deserialize, Serialize};
use transactions::{
    Error, Result,
    serializable::{
        model::{
            BlockBytes, Changed, Granted, Leased, Page, PinName, Recall, Slot, Snapshot, Usage,
            Values, Verdict,
        },
        volumes::VolumeInfo,
    },
};

use super::{Fault, List};

/// The most volumes, or pins of a volume, that an answer lists.
pub const LISTED_MAX: usize = 100_000;

/// The answer to one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The call failed.
    Failed(Fault),
    /// The call has no result.
    Done,
    /// The volume is open, and has blocks of this size.
    Opened(BlockBytes),
    /// All volumes.
    Listed(List<VolumeInfo, LISTED_MAX>),
    /// A state of the volume.
    Snapshot(Snapshot, DurabilityPoint),
    /// The values of several keys.
    Values(Values, DurabilityPoint),
    /// The values of several keys, and the leases on their groups.
    Leased(Leased, DurabilityPoint),
    /// The leases to give up.
    Recalled(Recall, DurabilityPoint),
    /// A page of a scan.
    Page(Page, DurabilityPoint),
    /// The keys that were written.
    Changed(Changed, DurabilityPoint),
    /// The decision about a proposal.
    Verdict(Verdict, DurabilityPoint),
    /// The part of the stage is stored.
    Point(DurabilityPoint),
    /// All pins of the volume.
    Pins(List<(PinName, Slot), LISTED_MAX>),
    /// The result of a lock.
    Granted(Granted),
    /// The wait of the lock, or for a recall, was ended.
    Cancelled,
    /// Whether a session holds the key.
    IsHeld(bool),
    /// Numbers that no call returns again.
    Numbers(Range<u64>),
    /// The space that the volume takes.
    Usage(Usage),
}

impl Answer {
    /// The answer to a call that failed.
    pub fn failed(error: &Error) -> Self {
        Self::Failed(error.into())
    }

    /// The point of its call, if it has one.
    pub fn point(&self) -> Option<DurabilityPoint> {
        match self {
            Self::Snapshot(_, point)
            | Self::Values(_, point)
            | Self::Leased(_, point)
            | Self::Recalled(_, point)
            | Self::Page(_, point)
            | Self::Changed(_, point)
            | Self::Verdict(_, point)
            | Self::Point(point) => Some(*point),
            _ => None,
        }
    }

    /// The answer to a read, which `of` names.
    pub fn read<T>(read: Result<Read<T>>, of: fn(T, DurabilityPoint) -> Self) -> Self {
        Self::of(read, |read| of(read.value, read.point))
    }

    /// The answer to a call, which `of` names.
    pub fn of<T>(result: Result<T>, of: impl FnOnce(T) -> Self) -> Self {
        result.map_or_else(|error| Self::failed(&error), of)
    }

    /// The answer to a call without a result.
    pub fn done(result: Result<()>) -> Self {
        Self::of(result, |()| Self::Done)
    }
}

/// The error of a client whose request got the answer to another one.
pub fn unexpected() -> Error {
    Error::Unavailable("the server's answer is of another kind than the request".into())
}
