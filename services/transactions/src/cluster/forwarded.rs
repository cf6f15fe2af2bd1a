//! A call that one node passes on to another, and its answer, as they are sent.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    cluster::peers::NoAnswer,
    effects::Effect,
    model::{Attempt, Call, Key, Outcome, TransactionId},
};

/// A call on its way to the node of its transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Forwarded {
    pub(crate) id: TransactionId,
    pub(crate) attempt: Option<Attempt>,
    pub(crate) asked: Asked,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Asked {
    Get(Key),
    Write(Key, Option<Bytes>),
    Send(Effect, Option<u32>),
    Commit,
    Abort,
    Status,
}

/// What its node says.
pub(crate) type Reply = Result<Said, Refused>;

/// To each call what it asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Said {
    Value(Option<Bytes>),
    Done,
    Committed(Option<(crate::model::Version, crate::model::Position)>),
    Outcome(u8),
}

/// An error as it is sent: which, and what it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused {
    kind: u8,
    outcome: Option<u8>,
    why: String,
}

const OUTCOMES: [Outcome; 6] = [
    Outcome::Open,
    Outcome::Committing,
    Outcome::Committed,
    Outcome::Aborted,
    Outcome::Expired,
    Outcome::BegunAnew,
];

pub(crate) fn number(outcome: Outcome) -> u8 {
    OUTCOMES
        .iter()
        .position(|other| *other == outcome)
        .expect("all are listed") as u8
}

pub(crate) fn outcome(number: u8) -> Result<Outcome> {
    OUTCOMES
        .get(usize::from(number))
        .copied()
        .ok_or_else(not_understood)
}

pub(crate) fn not_understood() -> Error {
    Error::unavailable("a node answers what was not asked")
}

/// What is an error at its owner is the same error here.
const INVALID: &str = "the node of the transaction refuses it";

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Invalid(_) => 0,
            Error::TooLarge(_) => 1,
            Error::TooManyOpen => 2,
            Error::TooMuchBuffered => 3,
            Error::NoSuchTransaction => 4,
            Error::NoSuchQueue => 5,
            Error::NoSuchFunction => 6,
            Error::TransactionFinished(_) => 7,
            Error::NoValidVersion => 8,
            Error::Conflict => 9,
            Error::SnapshotTooOld => 10,
            Error::Expired => 11,
            Error::OutcomeUnknown => 12,
            Error::Unavailable(_) => 13,
            Error::NoRoom => 14,
            Error::Corrupt(_) => 15,
            Error::WrongObjects(_) => 16,
        };
        let (outcome, why) = match error {
            Error::TransactionFinished(outcome) => (Some(number(outcome)), String::new()),
            Error::Unavailable(why) | Error::Corrupt(why) | Error::WrongObjects(why) => {
                (None, why.to_string())
            }
            _ => (None, String::new()),
        };
        Self { kind, outcome, why }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        let Refused {
            kind,
            outcome: number,
            why,
        } = refused;
        match kind {
            0 => Self::Invalid(INVALID),
            1 => Self::TooLarge(INVALID),
            2 => Self::TooManyOpen,
            3 => Self::TooMuchBuffered,
            4 => Self::NoSuchTransaction,
            5 => Self::NoSuchQueue,
            6 => Self::NoSuchFunction,
            7 => match number.map(outcome) {
                Some(Ok(outcome)) => Self::TransactionFinished(outcome),
                _ => not_understood(),
            },
            8 => Self::NoValidVersion,
            9 => Self::Conflict,
            10 => Self::SnapshotTooOld,
            11 => Self::Expired,
            12 => Self::OutcomeUnknown,
            14 => Self::NoRoom,
            15 => Self::Corrupt(why.into()),
            16 => Self::WrongObjects(why.into()),
            _ => Self::Unavailable(why.into()),
        }
    }
}

impl Asked {
    /// Whether nobody but the transaction's node can do it.
    pub(crate) fn is_only_there(&self) -> bool {
        matches!(self, Self::Get(_) | Self::Write(..) | Self::Send(..))
    }

    /// Whether it changes what the transaction comes to, if it is done late.
    pub(crate) fn must_not_come_late(&self) -> bool {
        matches!(self, Self::Write(..) | Self::Send(..))
    }

    /// What its client is told where the transaction's node lives and does not do it: the same as by that node itself.
    pub(crate) fn refused(&self, why: NoAnswer) -> Error {
        match (self, why) {
            (_, NoAnswer::TooMuchBuffered) => Error::TooMuchBuffered,
            (Self::Commit | Self::Abort, _) => Error::OutcomeUnknown,
            (_, why) => Error::unavailable(&why.to_string()),
        }
    }
}

impl Forwarded {
    pub(crate) fn new(call: &Call, asked: Asked) -> Self {
        Self {
            id: call.id.clone(),
            attempt: call.attempt,
            asked,
        }
    }

    pub(crate) fn commit(call: &Call) -> Self {
        Self::new(call, Asked::Commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_the_same_on_the_other_side() {
        let finished = OUTCOMES.map(Error::TransactionFinished);
        let others = [
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
            Error::unavailable("why"),
            Error::NoRoom,
            Error::Corrupt("where".into()),
            Error::WrongObjects("why".into()),
        ];
        for error in finished.into_iter().chain(others) {
            assert_eq!(Error::from(Refused::from(error.clone())), error);
        }
    }
}
