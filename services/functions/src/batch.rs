//! A queue's batch: run as one event, and told of where a message of it has failed for good.
//!
//! A queue that starts a function with an `on_failure` lets such a message block its group, and gives it alone: so it is ours to
//! take it out, once its failure is told, and none is taken for another of its batch. Without one the queue keeps it as a dead
//! letter by itself.
//!
//! Invariants
//! - A message counts as done only once the event that tells of it is durable. A death in between tells of it again, under the same
//!   request id, which the event queue takes for the same event while it remembers that.
//! - A message that has no attempt left is not run: its last attempt may be what took the process with it.

use std::{slice, sync::Arc};

use bytes::Bytes;
use ports::{
    functions::{Failure, Room},
    queue::{Delivery, OnFailure},
};
use sha2::{Digest as _, Sha256};

use crate::{
    event,
    handler::Deployed,
    service::{Inner, PREFIX, digest_id, told_id},
    tries,
};

/// How often a message is given to its function before it has failed for good.
pub(crate) const ATTEMPTS_MAX: u32 = 16;

/// What the queues of a function do with a message that has failed for good.
pub(crate) fn on_failure(told: Option<&str>) -> OnFailure {
    if told.is_some() {
        OnFailure::Block
    } else {
        OnFailure::DeadLetter
    }
}

/// Messages of one group, in order.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The queue that they are from, as its application calls it.
    pub(crate) queue: String,
    pub(crate) deliveries: Vec<Delivery>,
}

impl Deployed {
    pub(crate) async fn run_batch(
        &self,
        service: &Arc<Inner>,
        room: Room,
        batch: &Batch,
    ) -> Result<Bytes, Failure> {
        let deliveries = &batch.deliveries;
        let Some(told) = service.told_of(&self.name) else {
            return self.run_messages(service, room, batch).await;
        };
        let has_no_attempt_left = deliveries
            .first()
            .is_some_and(|head| head.failures >= ATTEMPTS_MAX);
        let ran = if has_no_attempt_left {
            Err(Failure::new(format!(
                "failed {ATTEMPTS_MAX} times; what it said last is not known"
            )))
        } else {
            self.run_messages(service, room, batch).await
        };
        let Err(failure) = ran else { return ran };
        match deliveries.get(failure.completed..) {
            // Where others stand behind it nobody is told yet: they have not failed, and would be given back as if they had. It comes
            // again, alone.
            Some([failed]) if failed.failures + 1 >= ATTEMPTS_MAX => {
                self.tell(service, &told, (&batch.queue, failed), &failure)
                    .await?;
                Ok(Bytes::new())
            }
            _ => Err(failure),
        }
    }

    async fn run_messages(
        &self,
        service: &Arc<Inner>,
        room: Room,
        Batch { queue, deliveries }: &Batch,
    ) -> Result<Bytes, Failure> {
        let payload = event::messages(queue, deliveries, service.parts.clock.now());
        let answer = self.run(service, room, service.new_id(), payload).await?;
        let completed = event::completed(&answer, deliveries).map_err(|error| {
            let function = &self.name;
            tracing::warn!(%error, function, queue, "it answered a batch with what is no JSON: all of it is delivered again");
            Failure::new(format!("what it answered is no JSON, so that all of its batch failed: {error}"))
        })?;
        if completed < deliveries.len() {
            let reason =
                "its batchItemFailures has messages that failed, or what names none of its batch";
            return Err(Failure::after(completed, reason));
        }
        Ok(answer)
    }

    /// Sends `told` an event that says how `failed` did, and returns once that is durable.
    ///
    /// Errors: what becomes of the message otherwise. It comes again, unless what there is to tell is longer than an event may be.
    async fn tell(
        &self,
        service: &Inner,
        told: &str,
        (queue, failed): (&str, &Delivery),
        failure: &Failure,
    ) -> Result<(), Failure> {
        let now = service.parts.clock.now();
        let id = message_id(queue, failed);
        let record = event::failed(
            &event::Failed {
                function: &self.name,
                id: &id,
                payload: &event::messages(queue, slice::from_ref(failed), now),
                reason: &failure.reason,
                attempts: Some(ATTEMPTS_MAX),
            },
            now,
        );
        let bytes_max = service.parts.functions.limits().payload_bytes_max;
        if record.len() > bytes_max {
            return Err(Failure::hopeless(
                failure.completed,
                format!(
                    "{told:?} is not told, which takes more than {bytes_max} bytes; it failed last with: {}",
                    failure.reason
                ),
            ));
        }
        let own_id = told_id(told, &self.name, &id);
        // What the function said last goes with this delivery.
        let sent = send(service, told, own_id, record).await;
        sent.map_err(|error| {
            let function = &self.name;
            tracing::warn!(%error, function, told, "a function could not be told yet of a message that failed for good");
            Failure::after(failure.completed, failure.reason.clone())
        })
    }
}

/// Has `function` run for an event of ours; returns once that is durable.
pub(crate) async fn send(
    service: &Inner,
    function: &str,
    id: String,
    payload: Bytes,
) -> ports::Result<()> {
    let (function, id) = ([PREFIX, function].concat(), Bytes::from(id));
    let (parts, function, id, payload) = (&service.parts, &function, &id, &payload);
    let sent = tries::several(&*parts.clock, || async move {
        let receipt = parts
            .functions
            .send(function, Some(id.clone()), payload.clone())
            .await?;
        // Its queue need not share the order of one whose message is acknowledged next.
        parts.queue.externalize(receipt.point).await
    });
    sent.await
}

/// What a message is called that failed for good, at each delivery. Its body is in it since places of messages are a queue's own, and
/// a function may have several queues.
fn message_id(queue: &str, failed: &Delivery) -> String {
    let body = event::hexadecimal(&Sha256::digest(&failed.body));
    digest_id(&[
        queue.as_bytes(),
        body.as_bytes(),
        event::message_id(failed).as_bytes(),
    ])
}
