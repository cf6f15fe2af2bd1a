//! Runs and workflows' state as callers see them, once durable (W3).

mod response;
mod runs;
mod state;
mod view;

use std::sync::Arc;

use crate::{env::Env, placement::Placement, scheduler::Claims};

pub use view::{RunView, StepView};

pub(crate) use response::AwaitedStore;

use response::Responses;

/// Reads runs and workflows' state.
#[derive(Debug)]
pub(crate) struct Query {
    env: Arc<Env>,
    placement: Arc<Placement>,
    claims: Arc<Claims>,
    responses: Responses,
}

impl Query {
    pub(crate) fn new(env: &Arc<Env>, placement: &Arc<Placement>, claims: &Arc<Claims>) -> Self {
        Self {
            env: Arc::clone(env),
            placement: Arc::clone(placement),
            claims: Arc::clone(claims),
            responses: Responses::new(env, placement),
        }
    }

    pub(crate) fn responses(&self) -> &Responses {
        &self.responses
    }
}

#[cfg(test)]
mod tests;
