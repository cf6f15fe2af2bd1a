//! Attempts of steps: what one attempt writes, sends and reads until it commits.

mod attempt;
mod far_calls;
mod listing;
mod registry;

pub(crate) use attempt::Attempt;
pub(crate) use registry::{AttemptGuard, AttemptRegistry};
