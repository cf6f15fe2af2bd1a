//! A batch of queue messages: runs it as one event, and notifies the `on_failure` function of a
//! message that has failed permanently.
//!
//! If a function has an `on_failure`, its queues let a permanently failing message block its group,
//! and deliver it alone. The handler removes the message once the failure notice is durable. No
//! other message of a batch is then taken for the failed one. Without `on_failure`, the queue keeps
//! the message as a dead letter itself.
//!
//! Invariants
//! - A message counts as done only once its failure notice is durable. After a death in between,
//!   the handler sends the notice again under the same request id, and the event queue drops the
//!   duplicate while it remembers that id.
//! - A message without attempts left does not run again: its last attempt may have ended the
//!   process.

use std::{slice, sync::Arc};

use bytes::Bytes;
use ports::{
    functions::{Failure, Permit},
    queue::{Delivery, OnFailure},
};
use sha2::{Digest as _, Sha256};

use super::{super::outgoing, Context, DeployedHandler, format};
use crate::ids::{digest_id, hexadecimal, notice_id};

/// How often a message is delivered to its function before it has failed permanently.
pub(crate) const ATTEMPTS_MAX: u32 = 16;

/// The reaction of a function's queues to a permanently failed message.
pub(crate) fn on_failure(notified: Option<&str>) -> OnFailure {
    if notified.is_some() {
        OnFailure::Block
    } else {
        OnFailure::DeadLetter
    }
}

/// Messages of one group, in order.
#[derive(Debug)]
pub(super) struct Batch {
    /// Their queue, by the application's name.
    pub(super) queue: String,
    pub(super) deliveries: Vec<Delivery>,
}

impl DeployedHandler {
    pub(super) async fn run_batch(
        &self,
        context: &Arc<Context>,
        permit: Permit,
        batch: &Batch,
    ) -> Result<Bytes, Failure> {
        let deliveries = &batch.deliveries;
        let Some(notified) = context.lookup.on_failure(&self.name) else {
            return self.run_messages(context, permit, batch).await;
        };
        let has_no_attempt_left = deliveries
            .first()
            .is_some_and(|head| head.failures >= ATTEMPTS_MAX);
        let ran = if has_no_attempt_left {
            Err(Failure::new(format!(
                "failed {ATTEMPTS_MAX} times; the last error is unknown"
            )))
        } else {
            self.run_messages(context, permit, batch).await
        };
        let Err(failure) = ran else { return ran };
        match deliveries.get(failure.completed..) {
            // With other messages after it, the notice must wait: those have not failed, but would
            // be returned as if they had. The queue delivers this message again, alone.
            Some([failed]) if failed.failures + 1 >= ATTEMPTS_MAX => {
                self.notify(context, &notified, (&batch.queue, failed), &failure)
                    .await?;
                Ok(Bytes::new())
            }
            _ => Err(failure),
        }
    }

    async fn run_messages(
        &self,
        context: &Arc<Context>,
        permit: Permit,
        Batch { queue, deliveries }: &Batch,
    ) -> Result<Bytes, Failure> {
        let payload = format::messages(queue, deliveries, context.parts.clock.now());
        let answer = self.run(context, permit, context.new_id(), payload).await?;
        let completed = format::completed(&answer, deliveries).map_err(|error| {
            let function = &self.name;
            tracing::warn!(%error, function, queue, "the function's result for a batch is not JSON; the whole batch is delivered again");
            Failure::new(format!("the result is not JSON, so the whole batch failed: {error}"))
        })?;
        if completed < deliveries.len() {
            let reason =
                "batchItemFailures names failed messages, or ids that are not in the batch";
            return Err(Failure::after(completed, reason));
        }
        Ok(answer)
    }

    /// Sends `notified` an event about `failure` of the message `failed`. Returns once that event
    /// is durable.
    ///
    /// Errors: the message is delivered again, or given up at once if the notice is longer than an
    /// event may be.
    async fn notify(
        &self,
        context: &Context,
        notified: &str,
        (queue, failed): (&str, &Delivery),
        failure: &Failure,
    ) -> Result<(), Failure> {
        let now = context.parts.clock.now();
        let id = message_id(queue, failed);
        let failed_event = format::Failed {
            function: &self.name,
            id: &id,
            payload: &format::messages(queue, slice::from_ref(failed), now),
            reason: &failure.reason,
        };
        let notice = format::failed(&failed_event, Some(ATTEMPTS_MAX), now);
        let bytes_max = context.parts.functions.limits().payload_bytes_max;
        if notice.len() > bytes_max {
            return Err(Failure::hopeless(
                failure.completed,
                format!(
                    "{notified:?} was not notified, because the notice exceeds {bytes_max} bytes; the last error was: {}",
                    failure.reason
                ),
            ));
        }
        let own_id = notice_id(notified, &self.name, &id);
        // The reason is part of this delivery's failure too.
        let sent = outgoing::send(&context.parts, notified, own_id, notice).await;
        sent.map_err(|error| {
            let function = &self.name;
            tracing::warn!(%error, function, notified, "the on_failure function could not be notified yet of a message that failed permanently");
            Failure::after(failure.completed, failure.reason.clone())
        })
    }
}

/// The id of a permanently failed message, equal at each delivery. It covers the body, because
/// positions are local to a queue, and a function may have several queues.
fn message_id(queue: &str, failed: &Delivery) -> String {
    let body = hexadecimal(&Sha256::digest(&failed.body));
    digest_id(&[
        queue.as_bytes(),
        body.as_bytes(),
        format::message_id(failed).as_bytes(),
    ])
}
