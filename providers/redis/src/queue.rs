//! The queue port: each queue is a few keys in one slot, and every call is one script.
//!
//! Redis holds the order within each group, the present deliveries and the failures. Consumers in
//! any number of processes therefore compete safely; `servers/scripts/queue.lua` holds the rules.
//! Time is the server's. No queue is transient here: messages are as safe as all other data.
//!
//! A delivery's visibility timeout begins when the server runs the script. The file or the
//! replicas, and the consumer, receive the change later. The server therefore hides the message for
//! [`DELIVERY_MS_MAX`] longer: a consumer that finishes within the timeout by its own clock is not
//! overtaken (Q3).
//!
//! Sequences follow the server's clock in microseconds. The number of a message that was lost with
//! an unsynced tail is not reused, so an old handle cannot acknowledge another message (Q6).

use std::{fmt::Display, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    DurabilityPoint, Error, Incarnation, Queue, QueueAdmin, Receipt, Result,
    queue::{
        Backlog, DeadLetter, Delivery, Handle, LetterId, Message, OnFailure, QueueLimits,
        QueueOptions, Sequence,
    },
};
use redis::Value;

use crate::{
    error::{Effect, Failure},
    servers::{reply, scripts::Script},
    store::Store,
};

/// The longest name of a queue.
const NAME_BYTES_MAX: usize = 512;

/// How long a delivery may take from the script to the consumer without shortening the consumer's
/// timeout.
const DELIVERY_MS_MAX: u64 = 100;

/// A batch ends early once it holds this many bytes.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// The most blocked groups in one result.
const ALARMS_MAX: usize = 1000;

/// The kinds of a queue's keys, in the order in which `servers/scripts/queue.lua` takes them.
const KINDS: [u8; 9] = *b"opmtiwxdk";

#[async_trait]
impl Queue for Store {
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        if queue.is_empty() || queue.len() > NAME_BYTES_MAX {
            return Err(Error::invalid(format!(
                "create a queue whose name has {} bytes",
                queue.len()
            )));
        }
        if options.attempts_max == 0 {
            return Err(Error::invalid(format!(
                "create queue {queue:?} that delivers nothing"
            )));
        }
        let has_dead_letters = options.on_failure == OnFailure::DeadLetter;
        let arguments = [
            microseconds(options.visibility_timeout_ms),
            decimal(options.attempts_max),
            decimal(u8::from(has_dead_letters)),
            decimal(self.queue_limits.dead_letters_max),
        ];
        self.change(queue, Script::QueueCreate, &arguments).await
    }

    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        self.queue_limits.check(queue, &messages)?;
        let mut arguments = vec![microseconds(self.queue_limits.deduplication_window_ms)];
        for Message {
            group,
            deduplication,
            body,
        } in messages
        {
            let has_id = decimal(u8::from(deduplication.is_some()));
            arguments.extend([group, has_id, deduplication.unwrap_or_default(), body]);
        }
        self.change(queue, Script::QueueSend, &arguments).await
    }

    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        let messages_max = messages_max.min(self.queue_limits.batch_messages_max);
        let hidden = hidden_ms.map(microseconds).unwrap_or_default();
        let arguments = [
            decimal(messages_max),
            decimal(BATCH_BYTES_MAX),
            microseconds(DELIVERY_MS_MAX),
            hidden,
        ];
        let (point, batch) = self
            .run_on_queue(queue, Script::QueueReceive, &arguments, Effect::Changes)
            .await?;
        deliveries(batch, point.incarnation)
            .map_err(failed(Effect::Changes, &format!("receive from {queue:?}")))
    }

    async fn ready(&self, queue: &str) -> Result<()> {
        let notify = self
            .wake_ups
            .of(queue, &self.servers, &self.redis_keys.channel());
        loop {
            let woken = notify.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            let (_, soonest) = self
                .run_on_queue(queue, Script::QueueOutlook, &[], Effect::Reads)
                .await?;
            let soonest = match soonest {
                Value::Int(microseconds) if microseconds >= 0 => {
                    Duration::from_micros(microseconds as u64)
                }
                _ => Duration::MAX,
            };
            if soonest.is_zero() {
                return Ok(());
            }
            // A wake-up or a timeout ended the wait; the next poll decides.
            drop(tokio::time::timeout(soonest.min(self.wake_ups.poll_interval()), woken).await);
        }
    }

    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        let arguments: Vec<Bytes> = handles.iter().flat_map(handle_arguments).collect();
        self.change(queue, Script::QueueAcknowledge, &arguments)
            .await
    }

    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        let mut arguments = handle_arguments(handle).to_vec();
        arguments.extend([
            microseconds(delay_ms),
            Bytes::copy_from_slice(reason.as_bytes()),
        ]);
        self.change(queue, Script::QueueRelease, &arguments).await
    }

    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        let mut arguments = handle_arguments(handle).to_vec();
        arguments.push(Bytes::copy_from_slice(reason.as_bytes()));
        self.change(queue, Script::QueueGiveUp, &arguments).await
    }

    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()> {
        let mut arguments = handle_arguments(handle).to_vec();
        arguments.push(microseconds(timeout_ms));
        self.change(queue, Script::QueueExtend, &arguments)
            .await
            .map(drop)
    }

    fn limits(&self) -> &QueueLimits {
        &self.queue_limits
    }
}

