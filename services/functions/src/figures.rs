//! The service in numbers: the runtime's counters, and the backlogs of the queues that start
//! functions.
//!
//! Only the queues know their backlogs, and a status must not read a store. The server therefore
//! polls the queues now and then ([`QueueWatch::poll`]), and a status shows the last result.
//!
//! If a poll finds waiting events, this process takes them from then on. Their sender may have
//! died, and other processes learn of a new event queue in no other way. This needs no further poll
//! for idle functions.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Included, Unbounded},
    sync::Arc,
};

use parking_lot::Mutex;
use ports::{Result, queue::Backlog, runtime};

use crate::{events::context::Context, ids::registered_name};

/// The most queues in one poll. If there are more, the next polls continue with the others in turn.
const QUEUES_MAX: usize = 1000;

/// The service in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Deployed functions.
    pub deployed: u64,
    /// Events and messages that waited for a function or were with one, at the last poll.
    pub events_waiting: u64,
    /// Dead letters at the last poll.
    pub dead_letters: u64,
    /// The runtime's counters.
    pub runtime: runtime::Figures,
}

#[derive(Debug)]
pub(crate) struct QueueWatch {
    context: Arc<Context>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Clone, Default)]
struct Seen {
    /// By the queue's name at the provider.
    backlogs: BTreeMap<String, Backlog>,
    /// The next poll continues after this queue.
    last: String,
}

impl QueueWatch {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            seen: Mutex::default(),
        }
    }

    /// The figures now, with the backlogs of the last poll; returns at once.
    pub(crate) fn figures(&self) -> Figures {
        let seen = self.seen.lock();
        let backlogs = seen.backlogs.values();
        Figures {
            deployed: self.context.lookup.catalogue.functions().len() as u64,
            events_waiting: backlogs.clone().map(|backlog| backlog.messages).sum(),
            dead_letters: backlogs.map(|backlog| backlog.dead_letters).sum(),
            runtime: self.context.parts.runtime.figures(),
        }
    }

    /// Reads the backlogs, and has waiting events taken here. Errors: a queue's. The earlier
    /// results then stay, and the next poll continues after that queue.
    pub(crate) async fn poll(&self) -> Result<()> {
        let parts = &self.context.parts;
        let queues = self.queues();
        let last = {
            let mut seen = self.seen.lock();
            seen.backlogs.retain(|queue, _| queues.contains_key(queue));
            seen.last.clone()
        };
        let after = queues.range::<str, _>((Excluded(last.as_str()), Unbounded));
        let in_turn = after.chain(queues.range::<str, _>((Unbounded, Included(last.as_str()))));
        for (queue, events_of) in in_turn.take(QUEUES_MAX) {
            self.seen.lock().last.clone_from(queue);
            let backlog = match parts.queue_admin.backlog(queue).await {
                Ok(backlog) => backlog,
                // Nothing was ever sent, so there is no queue.
                Err(error) if error.kind() == ports::ErrorKind::Invalid => Backlog::default(),
                Err(error) => return Err(error),
            };
            if let Some(function) = events_of.as_ref().filter(|_| backlog.messages > 0) {
                parts.functions.take_events(function);
            }
            self.seen.lock().backlogs.insert(queue.clone(), backlog);
        }
        Ok(())
    }

    /// Every queue that starts a deployed function, by the provider's name. An event queue comes
    /// with the registered name of its function.
    fn queues(&self) -> BTreeMap<String, Option<String>> {
        let parts = &self.context.parts;
        let mut queues = BTreeMap::new();
        for deployed in self.context.lookup.catalogue.functions() {
            let function = registered_name(&deployed.function.name);
            queues.insert(parts.functions.event_queue(&function), Some(function));
            let own = deployed.table.queues();
            queues.extend(own.map(|trigger| ((parts.queue_name)(&trigger.queue), None)));
        }
        queues
    }
}
