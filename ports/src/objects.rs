//! Objects: the `object_store` crate's trait, as it is.
//!
//! Landfast uses only a part of it, because local disks lack the rest. Objects are written once
//! under immutable names with [`PutMode::Create`], or in parts, and are read, listed and deleted.
//! No caller reads `last_modified`, replaces conditionally or uses attributes. Mutable facts are in
//! [`KeyValue`](crate::KeyValue).
//!
//! Promises
//! - **O1** Every later get sees a put that returned, and the put is durable.
//! - **O2** Of several creates of one name exactly one succeeds. The others are told that the
//!   object exists, and then it is durable.
//! - **O3** A get returns the whole object of one put, or that there is none. A get of a range
//!   returns that range.
//! - **O4** A list with a prefix returns every object whose put returned before, once.
//! - **O5** If [`ObjectLimits::takes_parts`], an object can be put in parts. Its parts are in the
//!   order in which they were given. No call shows the object before the upload is completed. A
//!   completed upload is like a put that returned (O1). An aborted one leaves nothing, and one that
//!   a crash ended is never shown.
//! - **O6** A get streams an object in pieces of at most [`ObjectLimits::piece_bytes_max`], so that
//!   the reader's memory does not depend on the object's size.

use std::{error::Error as StdError, io, iter};

pub use object_store::{
    Error as ObjectError, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, path::Path as ObjectPath,
};

use crate::{Error, ErrorKind};

/// The limits of an object store. Its trait has no place for them, so a provider states them beside
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectLimits {
    /// The largest object.
    pub object_bytes_max: u64,
    /// Whether objects can be put in parts (O5).
    pub takes_parts: bool,
    /// The largest piece in which a get streams an object (O6).
    pub piece_bytes_max: usize,
}

/// The result of an object store's call.
pub type Result<T, E = ObjectError> = std::result::Result<T, E>;

/// A store's failure as an error of ours: `NoRoom` if the disk is full, `NoRoom` or `Invalid` if a
/// store on our own ports returned that, else `Unavailable`.
pub fn failed(attempted: String, cause: ObjectError) -> Error {
    let kind = refusal(&cause).unwrap_or(ErrorKind::Unavailable {
        retry_after_ms: None,
    });
    Error::new(kind, attempted).caused_by(cause)
}

/// Whether the store refused for lack of room.
pub fn is_for_want_of_room(failure: &ObjectError) -> bool {
    refusal(failure) == Some(ErrorKind::NoRoom)
}

/// The file system's error, if it caused the failure.
pub fn io_error_of(failure: &ObjectError) -> Option<&io::Error> {
    causes(failure).find_map(|error| error.downcast_ref())
}

/// The kind of a refusal that a retry cannot cure.
fn refusal(failure: &ObjectError) -> Option<ErrorKind> {
    causes(failure).find_map(|error| {
        if let Some(kind @ (ErrorKind::NoRoom | ErrorKind::Invalid)) =
            error.downcast_ref().map(Error::kind)
        {
            return Some(kind);
        }
        let kind = error.downcast_ref::<io::Error>()?.kind();
        matches!(
            kind,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
        .then_some(ErrorKind::NoRoom)
    })
}

/// The failure, its cause, that one's cause, and so on.
fn causes(failure: &ObjectError) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    iter::successors(Some(failure as &(dyn StdError + 'static)), |&error| {
        error.source()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(source: impl Into<Box<dyn StdError + Send + Sync>>) -> ObjectError {
        ObjectError::Generic {
            store: "disk",
            source: source.into(),
        }
    }

    /// P6.
    #[test]
    fn a_full_disk_is_told_from_other_failures_however_deep_it_is_wrapped() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let wrapped = failed("write".to_owned(), generic(generic(full())));
        assert_eq!(wrapped.kind(), ErrorKind::NoRoom);
        let other = failed(
            "write".to_owned(),
            generic(io::Error::from(io::ErrorKind::PermissionDenied)),
        );
        assert_eq!(
            other.kind(),
            ErrorKind::Unavailable {
                retry_after_ms: None
            }
        );
    }
    /// O1, of a store that is made of items.
    #[test]
    fn what_a_store_on_our_ports_refuses_is_refused_in_its_words() {
        for kind in [ErrorKind::NoRoom, ErrorKind::Invalid] {
            let said = failed(
                "write".to_owned(),
                generic(Error::new(kind, "update an item")),
            );
            assert_eq!(said.kind(), kind);
        }
        let unknown = generic(Error::new(ErrorKind::OutcomeUnknown, "update an item"));
        let said = failed("write".to_owned(), unknown);
        assert_eq!(
            said.kind(),
            ErrorKind::Unavailable {
                retry_after_ms: None
            },
            "the store alone may repeat it"
        );
    }
}
