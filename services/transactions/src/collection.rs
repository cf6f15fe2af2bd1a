//! Keeping the store small: collection of superseded versions, retention of rows and slots, sweeps.

pub(crate) mod collector;
pub(crate) mod housekeeping;
pub(crate) mod idempotency_keys;
pub(crate) mod retention;
pub(crate) mod sweep;
