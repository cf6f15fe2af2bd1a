//! Receiving: the next group in line goes to a consumer until a deadline.

use std::time::Duration;

use bytes::Bytes;
use ports::{
    Incarnation, Result,
    queue::{Delivery, Handle, Sequence},
};

use super::{
    Queues, bump,
    group::{Group, Phase},
    message_records::body_of,
    settle::{FailureOutcome, Retry, fail},
    unknown,
};
use crate::store::Store;

const TIMED_OUT: &str = "the visibility timeout ran out";

/// The options of a receive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceiveOptions {
    pub(crate) messages_max: usize,
    /// The visibility timeout in milliseconds; none for the queue's own.
    pub(crate) hidden_ms: Option<u64>,
}

impl Queues {
    /// Delivers the messages at the head of the next group in line. A head whose next failure may
    /// be its last is delivered alone (Q5).
    pub(crate) fn receive(
        &mut self,
        store: &mut Store,
        name: &str,
        options: ReceiveOptions,
        now: Duration,
    ) -> Result<Vec<Delivery>> {
        self.expire(store, name, now)?;
        let queue = self.by_name.get_mut(name).ok_or_else(|| unknown(name))?;
        if options.messages_max == 0 {
            return Ok(Vec::new());
        }
        let Some(group_name) = queue.ready.pop_front() else {
            return Ok(Vec::new());
        };
        let group = queue
            .groups
            .get_mut(&group_name)
            .expect("a group in line is a group of the queue");
        // Before its last attempt a message is delivered alone, so that only a failing message is
        // given up.
        let last_attempt = queue.options.attempts_max.saturating_sub(1).max(1);
        let is_alone = group
            .messages
            .front()
            .is_some_and(|head| head.failures >= last_attempt);
        let count = if is_alone {
            1
        } else {
            options.messages_max.min(group.messages.len())
        };
        let deliveries = match deliveries(store, &group_name, group, count, self.incarnation) {
            Ok(deliveries) => deliveries,
            Err(error) => {
                queue.ready.push_back(group_name);
                return Err(error);
            }
        };
        group
            .messages
            .iter_mut()
            .take(count)
            .for_each(|message| message.deliveries += 1);
        let hidden = Duration::from_millis(
            options
                .hidden_ms
                .unwrap_or(queue.options.visibility_timeout_ms),
        );
        let deadline = (now + hidden, bump(&mut self.next_deadline));
        group.phase = Phase::InFlight { count, deadline };
        let is_next = queue
            .deadlines
            .first_key_value()
            .is_none_or(|(first, _)| deadline < *first);
        queue.deadlines.insert(deadline, group_name);
        if is_next {
            queue.notify.notify_waiters();
        }
        Ok(deliveries)
    }

    /// Extends the visibility timeout of the messages in flight to `timeout_ms` from now.
    pub(crate) fn extend(
        &mut self,
        name: &str,
        handle: &Handle,
        timeout_ms: u64,
        now: Duration,
    ) -> Result<()> {
        let queue = self.by_name.get_mut(name).ok_or_else(|| unknown(name))?;
        let Some(group) = queue.groups.get_mut(&handle.group) else {
            return Ok(());
        };
        if group.delivered(handle, self.incarnation).is_none() {
            return Ok(());
        }
        if let Phase::InFlight { deadline, .. } = &mut group.phase {
            queue.deadlines.remove(deadline);
            *deadline = (
                now + Duration::from_millis(timeout_ms),
                bump(&mut self.next_deadline),
            );
            queue.deadlines.insert(*deadline, handle.group.clone());
            queue.notify.notify_waiters();
        }
        Ok(())
    }

    /// Applies the deadlines that have passed.
    pub(crate) fn expire(&mut self, store: &mut Store, name: &str, now: Duration) -> Result<()> {
        let queue = self.by_name.get_mut(name).ok_or_else(|| unknown(name))?;
        while let Some(first) = queue.deadlines.first_entry() {
            if first.key().0 > now {
                break;
            }
            let group_name = first.remove();
            let group = queue
                .groups
                .get_mut(&group_name)
                .expect("a deadline is of a group of the queue");
            if let Phase::InFlight { .. } = group.phase {
                // The head is the best guess of the message that the consumer could not process.
                let failed = fail(
                    queue,
                    store,
                    &group_name,
                    0,
                    (TIMED_OUT, Retry::After { delay_ms: 0 }),
                );
                if matches!(
                    failed,
                    Ok(FailureOutcome::Recorded | FailureOutcome::DeadLettered)
                ) {
                    store.order();
                }
                queue.put_in_line(&group_name, now, &mut self.next_deadline);
                failed?;
            } else {
                queue.put_in_line(&group_name, now, &mut self.next_deadline);
            }
        }
        Ok(())
    }
}

/// The deliveries of the first `count` messages of a group.
fn deliveries(
    store: &mut Store,
    group_name: &Bytes,
    group: &Group,
    count: usize,
    incarnation: Incarnation,
) -> Result<Vec<Delivery>> {
    let deliver = |message| {
        Ok(Delivery {
            body: body_of(store, message)?,
            handle: Handle {
                group: group_name.clone(),
                sequence: Sequence(message.sequence),
                attempt: message.deliveries + 1,
                incarnation,
            },
            deduplication: message.id.clone(),
            failures: message.failures,
        })
    };
    group.messages.iter().take(count).map(deliver).collect()
}
