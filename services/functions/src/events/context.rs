//! The state that event handlers share with the rest of the service: the ports, the lookup, the
//! timers and the stop gate.

use std::{
    future,
    sync::atomic::{AtomicBool, Ordering},
};

use super::timers::Timers;
use crate::{
    config::Parts,
    ids::{self, registered_name},
    lookup::Lookup,
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

/// Whether the service is stopping, which ends all instances.
#[derive(Debug, Default)]
pub(crate) struct Stop(AtomicBool);

impl Stop {
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns at once, or never if the stop has begun.
    pub(crate) async fn unless_begun(&self) {
        if self.0.load(Ordering::Acquire) {
            future::pending::<()>().await;
        }
    }
}
