//! The queue port of a world, ordered with the key-value items.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use ports::{
    Error, Queue, QueueAdmin, Receipt, Result,
    queue::{
        Backlog, DeadLetter, Delivery, Handle, LetterId, Message, QueueLimits, QueueOptions,
        Sequence,
    },
};

use crate::{
    call::{Kind, TraceText},
    cloud::Cloud,
    durability::SimulatedStore,
    store::{QueueState, QueueUndo, Store, Undo},
};

#[async_trait]
impl Queue for SimulatedStore {
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        let call = self.0.begin_call("create_queue", queue.to_owned()).await?;
        let receipt = self.0.store().create_queue(queue, options);
        self.0.changed.notify_waiters();
        self.0
            .end_call(call, Kind::Changes, Ok(receipt), trace_done)
            .await
    }

    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        let count = messages.len();
        let call = self
            .0
            .begin_call("send", format!("{queue}, {count} messages"))
            .await?;
        let result = self.0.store().send(queue, messages, self.0.elapsed());
        self.0.changed.notify_waiters();
        self.0
            .end_call(call, Kind::Changes, result, trace_done)
            .await
    }

    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        let hidden_for = hidden_ms.map(Duration::from_millis);
        let perform = |store: &mut Store, now| store.receive(queue, messages_max, hidden_for, now);
        let trace_text = |deliveries: &Vec<Delivery>| trace_deliveries(deliveries);
        self.0
            .call(
                "receive",
                queue.to_owned(),
                Kind::Changes,
                perform,
                trace_text,
            )
            .await
    }

    async fn ready(&self, queue: &str) -> Result<()> {
        let call = self.0.begin_call("ready", queue.to_owned()).await?;
        let result = self.0.queue_ready(queue).await;
        self.0
            .end_call(call, Kind::Reads, result, |()| "ready".into())
            .await
    }

    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        let call = self
            .0
            .begin_call("acknowledge", trace_handles(queue, handles))
            .await?;
        let result = self.0.acknowledge(queue, handles);
        self.0
            .end_call(call, Kind::Changes, result, trace_done)
            .await
    }

    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        let subject = trace_handles(queue, std::slice::from_ref(handle));
        let call = self.0.begin_call("release", subject).await?;
        let result = self.0.release(queue, handle, delay_ms, reason);
        self.0
            .end_call(call, Kind::Changes, result, trace_done)
            .await
    }

    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        let subject = trace_handles(queue, std::slice::from_ref(handle));
        let call = self.0.begin_call("give_up", subject).await?;
        let result = self.0.give_up(queue, handle, reason);
        self.0
            .end_call(call, Kind::Changes, result, trace_done)
            .await
    }

    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()> {
        let until = Duration::from_millis(timeout_ms);
        let perform = |store: &mut Store, now| {
            store.queue(queue)?.groups.extend(handle, now + until);
            Ok(())
        };
        let subject = trace_handles(queue, std::slice::from_ref(handle));
        self.0
            .call("extend", subject, Kind::Changes, perform, |()| {
                "done".into()
            })
            .await
    }

    fn limits(&self) -> &QueueLimits {
        &self.0.options.queue
    }
}

#[async_trait]
impl QueueAdmin for SimulatedStore {
    async fn dead_letters(
        &self,
        queue: &str,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        let perform = |store: &mut Store, now| {
            store.settle_queue(queue, now)?;
            Ok(store.queue(queue)?.dead_letters(after, letters_max))
        };
        self.0
            .call(
                "dead_letters",
                queue.to_owned(),
                Kind::Reads,
                perform,
                trace_letters,
            )
            .await
    }

    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        let perform =
            |store: &mut Store, now| store.settle_letters(queue, letters, now, QueueState::redrive);
        let receipt = self
            .0
            .call(
                "redrive",
                queue.to_owned(),
                Kind::Changes,
                perform,
                trace_done,
            )
            .await;
        self.0.changed.notify_waiters();
        receipt
    }

    async fn purge(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        let perform =
            |store: &mut Store, now| store.settle_letters(queue, letters, now, QueueState::purge);
        self.0
            .call(
                "purge",
                queue.to_owned(),
                Kind::Changes,
                perform,
                trace_done,
            )
            .await
    }

    async fn blocked(&self, queue: &str) -> Result<Vec<DeadLetter>> {
        let perform = |store: &mut Store, now| {
            store.settle_queue(queue, now)?;
            Ok(store.queue(queue)?.blocked())
        };
        self.0
            .call(
                "blocked",
                queue.to_owned(),
                Kind::Reads,
                perform,
                trace_letters,
            )
            .await
    }

    async fn waiting(&self, queue: &str, messages_max: usize) -> Result<Vec<DeadLetter>> {
        let perform = |store: &mut Store, now| {
            store.settle_queue(queue, now)?;
            Ok(store.queue(queue)?.waiting(messages_max))
        };
        self.0
            .call(
                "waiting",
                queue.to_owned(),
                Kind::Reads,
                perform,
                trace_letters,
            )
            .await
    }

    async fn backlog(&self, queue: &str) -> Result<Backlog> {
        let perform = |store: &mut Store, now| {
            store.settle_queue(queue, now)?;
            Ok(store.queue(queue)?.backlog())
        };
        let trace_text = |backlog: &Backlog| format!("{backlog:?}").into();
        self.0
            .call(
                "backlog",
                queue.to_owned(),
                Kind::Reads,
                perform,
                trace_text,
            )
            .await
    }
}

