//! Queues: ordered within a group, parallel across groups, never losing what was accepted.
//!
//! Promises
//! - **Q1** Messages of one group are delivered in the order they were sent, also after a redelivery: while
//!   a message of a group is with a consumer, nothing later of that group is given to another.
//! - **Q2** Groups do not wait for each other.
//! - **Q3** A message is delivered again, with a higher attempt number, if it was not acknowledged within
//!   the visibility timeout or was released; it is never lost before it was acknowledged, unless its queue is [`Retention::Transient`] and
//!   the store crashes.
//! - **Q4** Two messages with the same deduplication id, sent within the deduplication window, are one; where a crash took the first
//!   of a [`Retention::Transient`] queue, the second arrives (D5).
//! - **Q5** A message that failed `attempts_max` times is handled as the queue was created: it blocks its
//!   group and raises an alarm, or moves to the dead letters with its reason (rule P1). It never vanishes. A batch that
//!   times out is a failure of its first message. One that has failed, and may fail once more, comes alone: so none is given up
//!   for another of its batch.
//! - **Q6** An acknowledgement with a handle of an earlier delivery changes nothing.
//! - **Q7** Sending and acknowledging are ordered with the key-value store of the same provider, where
//!   [`QueueLimits::shares_journal`] says so: one durability point covers both.
//! - **Q8** Every delivery carries the deduplication id its message was sent with, so that a receiver who keeps the ids of
//!   what he has done knows a message that was sent again after the window (Q4) or delivered again (Q3).
//! - **Q9** A receipt's [`Cost`](crate::Cost) is what that says.
//! - **Q10** [`QueueAdmin::backlog`] counts what was sent and is neither acknowledged nor given up, and apart from it the dead letters.
//! - **Q11** What is given up by its consumer ([`Queue::give_up`]) moves to the dead letters with its reason at once, however many
//!   attempts it has left, and also where the queue would let it block; what is behind it is delivered.
//! - **Q12** Every delivery says how often its message has failed: a delivery in which it stood behind the one that failed is an
//!   attempt (Q3) and no failure. So a consumer knows a last attempt that came to no end.
//! - **Q13** A dead letter is kept until it is [purged](QueueAdmin::purge) or [redriven](QueueAdmin::redrive), or
//!   [`QueueLimits::dead_letters_max`] later ones of its queue have come. One that is redriven comes behind all of its group under the
//!   deduplication id that it had, whatever is remembered of that (Q4), as a message that has not been tried; it is a message or a
//!   dead letter at any moment, and never both. One that is not there is neither.
//!
//! Not promised: an order between groups, or exactly one delivery.

mod admin;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub use admin::{Backlog, DeadLetter, LetterId, QueueAdmin, SharedQueueAdmin};

use crate::{Externalize, Incarnation, Receipt, Result};

/// The longest message group.
pub const GROUP_BYTES_MAX: usize = 128;

/// The longest deduplication id.
pub const DEDUPLICATION_BYTES_MAX: usize = 160;

/// What to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The message group: order is kept within it. At most [`GROUP_BYTES_MAX`].
    pub group: Bytes,
    /// Messages with the same id within the deduplication window are one (Q4). At most [`DEDUPLICATION_BYTES_MAX`].
    pub deduplication: Option<Bytes>,
    /// The payload, up to [`QueueLimits::message_bytes_max`].
    pub body: Bytes,
}

/// A message's place in its queue; grows within a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// One delivery of one message; acknowledging needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// The message's group.
    pub group: Bytes,
    /// The message's place.
    pub sequence: Sequence,
    /// Which delivery of it, counted from one.
    pub attempt: u32,
    /// The start of the store that gave it: one that has gone back may count the same attempts again.
    pub incarnation: Incarnation,
}

/// A message given to a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Names this delivery to [`Queue::acknowledge`] and [`Queue::release`].
    pub handle: Handle,
    /// What its sender called it (Q8).
    pub deduplication: Option<Bytes>,
    /// How often it failed before this delivery: was released, or kept until its visibility timeout ran out (Q12).
    pub failures: u32,
    /// The payload.
    pub body: Bytes,
}

/// What becomes of a message that failed [`QueueOptions::attempts_max`] times (rule P1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// It stays at the head of its group and is tried again for ever; [`QueueAdmin::blocked`] reports it.
    Block,
    /// It moves to the dead letters with the reason of its last failure.
    DeadLetter,
}

/// How a queue behaves, given once at its creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueOptions {
    /// How long a delivered message stays hidden before it is delivered again.
    pub visibility_timeout_ms: u64,
    /// Deliveries before [`OnFailure`] decides.
    pub attempts_max: u32,
    /// What happens then.
    pub on_failure: OnFailure,
    /// Whether its messages survive a crash of the store.
    pub retention: Retention,
}

/// Whether a queue's messages, or an update, survive a crash of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retention {
    /// They do, once durable, like everything else (Q3).
    #[default]
    Durable,
    /// They need not: whoever sends them notices that the store has restarted, or has written down elsewhere
    /// what they say. A provider with a journal of its own then saves writing them; others keep them anyway.
    Transient,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            visibility_timeout_ms: 30_000,
            attempts_max: 5,
            on_failure: OnFailure::DeadLetter,
            retention: Retention::Durable,
        }
    }
}

/// What a provider's queues cannot exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// The largest body.
    pub message_bytes_max: usize,
    /// The most messages one [`Queue::send`] takes, and one [`Queue::receive`] gives.
    pub batch_messages_max: usize,
    /// How long a deduplication id is remembered.
    pub deduplication_window_ms: u64,
    /// How many dead letters of one queue are kept, the newest (Q13).
    pub dead_letters_max: usize,
    /// Whether the queue and the key-value store of this provider share one journal (Q7).
    pub shares_journal: bool,
}

/// Queues with message groups.
#[async_trait]
pub trait Queue: Externalize {
    /// Makes `queue` with `options`; a queue that exists keeps its messages and takes the new options.
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt>;

    /// Appends `messages` in order, all or none. None at all change nothing: the answer says whether the queue is there.
    ///
    /// Errors: `Invalid` if the queue does not exist or a limit is exceeded; `NoRoom`.
    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt>;

    /// Takes up to `messages_max` visible messages of one group, in order, or none if there are none now.
    /// Groups are served in turn.
    async fn receive(&self, queue: &str, messages_max: usize) -> Result<Vec<Delivery>> {
        self.receive_hidden(queue, messages_max, None).await
    }

    /// The same, hidden for `hidden_ms` instead of the queue's visibility timeout where that is given: the
    /// consumer knows how long it may take.
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>>;

    /// Returns once [`Queue::receive`] may have something to give: the continuous poll of the paper's
    /// requirement 4. Spurious returns are allowed, missed ones are not.
    async fn ready(&self, queue: &str) -> Result<()>;

    /// Removes delivered messages for good. Stale handles are ignored (Q6).
    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt>;

    /// Gives back a delivered message, and with it all later ones of its group that are with the same
    /// consumer; `reason` says what failed. It is delivered again after `delay_ms`.
    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt>;

    /// Gives up a delivered message for good: the first that its consumer has of its group, which gives back all that it has behind it.
    /// Stale handles are ignored (Q6). Where there is no room for a dead letter the message stays, and is delivered again a
    /// little later.
    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt>;

    /// Keeps a delivered message, and all others of its group with the same consumer, hidden for another
    /// `timeout_ms` from now.
    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()>;

    /// What this provider cannot exceed.
    fn limits(&self) -> &QueueLimits;
}

/// A shared queue port.
pub type SharedQueue = Arc<dyn Queue>;
