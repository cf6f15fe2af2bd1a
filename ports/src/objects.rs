//! Objects: the `object_store` crate's trait, as it is.
//!
//! Landfast asks less of it than it offers, because local disks lack the rest: objects are written once
//! under immutable names with [`PutMode::Create`], read, listed and deleted. Nobody reads `last_modified`,
//! replaces conditionally or uses attributes; mutable facts live in [`KeyValue`](crate::KeyValue).
//!
//! Promises
//! - **O1** A put that returned is seen by every later get, and is durable.
//! - **O2** Of several creates of one name exactly one succeeds; the others hear that it exists.
//! - **O3** A get returns the whole object of one put, or that there is none.
//! - **O4** A list with a prefix returns every object whose put returned before, once.

pub use object_store::{
    Error as ObjectError, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    path::Path as ObjectPath,
};
