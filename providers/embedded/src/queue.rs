//! The queue port on the engine: limits, the lock and waiting.
//!
//! As with items, a call that never waits counts against its task's budget before it begins. A
//! consumer that receives and settles messages in a loop therefore lets other tasks run.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ports::{
    Error, Queue, QueueAdmin, Receipt, Result,
    queue::{Backlog, DeadLetter, Delivery, Handle, LetterId, Message, QueueLimits, QueueOptions},
};
use tokio::task::coop::consume_budget;

use crate::{
    engine::{Engine, State},
    queues::{QueueState, body_of},
    store::Store,
};

/// The longest name of a queue.
const NAME_BYTES_MAX: usize = 512;

impl Engine {
    fn change_queues(
        &self,
        change: impl FnOnce(&mut State, Duration) -> Result<()>,
    ) -> Result<Receipt> {
        let now = self.now();
        let mut state = self.serving()?;
        change(&mut state, now)?;
        Ok(state.store.receipt())
    }

    /// Calls `on` with a queue to which the deadlines so far are applied.
    fn on_queue<T>(
        &self,
        name: &str,
        on: impl FnOnce(&mut QueueState, &mut Store, Duration) -> Result<T>,
    ) -> Result<T> {
        let now = self.now();
        let mut state = self.serving()?;
        let State { queues, store, .. } = &mut *state;
        let letters_max = self.parts.config.queue_limits.dead_letters_max as u64;
        let queue = queues.get(name)?;
        queue.expire(store, letters_max, now)?;
        on(queue, store, now)
    }

    fn release_as(
        &self,
        queue: &str,
        handle: &Handle,
        delay: Option<Duration>,
        reason: &str,
    ) -> Result<Receipt> {
        self.change_queues(|state, now| {
            state
                .queues
                .release(&mut state.store, queue, handle, delay, reason, now)
        })
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
        let limits = &self.parts.config.queue_limits;
        limits.check(queue, &messages)?;
        let window = limits.deduplication_window_ms;
        self.change_queues(|state, _| state.queues.send(&mut state.store, queue, messages, window))
    }

    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        consume_budget().await;
        let messages_max = messages_max.min(self.parts.config.queue_limits.batch_messages_max);
        self.on_queue(queue, |queue, store, now| {
            queue.receive(store, messages_max, hidden_ms, now)
        })
    }

    async fn ready(&self, queue: &str) -> Result<()> {
        consume_budget().await;
        loop {
            // The notification is created under the lock, so a later change wakes this caller.
            let waiting = self.on_queue(queue, |queue, _, _| {
                let notified = Arc::clone(&queue.notify).notified_owned();
                let groups = &queue.groups;
                Ok((!groups.is_ready()).then(|| (notified, groups.next_deadline())))
            })?;
            match waiting {
                None => return Ok(()),
                Some((notified, None)) => notified.await,
                Some((notified, Some(deadline))) => {
                    let _ = tokio::time::timeout_at(self.instant(deadline), notified).await;
                }
            }
        }
    }

    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        consume_budget().await;
        self.change_queues(|state, _| state.queues.acknowledge(&mut state.store, queue, handles))
    }

    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        consume_budget().await;
        let delay = Duration::from_millis(delay_ms);
        self.release_as(queue, handle, Some(delay), reason)
    }

    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        consume_budget().await;
        self.release_as(queue, handle, None, reason)
    }

    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()> {
        consume_budget().await;
        let until = self.now() + Duration::from_millis(timeout_ms);
        let mut state = self.serving()?;
        let queue = state.queues.get(queue)?;
        queue.change(|groups| groups.extend(handle, until));
        Ok(())
    }

    fn limits(&self) -> &QueueLimits {
        &self.parts.config.queue_limits
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
        self.on_queue(queue, |queue, store, _| {
            queue.dead_letters(store, after, letters_max)
        })
    }

    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        consume_budget().await;
        self.parts
            .config
            .queue_limits
            .check_count(queue, letters.len())?;
        self.change_queues(|state, _| state.queues.redrive(&mut state.store, queue, letters))
    }

    async fn purge(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        consume_budget().await;
        self.parts
            .config
            .queue_limits
            .check_count(queue, letters.len())?;
        self.change_queues(|state, _| state.queues.get(queue)?.purge(&mut state.store, letters))
    }

    async fn blocked(&self, queue: &str) -> Result<Vec<DeadLetter>> {
        consume_budget().await;
        self.on_queue(queue, |queue, store, _| {
            let blocked = queue.groups.blocked(&queue.options);
            let letters = blocked.map(|(group, head)| {
                let id = LetterId(u128::from(head.sequence.0));
                Ok(head.letter(id, group.clone(), body_of(store, head)?))
            });
            let mut letters = letters.collect::<Result<Vec<_>>>()?;
            letters.sort_unstable_by_key(|head| head.sequence);
            Ok(letters)
        })
    }

    async fn waiting(&self, queue: &str, messages_max: usize) -> Result<Vec<DeadLetter>> {
        consume_budget().await;
        self.on_queue(queue, |queue, store, _| {
            let waiting = queue.groups.messages().take(messages_max);
            let letters = waiting.map(|(group, message)| {
                let id = LetterId(u128::from(message.sequence.0));
                Ok(message.letter(id, group.clone(), body_of(store, message)?))
            });
            letters.collect()
        })
    }

    async fn backlog(&self, queue: &str) -> Result<Backlog> {
        consume_budget().await;
        self.on_queue(queue, |queue, _, _| Ok(queue.backlog()))
    }
}