#[async_trait]
impl QueueAdmin for Store {
    async fn dead_letters(
        &self,
        queue: &str,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        let mut arguments = vec![decimal(letters_max.min(i32::MAX as usize))];
        arguments.extend(
            after
                .into_iter()
                .flat_map(|after| [decimal(number_of(after)), sequence_of(after)]),
        );
        let (_, found) = self
            .run_on_queue(queue, Script::QueueDead, &arguments, Effect::Reads)
            .await?;
        letters(found).map_err(failed(
            Effect::Reads,
            &format!("list the dead letters of {queue:?}"),
        ))
    }

    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.run_on_letters(queue, Script::QueueRedrive, letters)
            .await
    }

    async fn purge(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.run_on_letters(queue, Script::QueuePurge, letters)
            .await
    }

    async fn blocked(&self, queue: &str) -> Result<Vec<DeadLetter>> {
        let arguments = [decimal(ALARMS_MAX)];
        let (_, found) = self
            .run_on_queue(queue, Script::QueueBlocked, &arguments, Effect::Reads)
            .await?;
        letters(found).map_err(failed(
            Effect::Reads,
            &format!("list the blocked groups of {queue:?}"),
        ))
    }

    async fn waiting(&self, queue: &str, messages_max: usize) -> Result<Vec<DeadLetter>> {
        let arguments = [decimal(messages_max.min(i32::MAX as usize))];
        let (_, found) = self
            .run_on_queue(queue, Script::QueueWaiting, &arguments, Effect::Reads)
            .await?;
        letters(found).map_err(failed(
            Effect::Reads,
            &format!("list the messages of {queue:?}"),
        ))
    }

    async fn backlog(&self, queue: &str) -> Result<Backlog> {
        let (_, found) = self
            .run_on_queue(queue, Script::QueueBacklog, &[], Effect::Reads)
            .await?;
        let backlog = || {
            let [messages, dead_letters] = parts(found)?;
            Ok(Backlog {
                messages: reply::number(&messages)?,
                dead_letters: reply::number(&dead_letters)?,
            })
        };
        backlog().map_err(failed(
            Effect::Reads,
            &format!("count the messages of {queue:?}"),
        ))
    }
}

impl Store {
    /// Runs a script on these dead letters of `queue`.
    async fn run_on_letters(
        &self,
        queue: &str,
        script: Script,
        letters: &[LetterId],
    ) -> Result<Receipt> {
        self.queue_limits.check_count(queue, letters.len())?;
        let arguments: Vec<_> = letters.iter().copied().map(sequence_of).collect();
        self.change(queue, script, &arguments).await
    }

    /// Runs a script that changes `queue`.
    async fn change(&self, queue: &str, script: Script, arguments: &[Bytes]) -> Result<Receipt> {
        let (point, _) = self
            .run_on_queue(queue, script, arguments, Effect::Changes)
            .await?;
        Ok(Receipt { point })
    }

