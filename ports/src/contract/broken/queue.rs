//! Queues that break Q1 to Q13. What their points leave out is in [`super::durability`].

mod delivering;
mod letters;
mod sending;

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;

use super::Broken;
use crate::{
    DurabilityPoint, Externalize, Queue, Receipt, Result,
    contract::queue::Subject,
    queue::{
        Backlog, DeadLetter, Delivery, Handle, LetterId, Message, QueueLimits, QueueOptions,
        SharedQueue,
    },
};

/// Every broken queue, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("Q1", "ReordersGroup", |subject| {
        twisted(subject, sending::ReordersGroup)
    }),
    Broken::new("Q1", "SplitsGroups", |subject| {
        twisted(subject, sending::SplitsGroups::around)
    }),
    Broken::new("Q2", "MergesGroups", |subject| {
        twisted(subject, sending::MergesGroups)
    }),
    Broken::new("Q3", "NeverRedelivers", |subject| {
        twisted(subject, delivering::NeverRedelivers)
    }),
    Broken::new("Q3", "HidesAsItPleases", |subject| {
        twisted(subject, delivering::HidesAsItPleases)
    }),
    Broken::new("Q3", "ForgetsDelays", |subject| {
        twisted(subject, delivering::ForgetsDelays)
    }),
    Broken::new("Q3", "NeverReady", |subject| {
        twisted(subject, delivering::NeverReady)
    }),
    Broken::new("Q3", "SendsHalf", |subject| {
        twisted(subject, sending::SendsHalf)
    }),
    Broken::new("Q4", "ForgetsDeduplication", |subject| {
        twisted(subject, sending::ForgetsDeduplication)
    }),
    Broken::new("Q4", "NeverForgets", |subject| {
        twisted(subject, sending::NeverForgets::around)
    }),
    Broken::new("Q4", "ForgetsTooSoon", |subject| {
        let clock = Arc::clone(&subject.clock);
        Subject {
            queue: Arc::new(Twisted(sending::ForgetsTooSoon::around(
                subject.queue,
                clock,
            ))),
            ..subject
        }
    }),
    Broken::new("Q5", "DropsPoison", |subject| {
        twisted(subject, delivering::DropsPoison)
    }),
    Broken::new("Q5", "SendsTheNextAlong", |subject| {
        twisted(subject, delivering::SendsTheNextAlong::around)
    }),
    Broken::new("Q5", "ForgetsReasons", |subject| {
        twisted(subject, delivering::ForgetsReasons)
    }),
    Broken::new("Q5", "RaisesNoAlarm", |subject| {
        twisted(subject, delivering::RaisesNoAlarm)
    }),
    Broken::new("Q6", "TakesStaleHandles", |subject| {
        twisted(subject, delivering::TakesStaleHandles)
    }),
    Broken::new("Q7", "KeepsItsOwnOrder", |subject| {
        twisted(subject, sending::KeepsItsOwnOrder::around)
    }),
    Broken::new("Q8", "KeepsIdsToItself", |subject| {
        twisted(subject, delivering::KeepsIdsToItself)
    }),
    Broken::new("Q8", "CarriesIdsOnce", |subject| {
        twisted(subject, delivering::CarriesIdsOnce)
    }),
    Broken::new("Q9", "BillsCalls", |subject| {
        twisted(subject, sending::BillsCalls)
    }),
    Broken::new("Q10", "CountsWhatItGives", |subject| {
        twisted(subject, delivering::CountsWhatItGives)
    }),
    Broken::new("Q10", "CountsNoDeadLetters", |subject| {
        twisted(subject, delivering::CountsNoDeadLetters)
    }),
    Broken::new("Q11", "NeverGivesUp", |subject| {
        twisted(subject, delivering::NeverGivesUp)
    }),
    Broken::new("Q11", "TakesGivingUpForDone", |subject| {
        twisted(subject, delivering::TakesGivingUpForDone)
    }),
    Broken::new("Q12", "BlamesWhatWasBehind", |subject| {
        twisted(subject, delivering::BlamesWhatWasBehind)
    }),
    Broken::new("Q12", "BlamesNothing", |subject| {
        twisted(subject, delivering::BlamesNothing)
    }),
    Broken::new("Q13", "SendsAgainWhatIsKnown", |subject| {
        twisted(subject, letters::SendsAgainWhatIsKnown)
    }),
    Broken::new("Q13", "KeepsWhatIsRedriven", |subject| {
        twisted(subject, letters::KeepsWhatIsRedriven)
    }),
    Broken::new("Q13", "PurgesNothing", |subject| {
        twisted(subject, letters::PurgesNothing)
    }),
    Broken::new("Q13", "BeginsAtTheOldest", |subject| {
        twisted(subject, letters::BeginsAtTheOldest)
    }),
    Broken::new("Q13", "BeginsAnewBehindWhatIsGone", |subject| {
        twisted(subject, letters::BeginsAnewBehindWhatIsGone)
    }),
];

