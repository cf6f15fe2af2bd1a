//! Q3, Q5, Q6, Q8, Q11 and Q12, broken for consumers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::pending;

use crate::{
    Queue, Receipt, Result,
    decorate::QueueDecorator,
    decorates,
    queue::{Delivery, Handle, Message, Sequence, SharedQueue},
};

/// Takes a delivery for an acknowledgement (Q3).
#[derive(Debug)]
pub(super) struct NeverRedelivers(pub(super) SharedQueue);

decorates!(NeverRedelivers, dyn Queue, 0);

impl QueueDecorator for NeverRedelivers {
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        let deliveries = self
            .0
            .receive_hidden(queue, messages_max, hidden_ms)
            .await?;
        let handles: Vec<Handle> = deliveries
            .iter()
            .map(|delivery| delivery.handle.clone())
            .collect();
        self.0.acknowledge(queue, &handles).await?;
        Ok(deliveries)
    }
}

/// Hides a batch for the queue's visibility timeout, and ignores the consumer's (Q3).
#[derive(Debug)]
pub(super) struct HidesAsItPleases(pub(super) SharedQueue);

decorates!(HidesAsItPleases, dyn Queue, 0);

impl QueueDecorator for HidesAsItPleases {
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        _: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        self.0.receive(queue, messages_max).await
    }
}

/// Redelivers a released message at once, and ignores the delay (Q3).
#[derive(Debug)]
pub(super) struct ForgetsDelays(pub(super) SharedQueue);

decorates!(ForgetsDelays, dyn Queue, 0);

impl QueueDecorator for ForgetsDelays {
    async fn release(&self, queue: &str, handle: &Handle, _: u64, reason: &str) -> Result<Receipt> {
        self.0.release(queue, handle, 0, reason).await
    }
}

/// Never wakes a waiting consumer (Q3).
#[derive(Debug)]
pub(super) struct NeverReady(pub(super) SharedQueue);

decorates!(NeverReady, dyn Queue, 0);

impl QueueDecorator for NeverReady {
    async fn ready(&self, _: &str) -> Result<()> {
        pending().await
    }
}

/// Delivers the next message together with one that must come alone because it has failed before
/// (Q5).
#[derive(Debug)]
pub(super) struct SendsTheNextAlong {
    honest: SharedQueue,
    sent: Mutex<Vec<Message>>,
}

impl SendsTheNextAlong {
    pub(super) fn around(honest: SharedQueue) -> Self {
        Self {
            honest,
            sent: Mutex::default(),
        }
    }

    fn sent(&self) -> MutexGuard<'_, Vec<Message>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn behind(&self, delivery: &Delivery) -> Option<Delivery> {
        let Handle {
            group,
            sequence,
            incarnation,
            ..
        } = delivery.handle.clone();
        let sent = self.sent();
        let mut group_sent = sent.iter().filter(|message| message.group == group);
        group_sent.find(|message| message.body == delivery.body)?;
        let Message {
            deduplication,
            body,
            ..
        } = group_sent.next()?.clone();
        let handle = Handle {
            group,
            sequence: Sequence(sequence.0 + 1),
            attempt: 1,
            incarnation,
        };
        Some(Delivery {
            handle,
            deduplication,
            failures: 0,
            body,
        })
    }
}

decorates!(SendsTheNextAlong, dyn Queue, honest);

impl QueueDecorator for SendsTheNextAlong {
    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        self.sent().extend_from_slice(&messages);
        self.honest.send(queue, messages).await
    }
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        let mut deliveries = self
            .honest
            .receive_hidden(queue, messages_max, hidden_ms)
            .await?;
        if let [alone] = &deliveries[..]
            && messages_max > 1
            && alone.handle.attempt > 1
        {
            let behind = self.behind(alone);
            deliveries.extend(behind);
        }
        Ok(deliveries)
    }
}

/// Keeps dead letters without their reasons (Q5).
#[derive(Debug)]
pub(super) struct ForgetsReasons(pub(super) SharedQueue);

