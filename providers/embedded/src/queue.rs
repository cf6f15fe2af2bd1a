//! The queue port on the engine: limits, the lock and waiting.
//!
//! As with items, a call that never waits counts against its task's budget before it begins. A
//! consumer that receives and settles messages in a loop therefore lets other tasks run.

use std::time::Duration;

use async_trait::async_trait;
use ports::{
    Error, Queue, QueueAdmin, Receipt, Result,
    queue::{
        Backlog, DEDUPLICATION_BYTES_MAX, DeadLetter, Delivery, GROUP_BYTES_MAX, Handle, LetterId,
        Message, QueueLimits, QueueOptions, Sequence,
    },
};
use tokio::task::coop::consume_budget;

use crate::engine::Engine;
use crate::queues::{ReceiveOptions, Retry, body_of};

/// The longest name of a queue.
const NAME_BYTES_MAX: usize = 512;

impl Engine {
    fn change_queues(
        &self,
        change: impl FnOnce(&mut crate::engine::State, Duration) -> Result<()>,
    ) -> Result<Receipt> {
        let now = self.now();
        let mut state = self.serving()?;
        change(&mut state, now)?;
        Ok(Receipt {
            point: state.store.point(),
        })
    }

    fn check_letters(&self, queue: &str, letters: &[LetterId]) -> Result<()> {
        let (count, limit) = (letters.len(), self.config.queue_limits.batch_messages_max);
        if count <= limit {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "settle {count} dead letters of {queue:?}, where {limit} is the limit"
        )))
    }
}

#[async_trait]
impl Queue for Engine {
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        consume_budget().await;
        if queue.is_empty() || queue.len() > NAME_BYTES_MAX {
            return Err(Error::invalid(format!(
                "create a queue whose name has {} bytes",
                queue.len()
            )));
        }
        if options.attempts_max == 0 {
            return Err(Error::invalid(format!(
                "create queue {queue:?} with no attempts"
            )));
        }
        self.change_queues(|state, _| state.queues.create(&mut state.store, queue, options))
    }

    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        consume_budget().await;
        check_messages(queue, &messages, &self.config.queue_limits)?;
        let window = self.config.queue_limits.deduplication_window_ms;
        self.change_queues(|state, _| state.queues.send(&mut state.store, queue, messages, window))
    }

    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        consume_budget().await;
        let mut state = self.serving()?;
        let state = &mut *state;
        let options = ReceiveOptions {
            messages_max: messages_max.min(self.config.queue_limits.batch_messages_max),
            hidden_ms,
        };
        state
            .queues
            .receive(&mut state.store, queue, options, self.now())
    }

    async fn ready(&self, queue: &str) -> Result<()> {
        consume_budget().await;
        loop {
            let (notified, next) = {
                let now = self.now();
                let mut state = self.serving()?;
                let state = &mut *state;
                state.queues.expire(&mut state.store, queue, now)?;
                let (in_line, next, notify) = state.queues.outlook(queue)?;
                if in_line {
                    return Ok(());
                }
                // The notification is created under the lock, so a later change wakes this caller.
                (notify.notified_owned(), next)
            };
            match next {
                None => notified.await,
                Some(deadline) => {
                    let _ = tokio::time::timeout_at(self.instant(deadline), notified).await;
                }
            }
        }
    }

    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        consume_budget().await;
        self.change_queues(|state, now| {
            state
                .queues
                .acknowledge(&mut state.store, queue, handles, now)
        })
    }

    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        consume_budget().await;
        self.change_queues(|state, now| {
            state.queues.release(
                &mut state.store,
                queue,
                handle,
                Retry::After { delay_ms },
                reason,
                now,
            )
        })
    }

    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        consume_budget().await;
        self.change_queues(|state, now| {
            state
                .queues
                .release(&mut state.store, queue, handle, Retry::Never, reason, now)
        })
    }

    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()> {
        consume_budget().await;
        let now = self.now();
        self.serving()?
            .queues
            .extend(queue, handle, timeout_ms, now)
    }

    fn limits(&self) -> &QueueLimits {
        &self.config.queue_limits
    }
}

#[async_trait]
impl QueueAdmin for Engine {
    async fn dead_letters(
        &self,
        queue: &str,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        consume_budget().await;
        let now = self.now();
        let mut state = self.serving()?;
        let state = &mut *state;
        state.queues.expire(&mut state.store, queue, now)?;
        state
            .queues
            .dead_letters(&mut state.store, queue, after, letters_max)
    }

    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        consume_budget().await;
        self.check_letters(queue, letters)?;
        self.change_queues(|state, _| state.queues.redrive(&mut state.store, queue, letters))
    }

    async fn purge(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        consume_budget().await;
        self.check_letters(queue, letters)?;
        self.change_queues(|state, _| state.queues.purge(&mut state.store, queue, letters))
    }

    async fn blocked(&self, queue: &str) -> Result<Vec<DeadLetter>> {
        consume_budget().await;
        let now = self.now();
        let mut state = self.serving()?;
        let state = &mut *state;
        state.queues.expire(&mut state.store, queue, now)?;
        let mut blocked = Vec::new();
        for (name, head) in state.queues.get(queue)?.blocked() {
            blocked.push(DeadLetter {
                id: LetterId(u128::from(head.sequence)),
                group: name.clone(),
                sequence: Sequence(head.sequence),
                deduplication: head.id.clone(),
                body: body_of(&mut state.store, head)?,
                attempts: head.deliveries,
                reason: head.reason.as_deref().unwrap_or_default().to_owned(),
            });
        }
        blocked.sort_unstable_by_key(|head| head.sequence);
        Ok(blocked)
    }

    async fn backlog(&self, queue: &str) -> Result<Backlog> {
        consume_budget().await;
        let now = self.now();
        let mut state = self.serving()?;
        let state = &mut *state;
        state.queues.expire(&mut state.store, queue, now)?;
        Ok(state.queues.get(queue)?.backlog())
    }
}

fn check_messages(queue: &str, messages: &[Message], limits: &QueueLimits) -> Result<()> {
    if messages.len() > limits.batch_messages_max {
        let (count, limit) = (messages.len(), limits.batch_messages_max);
        return Err(Error::invalid(format!(
            "send {count} messages to {queue:?}, where {limit} is the limit"
        )));
    }
    for message in messages {
        let too_long = message.body.len() > limits.message_bytes_max
            || message.group.len() > GROUP_BYTES_MAX
            || message
                .deduplication
                .as_ref()
                .is_some_and(|id| id.len() > DEDUPLICATION_BYTES_MAX);
        if too_long {
            let bytes = message.body.len();
            return Err(Error::invalid(format!(
                "send a message of {bytes} bytes to {queue:?}: a limit is exceeded"
            )));
        }
    }
    Ok(())
}
