//! What a timer of a deployed function gives: an event of that function, as if somebody had sent it one.
//!
//! So what holds for events holds for it: it is run again where it fails, and somebody is told or it is kept (A3); it waits for a free
//! instance (A8), and outlives a crash. A timer does not wait for its function, which may never keep up with it: while too many
//! events of the function wait, ticks are left out, so that there is an end to what they take.

use parking_lot::Mutex;
use ports::{ErrorKind, Outage, Result};

use crate::{
    event,
    service::{Inner, PREFIX},
};

/// While so many events of a function wait, or are with it, its timer's ticks are left out.
pub(crate) const EVENTS_WAITING_MAX: u64 = 100;

/// Whether ticks of a function become events.
#[derive(Debug, Default)]
pub(crate) struct Ticks(Mutex<Outage>);

impl Ticks {
    /// The timer of `function` has gone off.
    pub(crate) async fn tick(&self, service: &Inner, function: &str) {
        let left_out = match send(service, function).await {
            Ok(None) => None,
            Ok(Some(waiting)) => Some(format!("{waiting} events of it wait")),
            Err(error) => Some(error.to_string()),
        };
        let now = service.parts.clock.monotonic();
        match left_out {
            None => {
                if let Some(lasted) = self.0.lock().ended(now) {
                    tracing::info!(function, ?lasted, "ticks of its timer are events again");
                }
            }
            Some(reason) => {
                if let Some(lasts) = self.0.lock().failed(now, &reason) {
                    tracing::warn!(function, reason, ?lasts, "ticks of its timer are left out");
                }
            }
        }
    }
}

/// Sends it an event, and returns once that is durable; or how many of them wait, which are too many for another.
async fn send(service: &Inner, function: &str) -> Result<Option<u64>> {
    let parts = &service.parts;
    let name = [PREFIX, function].concat();
    let waiting = match parts.queue.backlog(&parts.functions.event_queue(&name)).await {
        Ok(backlog) => backlog.messages,
        // Nothing was ever sent: there is no queue.
        Err(error) if error.kind() == ErrorKind::Invalid => 0,
        Err(error) => return Err(error),
    };
    if waiting >= EVENTS_WAITING_MAX {
        return Ok(Some(waiting));
    }
    let id = service.new_id();
    let payload = event::scheduled(function, &id, parts.clock.now());
    let receipt = parts.functions.send(&name, Some(id.into()), payload).await?;
    parts.queue.externalize(receipt.point).await?;
    Ok(None)
}
