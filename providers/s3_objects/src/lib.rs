//! Objects in a bucket of S3, or of a store that speaks its protocol.
//!
//! The client is that of the crate `object_store`. A create is a PUT with `If-None-Match: *`, which
//! the store must support; S3 itself, MinIO and Landfast do.
//!
//! Deliberately absent: buckets are not created, and a failed request is repeated only a few times.
//! A caller that must succeed repeats it by itself, with the pauses that it wants.

mod config;
mod objects;

pub use config::{Config, ConfigError, Keys};
pub use objects::{LIMITS, OpenError, open};
