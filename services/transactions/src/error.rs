//! What can be wrong with a call, in the service's own words; only a front end knows codes of a wire.

use std::sync::Arc;

use ports::ErrorKind;

use crate::model::Outcome;

/// What every call returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call was refused. What it rests on is durable already, unlike what an answer rests on
/// ([`Shown`](crate::model::Shown)).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Malformed; trying again cannot help.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// Beyond a limit of one value or one transaction; trying again cannot help.
    #[error("too large: {0}")]
    TooLarge(&'static str),
    /// As many transactions are open as this node bears. Try again later.
    #[error("too many transactions are open")]
    TooManyOpen,
    /// The unwritten values of all transactions take as much memory as this node has for them. Try again later.
    #[error("too much is buffered")]
    TooMuchBuffered,
    /// It was never begun, or it is a name that has ended without a commit, of which nothing is at rest.
    #[error("no such transaction")]
    NoSuchTransaction,
    /// There is no queue of this name that clients may send to.
    #[error("no such queue")]
    NoSuchQueue,
    /// There is no function of this name that clients may have run.
    #[error("no such function")]
    NoSuchFunction,
    /// It has ended, or this attempt of it has.
    #[error("the transaction is finished: {0}")]
    TransactionFinished(Outcome),
    /// Every version of the key that is known would fracture what the transaction has read. Begin again.
    #[error("no version of the key goes with what was read")]
    NoValidVersion,
    /// Somebody has written what it read: none of its writes counts. Begin again.
    #[error("what the transaction read was written by another")]
    Conflict,
    /// It reads the keyspace as it was so long ago that versions of then are gone. Begin again.
    #[error("what the transaction reads is too old")]
    SnapshotTooOld,
    /// It began so long ago that its outcome is no longer known.
    #[error("the transaction's outcome is no longer known")]
    Expired,
    /// The commit is not decided yet, or its decision is not known to be durable. Repeat it.
    #[error("the outcome is not known yet")]
    OutcomeUnknown,
    /// The node or its store cannot serve at the moment. Nothing changed; try again.
    #[error("unavailable: {0}")]
    Unavailable(Arc<str>),
    /// The store has no room left.
    #[error("no room left")]
    NoRoom,
    /// The service was not given the object store that its values lie in, or another one. Nothing is damaged: start it with that.
    #[error("values of this store lie in an object store: {0}")]
    WrongObjects(Arc<str>),
    /// Stored bytes do not decode, or a limit of ours was beyond the store's. Trying again cannot help.
    #[error("the store is damaged: {0}")]
    Corrupt(Arc<str>),
}

impl Error {
    pub(crate) fn unavailable(why: &str) -> Self {
        Self::Unavailable(why.into())
    }
}

/// What the store answered, for calls that may be repeated as they are.
impl From<ports::Error> for Error {
    fn from(error: ports::Error) -> Self {
        match error.kind() {
            ErrorKind::NoRoom => Self::NoRoom,
            ErrorKind::Corrupt | ErrorKind::Invalid => Self::Corrupt(error.to_string().into()),
            _ => Self::Unavailable(error.to_string().into()),
        }
    }
}