fn trace_done(_: &Receipt) -> TraceText {
    "done".into()
}

#[allow(clippy::ptr_arg)] // it is passed as a function over exactly this type
fn trace_letters(letters: &Vec<DeadLetter>) -> TraceText {
    format!("{} letters", letters.len()).into()
}

pub(crate) fn trace_deliveries(deliveries: &[Delivery]) -> TraceText {
    match (deliveries.first(), deliveries.last()) {
        (Some(first), Some(last)) => format!(
            "{} {}..={} attempt {}",
            first.handle.group.escape_ascii(),
            first.handle.sequence.0,
            last.handle.sequence.0,
            first.handle.attempt
        )
        .into(),
        _ => "nothing".into(),
    }
}

fn trace_handles(queue: &str, handles: &[Handle]) -> String {
    match handles {
        [] => format!("{queue}, nothing"),
        [first, .., last] => format!("{queue} {}..={}", first.sequence.0, last.sequence.0),
        [only] => format!("{queue} {}", only.sequence.0),
    }
}

/// The operations of consumers, which queue triggers use too without a port call.
impl Cloud {
    /// Returns once `queue` may have messages.
    pub(crate) async fn queue_ready(&self, queue: &str) -> Result<()> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let now = self.elapsed();
            let next = {
                let mut store = self.store();
                store.settle_queue(queue, now)?;
                store.queue(queue)?.next_visible()
            };
            match next {
                Some(moment) if moment <= now => return Ok(()),
                Some(moment) => tokio::select! {
                    biased;
                    () = changed => {}
                    () = self.sleep_until(moment) => {}
                },
                None => changed.await,
            }
        }
    }

    pub(crate) fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        let twice = self.faults.draw_second_delivery(&mut self.random());
        let receipt = self.store().acknowledge(queue, handles, twice)?;
        self.changed.notify_waiters();
        Ok(receipt)
    }

    pub(crate) fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        let visible = self.elapsed() + Duration::from_millis(delay_ms);
        let receipt = self.store().release(queue, handle, reason, visible, false);
        self.changed.notify_waiters();
        receipt
    }

    pub(crate) fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        let visible = self.elapsed();
        let receipt = self.store().release(queue, handle, reason, visible, true);
        self.changed.notify_waiters();
        receipt
    }
}

impl Store {
    pub(crate) fn queue(&mut self, queue: &str) -> Result<&mut QueueState> {
        self.queues
            .get_mut(queue)
            .ok_or_else(|| Error::invalid(format!("use queue {queue:?}, which does not exist")))
    }

    fn create_queue(&mut self, queue: &str, options: QueueOptions) -> Receipt {
        let incarnation = self.point().incarnation;
        let undo = if let Some(existing) = self.queues.get_mut(queue) {
            existing.reconfigure(options)
        } else {
            self.queues
                .insert(queue.to_owned(), QueueState::new(options, incarnation));
            QueueUndo::Created
        };
        self.order(vec![Undo::Queue(queue.to_owned(), undo)]);
        self.receipt()
    }

    /// Creates an internal queue of the cloud, which no crash undoes.
    pub(crate) fn install_queue(&mut self, queue: &str) -> &mut QueueState {
        let incarnation = self.point().incarnation;
        self.queues
            .entry(queue.to_owned())
            .or_insert_with(|| QueueState::new(QueueOptions::default(), incarnation))
    }

