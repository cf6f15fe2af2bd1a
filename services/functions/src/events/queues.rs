//! The queues of clients that start functions: their list, their first messages, and the removal of
//! those that wait.
//!
//! No provider lists its queues, so the list has the queues that deployed manifests name. A queue
//! whose function was removed still exists under its name.
//!
//! A purge is a consumer that acknowledges without work. It therefore never removes a message that
//! a function has at that moment, and keeps the order of groups for the others (Q1).

use ports::{ErrorKind, queue::Backlog};
use serde::Serialize;

use super::{context::Context, format};
use crate::error::{Error, Result};

/// The most queues in one page.
const QUEUES_MAX: usize = 100;
/// The most messages that are shown, each read whole.
const SHOWN_MAX: usize = 10;
/// The most bytes that are shown of a message.
const BODY_BYTES_MAX: usize = 64 << 10;
/// How long a message is hidden between its receipt and its removal. If the process dies in
/// between, it is delivered after this time.
const HIDDEN_MS: u64 = 10_000;

/// A queue that starts a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedQueue {
    /// Its name.
    pub queue: String,
    /// The function that it starts.
    pub function: String,
    /// The application of that function.
    pub application: String,
    /// Messages that wait or are with the function.
    pub messages: u64,
    /// Messages that were given up.
    pub dead_letters: u64,
}

/// A page of queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueuePage {
    /// The queues, by name.
    pub queues: Vec<ListedQueue>,
    /// The queue to continue after; none: there are no more.
    pub next: Option<String>,
}

/// A message that waits in a queue, or that a function has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitingMessage {
    /// Its group.
    pub group: String,
    /// How often it was delivered.
    pub attempts: u32,
    /// Why the last attempt failed; empty: none has.
    pub reason: String,
    /// Its body. A long one is cut, and one that is not UTF-8 is in hexadecimal.
    pub body: String,
    /// The bytes of the whole body.
    pub body_bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Queues<'service>(pub(crate) &'service Context);

impl Queues<'_> {
    /// As [`Service::queues`](crate::Service::queues).
    pub(crate) async fn page(&self, after: Option<&str>) -> Result<QueuePage> {
        let deployed = self.0.lookup.catalogue.functions();
        let named = deployed.iter().flat_map(|deployed| {
            let queues = deployed.table.queues();
            queues.map(|trigger| (trigger.queue.as_str(), &**deployed))
        });
        let is_after = |queue: &str| after.is_none_or(|after| queue > after);
        let mut named: Vec<_> = named.filter(|(queue, _)| is_after(queue)).collect();
        named.sort_by_key(|(queue, _)| *queue);
        let has_more = named.len() > QUEUES_MAX;
        named.truncate(QUEUES_MAX);
        let mut queues = Vec::new();
        for (queue, deployed) in named {
            let backlog = self.backlog(queue).await?.unwrap_or_default();
            queues.push(ListedQueue {
                queue: queue.to_owned(),
                function: deployed.function.name.clone(),
                application: deployed.application.clone(),
                messages: backlog.messages,
                dead_letters: backlog.dead_letters,
            });
        }
        let next = queues.last().map(|last| last.queue.clone());
        Ok(QueuePage {
            next: next.filter(|_| has_more),
            queues,
        })
    }

    /// As [`Service::waiting_messages`](crate::Service::waiting_messages).
    pub(crate) async fn first(&self, queue: &str) -> Result<Vec<WaitingMessage>> {
        let name = (self.0.parts.queue_name)(queue);
        let found = self.0.parts.queue_admin.waiting(&name, SHOWN_MAX).await;
        let found = found.map_err(|error| match error.kind() {
            ErrorKind::Invalid => Error::NoSuchQueue(queue.to_owned()),
            _ => error.into(),
        })?;
        let shown = found.into_iter().map(|message| {
            let body = format::text(&message.body);
            WaitingMessage {
                group: format::text(&message.group),
                attempts: message.attempts,
                reason: message.reason,
                body: body[..body.floor_char_boundary(BODY_BYTES_MAX)].to_owned(),
                body_bytes: message.body.len(),
            }
        });
        Ok(shown.collect())
    }

    /// As [`Service::purge_queue`](crate::Service::purge_queue).
    pub(crate) async fn purge(&self, queue: &str) -> Result<u64> {
        let backlog = self.backlog(queue).await?;
        let backlog = backlog.ok_or_else(|| Error::NoSuchQueue(queue.to_owned()))?;
        let (port, name) = (&self.0.parts.queue, (self.0.parts.queue_name)(queue));
        let most = port.limits().batch_messages_max;
        let (mut purged, mut point) = (0, None);
        // Messages that are sent meanwhile are not asked for.
        while purged < backlog.messages {
            let left = usize::try_from(backlog.messages - purged).unwrap_or(usize::MAX);
            let received = port.receive_hidden(&name, left.min(most), Some(HIDDEN_MS));
            let handles: Vec<_> = received
                .await?
                .into_iter()
                .map(|delivery| delivery.handle)
                .collect();
            // The others are with the function.
            if handles.is_empty() {
                break;
            }
            point = Some(port.acknowledge(&name, &handles).await?.point);
            purged += handles.len() as u64;
        }
        if let Some(point) = point {
            port.externalize(point).await?;
        }
        Ok(purged)
    }

    /// How much a queue holds; none: it does not exist.
    async fn backlog(&self, queue: &str) -> Result<Option<Backlog>> {
        let name = (self.0.parts.queue_name)(queue);
        match self.0.parts.queue_admin.backlog(&name).await {
            Ok(backlog) => Ok(Some(backlog)),
            Err(error) if error.kind() == ErrorKind::Invalid => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
