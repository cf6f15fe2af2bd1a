//! Open attempts of transactions: their state, and what they read and wrote so far.

pub(crate) mod open_attempts;
pub(crate) mod read_set;
pub(crate) mod snapshot;
pub(crate) mod spills;
pub(crate) mod transaction;
pub(crate) mod write_buffer;
