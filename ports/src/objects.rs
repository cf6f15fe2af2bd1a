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

/// A store's failure in our words: `NoRoom` where the disk is full, else `Unavailable`.
pub fn failed(attempted: String, cause: ObjectError) -> Error {
    let kind = if is_for_want_of_room(&cause) {
        ErrorKind::NoRoom
    } else {
        ErrorKind::Unavailable { retry_after_ms: None }
    };
    Error::new(kind, attempted).caused_by(cause)
}

/// Whether it is because the disk is full.
pub fn is_for_want_of_room(failure: &ObjectError) -> bool {
    let is_about_room =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    io_errors(failure).any(is_about_room)
}

/// What the file system said, if it was that.
pub fn io_error_of(failure: &ObjectError) -> Option<&io::Error> {
    io_errors(failure).next()
}

fn io_errors(failure: &ObjectError) -> impl Iterator<Item = &io::Error> {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(failure);
    let causes = iter::from_fn(move || {
        let error = cause?;
        cause = error.source();
        Some(error)
    });
    causes.filter_map(|error| error.downcast_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(source: impl Into<Box<dyn StdError + Send + Sync>>) -> ObjectError {
        ObjectError::Generic { store: "disk", source: source.into() }
    }

    /// P6.
    #[test]
    fn a_full_disk_is_told_from_other_failures_however_deep_it_is_wrapped() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let wrapped = failed("write".to_owned(), generic(generic(full())));
        assert_eq!(wrapped.kind(), ErrorKind::NoRoom);
        let other = failed("write".to_owned(), generic(io::Error::from(io::ErrorKind::PermissionDenied)));
        assert_eq!(other.kind(), ErrorKind::Unavailable { retry_after_ms: None });
    }
}
