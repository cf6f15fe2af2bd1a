//! Attempts of steps: their writes, messages and reads until they commit.

mod attempt;
mod far_calls;
mod listing;
mod registry;

pub(crate) use attempt::Attempt;
pub(crate) use registry::{AttemptGuard, AttemptRegistry};
