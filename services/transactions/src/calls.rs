//! The calls of the API, one module for each.

pub(crate) mod abort;
pub(crate) mod begin;
pub(crate) mod commit;
pub mod list;
pub(crate) mod plain_write;
pub(crate) mod read;
pub(crate) mod spill;
pub(crate) mod status;
pub(crate) mod write;