    /// Runs a script on `queue`.
    async fn run_on_queue(
        &self,
        queue: &str,
        script: Script,
        arguments: &[Bytes],
        effect: Effect,
    ) -> Result<(DurabilityPoint, Value)> {
        let keys = KINDS.map(|kind| self.redis_keys.queue(queue, kind));
        let mut all = vec![
            Bytes::from(self.redis_keys.channel()),
            Bytes::copy_from_slice(queue.as_bytes()),
        ];
        all.extend_from_slice(arguments);
        let attempted = format!("{script:?} on {queue:?}");
        let ran = self.servers.run(script, &keys, &all, effect).await;
        let (point, rest) = ran.map_err(failed(effect, &attempted))?;
        Ok((point, rest.into_iter().next().unwrap_or(Value::Nil)))
    }
}

fn failed(effect: Effect, attempted: &str) -> impl FnOnce(Failure) -> Error {
    move |failure| failure.into_error(effect, attempted)
}

fn decimal(number: impl Display) -> Bytes {
    Bytes::from(number.to_string())
}

/// Milliseconds in the unit of the scripts. At most a century, which a double still holds exactly.
fn microseconds(milliseconds: u64) -> Bytes {
    const CENTURY_MS: u64 = 100 * 365 * 24 * 60 * 60 * 1000;
    decimal(milliseconds.min(CENTURY_MS) * 1000)
}

/// A dead letter's id: its number among the dead letters of its queue, which orders them, then its
/// unique sequence.
fn letter_id(number: u64, sequence: u64) -> LetterId {
    LetterId(u128::from(number) << u64::BITS | u128::from(sequence))
}

fn number_of(letter: LetterId) -> u128 {
    letter.0 >> u64::BITS
}

fn sequence_of(letter: LetterId) -> Bytes {
    Bytes::from(format!("{:016}", letter.0 as u64))
}

fn handle_arguments(handle: &Handle) -> [Bytes; 3] {
    [
        handle.group.clone(),
        Bytes::from(format!("{:016}", handle.sequence.0)),
        decimal(handle.attempt),
    ]
}

fn deliveries(batch: Value, incarnation: Incarnation) -> Result<Vec<Delivery>, Failure> {
    let delivery = |value| {
        let [group, sequence, attempt, failures, body, id] = parts(value)?;
        let (attempt, failures) = (
            reply::number(&attempt)? as u32,
            reply::number(&failures)? as u32,
        );
        let deduplication = optional(id)?;
        let (group, sequence) = (reply::bytes(group)?, Sequence(reply::number(&sequence)?));
        let handle = Handle {
            group,
            sequence,
            attempt,
            incarnation,
        };
        Ok(Delivery {
            handle,
            deduplication,
            failures,
            body: reply::bytes(body)?,
        })
    };
    reply::array(batch)?.into_iter().map(delivery).collect()
}

fn letters(found: Value) -> Result<Vec<DeadLetter>, Failure> {
    let letter = |value| {
        let [group, sequence, number, body, attempts, reason, id] = parts(value)?;
        let sequence = reply::number(&sequence)?;
        Ok(DeadLetter {
            id: letter_id(reply::number(&number)?, sequence),
            group: reply::bytes(group)?,
            sequence: Sequence(sequence),
            deduplication: optional(id)?,
            body: reply::bytes(body)?,
            attempts: reply::number(&attempts)? as u32,
            reason: String::from_utf8_lossy(&reply::bytes(reason)?).into_owned(),
        })
    };
    reply::array(found)?.into_iter().map(letter).collect()
}

fn optional(value: Value) -> Result<Option<Bytes>, Failure> {
    match value {
        Value::Nil => Ok(None),
        value => reply::bytes(value).map(Some),
    }
}

fn parts<const COUNT: usize>(value: Value) -> Result<[Value; COUNT], Failure> {
    let parts = reply::array(value)?;
    parts.try_into().map_err(|parts: Vec<Value>| {
        Failure::UnexpectedReply(format!("{} parts instead of {COUNT}", parts.len()))
    })
}
