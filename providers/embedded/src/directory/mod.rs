//! The data directory: its file names, its format record and its lock.

pub(crate) mod format;
pub(crate) mod layout;
pub(crate) mod lock;
