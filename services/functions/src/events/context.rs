//! The state that event handlers share with the rest of the service: the ports, the lookup, the
//! timers and the stop.

use std::sync::Arc;

use ports::runtime::{Function, Invocation, Ran, Refused};

use super::timers::Timers;
use crate::{
    config::Parts,
    ids::{self, registered_name},
    lookup::Lookup,
    stop::Stop,
};

/// The state below the handlers. Each handler refers to it weakly, so that it ends with the
/// service.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) parts: Parts,
    pub(crate) lookup: Lookup,
    pub(crate) timers: Timers,
    pub(crate) stop: Stop,
}

impl Context {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            timers: Timers::new(parts.clone()),
            lookup: Lookup::default(),
            stop: Stop::default(),
            parts,
        }
    }

    pub(crate) fn new_id(&self) -> String {
        ids::new_id(&*self.parts.entropy)
    }

    /// Runs an invocation, which a stop waits for. None: a stop has ended it before it had a
    /// result.
    pub(crate) async fn run(
        &self,
        function: &Arc<Function>,
        invocation: Invocation,
    ) -> Option<Result<Ran, Refused>> {
        let _at_work = self.stop.advance();
        tokio::select! {
            biased;
            ran = self.parts.runtime.run(function, invocation) => Some(ran),
            // The runtime ends an instance whose invocation is dropped.
            () = self.stop.interrupted() => None,
        }
    }

    /// The provider's name of the queue with the events of the function `name`.
    pub(crate) fn event_queue(&self, name: &str) -> String {
        self.parts.functions.event_queue(&registered_name(name))
    }

    /// The application's name of the queue that is `at_provider` there. A queue that no longer
    /// starts `function` keeps the provider's name.
    pub(crate) fn own_queue_name(&self, function: &str, at_provider: String) -> String {
        let deployed = self.lookup.catalogue.function(function);
        let queues = deployed.iter().flat_map(|deployed| deployed.table.queues());
        let mut own = queues.map(|trigger| &trigger.queue);
        let own = own.find(|queue| (self.parts.queue_name)(queue) == at_provider);
        own.cloned().unwrap_or(at_provider)
    }
}
