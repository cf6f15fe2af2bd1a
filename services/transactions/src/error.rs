//! The errors of calls, in the service's own terms. Only a front end knows wire codes.

use std::sync::Arc;

use ports::ErrorKind;

use crate::model::Outcome;

/// The result of every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a call was refused. What an error depends on is durable already, unlike what an
/// answer depends on ([`Read`](ports::Read)).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Malformed; trying again cannot help.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// Beyond a limit of one value or one transaction; a retry cannot help.
    #[error("too large: {0}")]
    TooLarge(&'static str),
    /// This node has reached its limit of open transactions. Try again later.
    #[error("too many transactions are open")]
    TooManyOpen,
    /// The unwritten values of all transactions have reached this node's memory limit for them. Try
    /// again later.
    #[error("too much is buffered")]
    TooMuchBuffered,
    /// It was never begun, or it has a client id and ended without a commit, which leaves no
    /// record.
    #[error("no such transaction")]
    NoSuchTransaction,
    /// There is no queue of this name that clients may send to.
    #[error("no such queue")]
    NoSuchQueue,
    /// There is no function of this name that clients may invoke.
    #[error("no such function")]
    NoSuchFunction,
    /// There is no volume of this name.
    #[error("no such volume")]
    NoSuchVolume,
    /// There is a volume of this name already.
    #[error("the volume exists already")]
    VolumeExists,
    /// Another volume is a clone that still reads from it.
    #[error("a clone still reads from the volume")]
    VolumeInUse,
    /// It has ended, or this attempt of it has.
    #[error("the transaction is finished: {0}")]
    TransactionFinished(Outcome),
    /// Every known version of the key would fracture the transaction's reads. Begin again.
    #[error("no version of the key is consistent with earlier reads")]
    NoValidVersion,
    /// Another transaction wrote what this one read. None of its writes takes effect. Begin again.
    #[error("another transaction wrote a key that this one read")]
    Conflict,
    /// Its snapshot is so old that versions it needs were collected. Begin again.
    #[error("the transaction's snapshot is too old")]
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
    /// The service was started without the object store that holds its values, or with another one.
    /// Nothing is damaged: restart it with the right one.
    #[error("this store keeps values in an object store: {0}")]
    WrongObjects(Arc<str>),
    /// Stored bytes do not decode, or one of our limits exceeds the store's. A retry cannot help.
    #[error("the store is damaged: {0}")]
    Corrupt(Arc<str>),
}

impl Error {
    pub(crate) fn unavailable(why: &str) -> Self {
        Self::Unavailable(why.into())
    }
}

/// Maps the store's error, for calls that may be repeated unchanged.
impl From<ports::Error> for Error {
    fn from(error: ports::Error) -> Self {
        match error.kind() {
            ErrorKind::NoRoom => Self::NoRoom,
            ErrorKind::Corrupt | ErrorKind::Invalid => Self::Corrupt(error.to_string().into()),
            _ => Self::Unavailable(error.to_string().into()),
        }
    }
}
