//! The wire form of a call that one node forwards to another, and of its answer.

use std::mem::discriminant;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    cluster::peers::NoAnswer,
    effects::Effect,
    model::{After, Key, Outcome},
};

/// A request to the owner of a call's transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Asked {
    Get(Key),
    Write(Key, Option<Bytes>),
    Send(Effect, Option<u32>),
    Commit,
    Abort,
    Status,
    /// New ones are appended, because nodes of two builds can work side by side.
    Keep(Bytes),
}

/// The owner's answer.
pub(crate) type Reply = Result<Said, Refused>;

/// The result of each kind of call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Said {
    Value(Option<Bytes>),
    Done,
    Committed(Option<After>),
    Outcome(Outcome),
}

/// An error as it is sent: an error of the owner is the same error here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refused {
    /// By its index in [`WITHOUT_TEXT`].
    Plain(u8),
    Finished(Outcome),
    Unavailable(String),
    Corrupt(String),
    WrongObjects(String),
}

const INVALID: &str = "the node of the transaction refuses it";

/// New ones are appended, because nodes of two builds can work side by side.
const WITHOUT_TEXT: [Error; 16] = [
    Error::Invalid(INVALID),
    Error::TooLarge(INVALID),
    Error::TooManyOpen,
    Error::TooMuchBuffered,
    Error::NoSuchTransaction,
    Error::NoSuchQueue,
    Error::NoSuchFunction,
    Error::NoValidVersion,
    Error::Conflict,
    Error::SnapshotTooOld,
    Error::Expired,
    Error::OutcomeUnknown,
    Error::NoRoom,
    Error::NoSuchVolume,
    Error::VolumeExists,
    Error::VolumeInUse,
];

pub(crate) fn not_understood() -> Error {
    Error::unavailable("unexpected kind of answer")
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        match error {
            Error::TransactionFinished(outcome) => Self::Finished(outcome),
            Error::Unavailable(why) => Self::Unavailable(why.to_string()),
            Error::Corrupt(why) => Self::Corrupt(why.to_string()),
            Error::WrongObjects(why) => Self::WrongObjects(why.to_string()),
            error => {
                let is_it = |other: &Error| discriminant(other) == discriminant(&error);
                let index = WITHOUT_TEXT.iter().position(is_it);
                Self::Plain(index.map_or(u8::MAX, |index| index as u8))
            }
        }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Plain(index) => WITHOUT_TEXT
                .get(usize::from(index))
                .cloned()
                .unwrap_or_else(not_understood),
            Refused::Finished(outcome) => Self::TransactionFinished(outcome),
            Refused::Unavailable(why) => Self::Unavailable(why.into()),
            Refused::Corrupt(why) => Self::Corrupt(why.into()),
            Refused::WrongObjects(why) => Self::WrongObjects(why.into()),
        }
    }
}

impl Asked {
    /// Whether only the transaction's owner can do it.
    pub(crate) fn is_only_there(&self) -> bool {
        let is_of_open = matches!(self, Self::Get(_) | Self::Keep(_));
        is_of_open || matches!(self, Self::Write(..) | Self::Send(..))
    }

    /// Whether executing it late would change the transaction's result.
    pub(crate) fn must_not_come_late(&self) -> bool {
        matches!(self, Self::Write(..) | Self::Send(..))
    }

    /// The client's error if the owner is alive and does not do it: the same as from the owner
    /// itself.
    pub(crate) fn refused(&self, why: NoAnswer) -> Error {
        match (self, why) {
            (_, NoAnswer::TooMuchBuffered) => Error::TooMuchBuffered,
            (Self::Commit | Self::Abort, _) => Error::OutcomeUnknown,
            (_, why) => Error::unavailable(&why.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_the_same_on_the_other_side() {
        let finished = [
            Outcome::Open,
            Outcome::Committing,
            Outcome::Committed,
            Outcome::Aborted,
            Outcome::Expired,
            Outcome::BegunAnew,
        ]
        .map(Error::TransactionFinished);
        let others = [
            Error::unavailable("why"),
            Error::Corrupt("where".into()),
            Error::WrongObjects("why".into()),
        ];
        let others = others.into_iter().chain(WITHOUT_TEXT);
        for error in finished.into_iter().chain(others) {
            assert_eq!(Error::from(Refused::from(error.clone())), error);
        }
    }
}
