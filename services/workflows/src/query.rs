//! Runs and workflows' state as callers see them, once durable (W3).

mod response;
mod runs;
mod state;
mod view;

use std::sync::Arc;

use parking_lot::Mutex;
use ports::LogThrottle;

use crate::{env::Env, placement::Placement, scheduler::Claims};

pub use view::{RunView, StepView};

pub(crate) use response::AwaitedStore;

#[derive(Debug)]
pub(crate) struct Query {
    env: Arc<Env>,
    placement: Arc<Placement>,
    claims: Arc<Claims>,
    /// Limits the log lines about writes that far stores refuse permanently.
    refusal_log: Mutex<LogThrottle>,
}

impl Query {
    pub(crate) fn new(env: &Arc<Env>, placement: &Arc<Placement>, claims: &Arc<Claims>) -> Self {
        Self {
            env: Arc::clone(env),
            placement: Arc::clone(placement),
            claims: Arc::clone(claims),
            refusal_log: Mutex::default(),
        }
    }
}

#[cfg(test)]
mod tests;
