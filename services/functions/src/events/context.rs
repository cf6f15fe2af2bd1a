//! The state that event handlers share with the rest of the service: the ports, the lookup, the
//! timers and the stop gate.

use std::{future, sync::Arc};

use ports::runtime::{Function, Invocation, Ran, Refused};
use tokio::sync::watch;

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

    /// Runs an invocation, which a stop waits for. None: a stop has ended it before it had a
    /// result.
    pub(crate) async fn run(
        &self,
        function: &Arc<Function>,
        invocation: Invocation,
    ) -> Option<Result<Ran, Refused>> {
        let _at_work = self.stop.one_more();
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

/// How far the service is on its way to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    /// Invocations under way continue. No event is taken, and no failure is reported.
    Stopping,
    /// Nothing continues.
    Interrupted,
}

/// The stop of the service, and the invocations that it waits for.
#[derive(Debug)]
pub(crate) struct Stop {
    stage: watch::Sender<Stage>,
    /// The number of invocations under way.
    at_work: watch::Sender<usize>,
}

impl Default for Stop {
    fn default() -> Self {
        Self {
            stage: watch::Sender::new(Stage::Serving),
            at_work: watch::Sender::new(0),
        }
    }
}

/// An invocation under way, until this is dropped.
#[derive(Debug)]
struct AtWork<'of>(&'of Stop);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.at_work.send_modify(|count| *count -= 1);
    }
}

impl Stop {
    pub(crate) fn begin(&self) {
        self.reach(Stage::Stopping);
    }

    /// Ends every invocation under way.
    pub(crate) fn interrupt(&self) {
        self.reach(Stage::Interrupted);
    }

    fn reach(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let is_later = stage > *now;
            *now = stage.max(*now);
            is_later
        });
    }

    /// Returns at once, or never if the stop has begun.
    pub(crate) async fn unless_begun(&self) {
        if *self.stage.borrow() > Stage::Serving {
            future::pending::<()>().await;
        }
    }

    /// Waits until no invocation is under way.
    pub(crate) async fn idle(&self) {
        // No error: the sender lives as long as `self`.
        let _ = self.at_work.subscribe().wait_for(|count| *count == 0).await;
    }

    fn one_more(&self) -> AtWork<'_> {
        self.at_work.send_modify(|count| *count += 1);
        AtWork(self)
    }

    async fn interrupted(&self) {
        // No error: the sender lives as long as `self`.
        let interrupted = |stage: &Stage| *stage == Stage::Interrupted;
        let _ = self.stage.subscribe().wait_for(interrupted).await;
    }
}
