//! Open attempts of transactions: their state, and their reads and writes so far.
//!
//! Nothing here reads the store. The calls move an attempt through its phases. The horizon of the
//! open attempts limits collection.

pub(crate) mod open_attempts;
pub(crate) mod read_set;
pub(crate) mod spills;
pub(crate) mod transaction;
pub(crate) mod write_buffer;
