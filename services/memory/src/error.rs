//! The errors of calls, in the service's own terms. Only a front end knows wire codes.

use std::{io, sync::Arc};

use ports::ErrorKind;

/// The result of every call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a call was refused.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no bucket of this name.
    #[error("no such bucket")]
    NoSuchBucket,
    /// There is a bucket of this name.
    #[error("the bucket exists")]
    BucketExists,
    /// The bucket still has objects or uploads.
    #[error("the bucket is not empty")]
    BucketNotEmpty,
    /// There is no object under this key.
    #[error("no such object")]
    NoSuchObject,
    /// There is no upload in parts with this id: it was never begun, was aborted or was completed.
    #[error("no such upload")]
    NoSuchUpload,
    /// A completion names a part that was not uploaded, or another ETag than the part has.
    #[error("part {0} is not there, or has another ETag")]
    InvalidPart(u16),
    /// A completion does not name its parts in ascending order.
    #[error("the parts are not in ascending order")]
    InvalidPartOrder,
    /// A part other than the last is smaller than [`crate::model::PART_BYTES_MIN`].
    #[error("part {0} is too small")]
    PartTooSmall(u16),
    /// A condition did not hold when the change was decided.
    #[error("a condition did not hold")]
    ConditionFailed,
    /// Other changes of the same object came first, again and again. Try again.
    #[error("other changes of the object came first")]
    Contended,
    /// Beyond a limit; a retry cannot help.
    #[error("too large: {0}")]
    TooLarge(&'static str),
    /// The object store or the key-value store is full. Reads go on.
    #[error("no room: {0}")]
    NoRoom(Arc<str>),
    /// So many events of objects wait for their functions. Try again once they have taken some.
    #[error("{0} events of objects wait for their functions")]
    Backlog(usize),
    /// The client's body failed while it was read.
    #[error("the body could not be read: {0}")]
    Body(Arc<io::Error>),
    /// The stores cannot serve at the moment. Try again.
    #[error("unavailable: {0}")]
    Unavailable(Arc<str>),
    /// Stored bytes are damaged beyond what the erasure code can repair.
    #[error("damaged: {0}")]
    Damaged(Arc<str>),
}

impl From<ports::Error> for Error {
    fn from(error: ports::Error) -> Self {
        let text = error.to_string().into();
        match error.kind() {
            ErrorKind::NoRoom => Self::NoRoom(text),
            ErrorKind::Corrupt => Self::Damaged(text),
            _ => Self::Unavailable(text),
        }
    }
}
