//! The service in numbers: what the runtime counts, and what waits in the queues that start functions.
//!
//! What waits only the queues know, and a status is shown without asking a store: so somebody looks now and then
//! ([`Service::look_at_queues`]), and what was seen last is shown.
//!
//! An event that is seen to wait is taken here from then on, too. Whoever has sent it may have died since; and that its queue has come
//! to be no other process was told. So it costs no further look at each function that has nothing to do.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Included, Unbounded},
};

use ports::{Result, queue::Backlog, runtime};

use crate::service::{PREFIX, Service};

/// Queues in one look; if there are more, the next looks are at those behind, in turn.
const QUEUES_MAX: usize = 1000;

/// The service in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Functions that are deployed.
    pub deployed: u64,
    /// Events and messages that wait for a function or are with one, at the last look.
    pub events_waiting: u64,
    /// Those that were given up, at the last look.
    pub dead_letters: u64,
    /// What runs, and has run since the start.
    pub runtime: runtime::Figures,
}

/// What the last looks have seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// By the queue's name at the provider.
    backlogs: BTreeMap<String, Backlog>,
    /// The next look begins behind it.
    last: String,
}

impl Seen {
    fn count(&self, of: impl Fn(&Backlog) -> u64) -> u64 {
        self.backlogs.values().map(of).sum()
    }
}

impl Service {
    /// The figures now, of queues those of the last look; returns at once.
    pub fn figures(&self) -> Figures {
        let inner = &self.inner;
        let seen = inner.seen.lock();
        Figures {
            deployed: inner.count() as u64,
            events_waiting: seen.count(|backlog| backlog.messages),
            dead_letters: seen.count(|backlog| backlog.dead_letters),
            runtime: inner.parts.runtime.figures(),
        }
    }

    /// Looks how much waits for deployed functions, and has events that do taken here. Errors: those of the queues; then what was seen
    /// before stays, and the next look begins behind it.
    pub async fn look_at_queues(&self) -> Result<()> {
        let queues = self.queues();
        let last = {
            let mut seen = self.inner.seen.lock();
            seen.backlogs.retain(|queue, _| queues.contains_key(queue));
            seen.last.clone()
        };
        let behind = queues.range::<str, _>((Excluded(last.as_str()), Unbounded));
        let in_turn = behind.chain(queues.range::<str, _>((Unbounded, Included(last.as_str()))));
        for (queue, events_of) in in_turn.take(QUEUES_MAX) {
            self.inner.seen.lock().last.clone_from(queue);
            let backlog = match self.inner.parts.queue_admin.backlog(queue).await {
                Ok(backlog) => backlog,
                // Nothing was ever sent: there is no queue.
                Err(error) if error.kind() == ports::ErrorKind::Invalid => Backlog::default(),
                Err(error) => return Err(error),
            };
            if let Some(function) = events_of.as_ref().filter(|_| backlog.messages > 0) {
                self.events().take_events(function);
            }
            self.inner
                .seen
                .lock()
                .backlogs
                .insert(queue.clone(), backlog);
        }
        Ok(())
    }

    /// Every queue that starts a deployed function, by its name at the provider, with the function that it has the events of, if any.
    fn queues(&self) -> BTreeMap<String, Option<String>> {
        let parts = &self.inner.parts;
        let mut queues = BTreeMap::new();
        self.inner.for_each(|name, table| {
            let function = [PREFIX, name].concat();
            queues.insert(parts.functions.event_queue(&function), Some(function));
            queues.extend(
                table
                    .queues()
                    .map(|trigger| ((parts.queue_name)(&trigger.queue), None)),
            );
        });
        queues
    }
}
