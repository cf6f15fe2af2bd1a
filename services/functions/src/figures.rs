//! The service in numbers: what the runtime counts, and what waits in the queues that start functions.
//!
//! What waits only the queues know, and a status is shown without asking a store: so somebody looks now and then
//! ([`Service::look_at_queues`]), and what was seen last is shown.
//!
//! An event that is seen to wait is taken here from then on, too. Whoever has sent it may have died since; and that its queue has come
//! to be no other process was told. So it costs no further look at each function that has nothing to do.

use std::collections::BTreeMap;

use ports::{Result, runtime};

use crate::service::{PREFIX, Service};

/// Queues in one look; of the others nothing is counted.
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

/// What the last look has seen.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    messages: u64,
    dead_letters: u64,
}

impl Service {
    /// The figures now, of queues those of the last look; returns at once.
    pub fn figures(&self) -> Figures {
        let inner = &self.inner;
        let Seen { messages, dead_letters } = *inner.seen.lock();
        Figures {
            deployed: inner.count() as u64,
            events_waiting: messages,
            dead_letters,
            runtime: inner.parts.runtime.figures(),
        }
    }

    /// Looks how much waits for deployed functions, and has events that do taken here. Errors: those of the queues; then what was seen
    /// before stays.
    pub async fn look_at_queues(&self) -> Result<()> {
        let mut seen = Seen::default();
        for (queue, events_of) in self.queues().into_iter().take(QUEUES_MAX) {
            match self.inner.parts.queue.backlog(&queue).await {
                Ok(backlog) => {
                    seen.messages += backlog.messages;
                    seen.dead_letters += backlog.dead_letters;
                    if let Some(function) = events_of.filter(|_| backlog.messages > 0) {
                        self.events().take_events(&function);
                    }
                }
                // Nothing was ever sent: there is no queue.
                Err(error) if error.kind() == ports::ErrorKind::Invalid => {}
                Err(error) => return Err(error),
            }
        }
        *self.inner.seen.lock() = seen;
        Ok(())
    }

    /// Every queue that starts a deployed function, by its name at the provider, with the function that it has the events of, if any.
    fn queues(&self) -> BTreeMap<String, Option<String>> {
        let parts = &self.inner.parts;
        let mut queues = BTreeMap::new();
        self.inner.for_each(|name, table| {
            let function = [PREFIX, name].concat();
            queues.insert(parts.functions.event_queue(&function), Some(function));
            queues.extend(table.queues().map(|trigger| ((parts.queue_name)(&trigger.queue), None)));
        });
        queues
    }
}
