//! Objects: the `object_store` crate's trait, as it is.
//!
//! Landfast asks less of it than it offers, because local disks lack the rest: objects are written once
//! under immutable names with [`PutMode::Create`], read, listed and deleted. Nobody reads `last_modified`,
//! replaces conditionally or uses attributes; mutable facts live in [`KeyValue`](crate::KeyValue).
//!
//! Promises
//! - **O1** A put that returned is seen by every later get, and is durable.
//! - **O2** Of several creates of one name exactly one succeeds; the others hear that it exists, and then it is durable.
//! - **O3** A get returns the whole object of one put, or that there is none.
//! - **O4** A list with a prefix returns every object whose put returned before, once.

use std::{error::Error as StdError, io, iter};

pub use object_store::{
    Error as ObjectError, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    path::Path as ObjectPath,
};

use crate::{Error, ErrorKind};

/// The result of an object store's call.
pub type Result<T, E = ObjectError> = std::result::Result<T, E>;

/// A store's failure in our words: `NoRoom` where the disk is full, `NoRoom` or `Invalid` where a store on our own ports
/// said so, else `Unavailable`.
pub fn failed(attempted: String, cause: ObjectError) -> Error {
    let kind = refusal(&cause).unwrap_or(ErrorKind::Unavailable {
        retry_after_ms: None,
    });
    Error::new(kind, attempted).caused_by(cause)
}

/// Whether it is because there is no room.
pub fn is_for_want_of_room(failure: &ObjectError) -> bool {
    refusal(failure) == Some(ErrorKind::NoRoom)
}

/// What the file system said, if it was that.
pub fn io_error_of(failure: &ObjectError) -> Option<&io::Error> {
    causes(failure).find_map(|error| error.downcast_ref())
}

/// Why the store will not, where trying again does not help.
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

/// The failure, what it was caused by, and so on.
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
            "nobody but the store repeats it"
        );
    }
}