decorates!(ForgetsReasons, dyn Queue, 0);

impl QueueDecorator for ForgetsReasons {
    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        _: &str,
    ) -> Result<Receipt> {
        self.0.release(queue, handle, delay_ms, "").await
    }
}

/// Accepts the handle of an earlier delivery (Q6).
#[derive(Debug)]
pub(super) struct TakesStaleHandles(pub(super) SharedQueue);

decorates!(TakesStaleHandles, dyn Queue, 0);

impl QueueDecorator for TakesStaleHandles {
    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        /// More deliveries than any case makes.
        const ATTEMPTS: u32 = 8;
        let any: Vec<Handle> = handles
            .iter()
            .flat_map(|handle| {
                (handle.attempt..handle.attempt + ATTEMPTS).map(|attempt| Handle {
                    attempt,
                    ..handle.clone()
                })
            })
            .collect();
        self.0.acknowledge(queue, &any).await
    }
}

/// Delivers messages without their ids (Q8).
#[derive(Debug)]
pub(super) struct KeepsIdsToItself(pub(super) SharedQueue);

decorates!(KeepsIdsToItself, dyn Queue, 0);

impl QueueDecorator for KeepsIdsToItself {
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        let deliveries = self
            .0
            .receive_hidden(queue, messages_max, hidden_ms)
            .await?;
        Ok(deliveries
            .into_iter()
            .map(|delivery| Delivery {
                deduplication: None,
                ..delivery
            })
            .collect())
    }
}

/// Delivers the id of a message only the first time (Q8).
#[derive(Debug)]
pub(super) struct CarriesIdsOnce(pub(super) SharedQueue);

decorates!(CarriesIdsOnce, dyn Queue, 0);

impl QueueDecorator for CarriesIdsOnce {
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        let mut deliveries = self
            .0
            .receive_hidden(queue, messages_max, hidden_ms)
            .await?;
        for delivery in deliveries
            .iter_mut()
            .filter(|delivery| delivery.handle.attempt > 1)
        {
            delivery.deduplication = None;
        }
        Ok(deliveries)
    }
}

/// Treats a message that is given up as one more failure (Q11).
#[derive(Debug)]
pub(super) struct NeverGivesUp(pub(super) SharedQueue);

decorates!(NeverGivesUp, dyn Queue, 0);

impl QueueDecorator for NeverGivesUp {
    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        self.0.release(queue, handle, 0, reason).await
    }
}

/// Keeps no dead letter of a message that is given up (Q11).
#[derive(Debug)]
pub(super) struct TakesGivingUpForDone(pub(super) SharedQueue);

decorates!(TakesGivingUpForDone, dyn Queue, 0);

impl QueueDecorator for TakesGivingUpForDone {
    async fn give_up(&self, queue: &str, handle: &Handle, _: &str) -> Result<Receipt> {
        self.0
            .acknowledge(queue, std::slice::from_ref(handle))
            .await
    }
}

/// Counts every earlier delivery of a message as a failure of it (Q12).
#[derive(Debug)]
pub(super) struct BlamesWhatWasBehind(pub(super) SharedQueue);

decorates!(BlamesWhatWasBehind, dyn Queue, 0);

impl QueueDecorator for BlamesWhatWasBehind {
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        let mut deliveries = self
            .0
            .receive_hidden(queue, messages_max, hidden_ms)
            .await?;
        for delivery in &mut deliveries {
            delivery.failures = delivery.handle.attempt - 1;
        }
        Ok(deliveries)
    }
}

/// Reports no failures (Q12).
#[derive(Debug)]
pub(super) struct BlamesNothing(pub(super) SharedQueue);

decorates!(BlamesNothing, dyn Queue, 0);

impl QueueDecorator for BlamesNothing {
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        let deliveries = self
            .0
            .receive_hidden(queue, messages_max, hidden_ms)
            .await?;
        Ok(deliveries
            .into_iter()
            .map(|delivery| Delivery {
                failures: 0,
                ..delivery
            })
            .collect())
    }
}