/// Queues that differ from honest ones in what they override.
#[async_trait]
pub(super) trait Twist: Debug + Send + Sync + 'static {
    fn honest(&self) -> &SharedQueue;

    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        self.honest().create(queue, options).await
    }
    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        self.honest().send(queue, messages).await
    }
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        self.honest()
            .receive_hidden(queue, messages_max, hidden_ms)
            .await
    }
    async fn ready(&self, queue: &str) -> Result<()> {
        self.honest().ready(queue).await
    }
    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        self.honest().acknowledge(queue, handles).await
    }
    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        self.honest().release(queue, handle, delay_ms, reason).await
    }
    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        self.honest().give_up(queue, handle, reason).await
    }
    async fn dead_letters(
        &self,
        queue: &str,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        self.honest().dead_letters(queue, after, letters_max).await
    }
    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.honest().redrive(queue, letters).await
    }
    async fn purge(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.honest().purge(queue, letters).await
    }
    async fn blocked(&self, queue: &str) -> Result<Vec<DeadLetter>> {
        self.honest().blocked(queue).await
    }
    async fn backlog(&self, queue: &str) -> Result<Backlog> {
        self.honest().backlog(queue).await
    }
}

/// Makes a [`Twist`] a port.
#[derive(Debug)]
pub(super) struct Twisted<T>(pub(super) T);

#[async_trait]
impl<T: Twist> Externalize for Twisted<T> {
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.0.honest().externalize(point).await
    }
    fn point(&self) -> DurabilityPoint {
        self.0.honest().point()
    }
    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.0.honest().is_durable(point)
    }
}

#[async_trait]
impl<T: Twist> Queue for Twisted<T> {
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt> {
        self.0.create(queue, options).await
    }
    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt> {
        self.0.send(queue, messages).await
    }
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>> {
        self.0.receive_hidden(queue, messages_max, hidden_ms).await
    }
    async fn ready(&self, queue: &str) -> Result<()> {
        self.0.ready(queue).await
    }
    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt> {
        self.0.acknowledge(queue, handles).await
    }
    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt> {
        self.0.release(queue, handle, delay_ms, reason).await
    }
    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt> {
        self.0.give_up(queue, handle, reason).await
    }
    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()> {
        self.0.honest().extend(queue, handle, timeout_ms).await
    }
    async fn dead_letters(
        &self,
        queue: &str,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        self.0.dead_letters(queue, after, letters_max).await
    }
    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.0.redrive(queue, letters).await
    }
    async fn purge(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.0.purge(queue, letters).await
    }
    async fn blocked(&self, queue: &str) -> Result<Vec<DeadLetter>> {
        self.0.blocked(queue).await
    }
    async fn backlog(&self, queue: &str) -> Result<Backlog> {
        self.0.backlog(queue).await
    }
    fn limits(&self) -> &QueueLimits {
        self.0.honest().limits()
    }
}

fn twisted<T: Twist>(subject: Subject, around: fn(SharedQueue) -> T) -> Subject {
    Subject {
        queue: Arc::new(Twisted(around(subject.queue))),
        ..subject
    }
}