    /// Appends an event to an internal queue of the cloud, which has its own limits.
    pub(crate) fn send_event(
        &mut self,
        queue: &str,
        message: Message,
        now: Duration,
    ) -> Result<Receipt> {
        let undo = self.queue(queue)?.send(message, now, Duration::ZERO);
        self.order(
            undo.into_iter()
                .map(|undo| Undo::Queue(queue.to_owned(), undo))
                .collect(),
        );
        Ok(self.receipt())
    }

    pub(crate) fn send(
        &mut self,
        queue: &str,
        messages: Vec<Message>,
        now: Duration,
    ) -> Result<Receipt> {
        let limits = self.queue_limits;
        limits.check(queue, &messages)?;
        let window = Duration::from_millis(limits.deduplication_window_ms);
        let state = self.queue(queue)?;
        let undo: Vec<_> = messages
            .into_iter()
            .filter_map(|message| state.send(message, now, window))
            .map(|undo| Undo::Queue(queue.to_owned(), undo))
            .collect();
        if !undo.is_empty() {
            self.order(undo);
        }
        Ok(self.receipt())
    }

    /// Delivers a batch to a consumer, hidden for `hidden_for` or for the queue's visibility
    /// timeout.
    pub(crate) fn receive(
        &mut self,
        queue: &str,
        messages_max: usize,
        hidden_for: Option<Duration>,
        now: Duration,
    ) -> Result<Vec<Delivery>> {
        let messages_max = messages_max.min(self.queue_limits.batch_messages_max);
        self.settle_queue(queue, now)?;
        Ok(self.queue(queue)?.receive(messages_max, hidden_for, now))
    }

    fn acknowledge(&mut self, queue: &str, handles: &[Handle], twice: bool) -> Result<Receipt> {
        let undo = self.queue(queue)?.acknowledge(handles, twice);
        if !undo.is_empty() {
            self.order(
                undo.into_iter()
                    .map(|undo| Undo::Queue(queue.to_owned(), undo))
                    .collect(),
            );
        }
        Ok(self.receipt())
    }

    /// Applies `settle` to each of these dead letters that exists.
    fn settle_letters(
        &mut self,
        queue: &str,
        letters: &[LetterId],
        now: Duration,
        settle: fn(&mut QueueState, LetterId) -> Vec<QueueUndo>,
    ) -> Result<Receipt> {
        self.queue_limits.check_count(queue, letters.len())?;
        self.settle_queue(queue, now)?;
        for letter in letters {
            let undo = settle(self.queue(queue)?, *letter);
            if !undo.is_empty() {
                self.order(
                    undo.into_iter()
                        .map(|undo| Undo::Queue(queue.to_owned(), undo))
                        .collect(),
                );
            }
        }
        Ok(self.receipt())
    }

    /// Releases a delivered message, or gives it up.
    fn release(
        &mut self,
        queue: &str,
        handle: &Handle,
        reason: &str,
        visible: Duration,
        is_given_up: bool,
    ) -> Result<Receipt> {
        if self.queue(queue)?.groups.release(handle, reason, visible) {
            self.failed(queue, &handle.group, handle.sequence, is_given_up);
        }
        Ok(self.receipt())
    }

    /// Ends overdue deliveries, and gives up messages that failed permanently.
    fn settle_queue(&mut self, queue: &str, now: Duration) -> Result<()> {
        while let Some((group, head)) = self.queue(queue)?.groups.expire(now) {
            self.failed(queue, &group, head, false);
        }
        Ok(())
    }

    /// Moves a permanently failed message to the queue's target (Q5), at its own position.
    fn failed(&mut self, queue: &str, group: &Bytes, sequence: Sequence, is_given_up: bool) {
        let letters_max = self.queue_limits.dead_letters_max;
        let given_up = self
            .queues
            .get_mut(queue)
            .and_then(|queue| queue.failed(group, sequence, is_given_up, letters_max));
        let Some(given_up) = given_up else {
            return;
        };
        let mut undo = vec![Undo::Queue(queue.to_owned(), given_up.undo)];
        if let Some((to, message)) = given_up.forwarded
            && let Some(handler) = self.queues.get_mut(&to)
        {
            undo.extend(
                handler
                    .send(message, Duration::ZERO, Duration::ZERO)
                    .map(|undo| Undo::Queue(to, undo)),
            );
        }
        self.order(undo);
    }
}
