//! Runs, steps and functions' state in a near or far store, and the outbox of a far one.

mod changes;
pub(crate) mod layout;
mod outbox;
mod records;
mod store;
mod transaction;

pub use layout::RESERVED_NAMES;
pub use records::{Status, StepResult};

pub(crate) use changes::{Changes, Writes, size};
pub(crate) use outbox::Outbox;
pub(crate) use records::{Given, RunRow, StepRow};
pub(crate) use store::{State, Store, VALUE, cut, listed};
