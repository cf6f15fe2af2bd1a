//! Queues: ordered within a group, parallel across groups. An accepted message is never lost.
//!
//! Promises
//! - **Q1** Messages of one group are delivered in the order they were sent, also after a
//!   redelivery. While a consumer has a message of a group, no other consumer receives a later one
//!   of that group.
//! - **Q2** Groups do not wait for each other.
//! - **Q3** A message is delivered again, with a higher attempt number, if it was not acknowledged
//!   within the visibility timeout or was released. It is never lost before it was acknowledged,
//!   unless its queue is [`Retention::Transient`] and the store crashes.
//! - **Q4** Two messages with the same deduplication id, sent within the deduplication window, are
//!   one. If a crash took the first message of a [`Retention::Transient`] queue, the second one
//!   arrives (D5).
//! - **Q5** The queue's options decide about a message that failed `attempts_max` times. It blocks
//!   its group and raises an alarm, or moves to the dead letters with its reason (rule P1). It
//!   never vanishes. A batch that times out is a failure of its first message. A message that has
//!   failed, and may fail only once more, is delivered alone, so that no message is given up for
//!   another of its batch.
//! - **Q6** An acknowledgement with a handle of an earlier delivery changes nothing.
//! - **Q7** If [`QueueLimits::shares_journal`], sending and acknowledging are ordered with the
//!   key-value store of the same provider: one durability point covers both.
//! - **Q8** Every delivery carries the deduplication id of its message. A receiver that keeps the
//!   ids of its completed work therefore recognises a message that was sent again after the window
//!   (Q4) or delivered again (Q3).
//! - **Q10** [`QueueAdmin::backlog`] counts the messages that were sent and are neither
//!   acknowledged nor given up. It counts the dead letters separately.
//! - **Q11** A message that its consumer gives up ([`Queue::give_up`]) moves to the dead letters
//!   with its reason at once. This holds however many attempts are left, and also in a queue that
//!   blocks groups. The messages after it are delivered.
//! - **Q12** Every delivery says how often its message has failed. A delivery of a message after
//!   the one that failed is an attempt (Q3) and not a failure. So a consumer can recognise a last
//!   attempt that had no result.
//! - **Q13** A dead letter is kept until it is [purged](QueueAdmin::purge) or
//!   [redriven](QueueAdmin::redrive), or until [`QueueLimits::dead_letters_max`] later ones of its
//!   queue have come. A redriven letter comes last in its group. It keeps its deduplication id, is
//!   never dropped as a duplicate (Q4), and counts as untried. At any moment it is a message or a
//!   dead letter, never both. Redriving or purging a missing letter does nothing.
//! - **Q14** [`QueueAdmin::waiting`] shows messages that were sent and are neither acknowledged nor
//!   given up, those of one group in order and from its first on. It delivers none of them: a
//!   consumer receives them as if nothing had been shown.
//!
//! Not promised: an order between groups, or exactly one delivery.

mod admin;
mod groups;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use admin::{Backlog, DeadLetter, LetterId, QueueAdmin, SharedQueueAdmin};
pub use groups::{Groups, Queued};

use crate::{Error, Externalize, Incarnation, Receipt, Result};

/// The longest message group.
pub const GROUP_BYTES_MAX: usize = 128;

/// The longest deduplication id.
pub const DEDUPLICATION_BYTES_MAX: usize = 160;

/// A message to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The message group: order is kept within it. At most [`GROUP_BYTES_MAX`].
    pub group: Bytes,
    /// Messages with the same id within the deduplication window are one (Q4). At most
    /// [`DEDUPLICATION_BYTES_MAX`].
    pub deduplication: Option<Bytes>,
    /// The payload, up to [`QueueLimits::message_bytes_max`].
    pub body: Bytes,
}

/// The position of a message in its queue. It grows within a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sequence(pub u64);

/// Names one delivery of one message, for acknowledging it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// The message's group.
    pub group: Bytes,
    /// The message's position.
    pub sequence: Sequence,
    /// The number of this delivery of the message, from one.
    pub attempt: u32,
    /// The start of the store that made the delivery. A store that went back may count the same
    /// attempts again.
    pub incarnation: Incarnation,
}

impl Handle {
    /// The first handle of each group, of handles in which those of a group follow each other.
    pub fn first_of_groups(handles: &[Self]) -> impl Iterator<Item = &Self> {
        let groups = handles.chunk_by(|one, other| one.group == other.group);
        groups.filter_map(|group| group.first())
    }
}

/// A message given to a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Names this delivery to [`Queue::acknowledge`] and [`Queue::release`].
    pub handle: Handle,
    /// The id that its sender gave the message (Q8).
    pub deduplication: Option<Bytes>,
    /// How often it failed before this delivery: it was released, or its visibility timeout ran out
    /// (Q12).
    pub failures: u32,
    /// The payload.
    pub body: Bytes,
}

/// The fate of a message that failed [`QueueOptions::attempts_max`] times (rule P1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFailure {
    /// It stays at the head of its group and is tried again forever. [`QueueAdmin::blocked`]
    /// reports it.
    Block,
    /// It moves to the dead letters with the reason of its last failure.
    DeadLetter,
}

/// How a queue behaves, given once at its creation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueOptions {
    /// How long a delivered message stays hidden before it is delivered again.
    pub visibility_timeout_ms: u64,
    /// Deliveries before [`OnFailure`] applies.
    pub attempts_max: u32,
    /// The fate of a message after that.
    pub on_failure: OnFailure,
    /// Whether its messages survive a crash of the store.
    pub retention: Retention,
}

/// Whether a queue's messages, or an update, survive a crash of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Retention {
    /// They do, once durable, like all other data (Q3).
    #[default]
    Durable,
    /// They need not: the sender notices that the store has restarted, or has stored their content
    /// elsewhere. A provider with a journal of its own then saves writing them. Other providers
    /// keep them anyway.
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

/// The limits of a provider's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// The largest body.
    pub message_bytes_max: usize,
    /// The most messages that one [`Queue::send`] takes, and that one [`Queue::receive`] returns.
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
    /// Makes `queue` with `options`. An existing queue keeps its messages and takes the new
    /// options.
    async fn create(&self, queue: &str, options: QueueOptions) -> Result<Receipt>;

    /// Appends `messages` in order, all or none. Sending none changes nothing, and the answer says
    /// whether the queue exists.
    ///
    /// Errors: `Invalid` if the queue does not exist or a limit is exceeded; `NoRoom`.
    async fn send(&self, queue: &str, messages: Vec<Message>) -> Result<Receipt>;

    /// Takes up to `messages_max` visible messages of one group, in order, or none if no message is
    /// visible now. Groups are served in turn.
    async fn receive(&self, queue: &str, messages_max: usize) -> Result<Vec<Delivery>> {
        self.receive_hidden(queue, messages_max, None).await
    }

    /// As [`Queue::receive`], but hides the messages for `hidden_ms`, if given, instead of the
    /// queue's visibility timeout. For consumers that know how long they may take.
    async fn receive_hidden(
        &self,
        queue: &str,
        messages_max: usize,
        hidden_ms: Option<u64>,
    ) -> Result<Vec<Delivery>>;

    /// Returns once [`Queue::receive`] may have messages: the continuous poll of the paper's
    /// requirement 4. It may return too early, but never misses a message.
    async fn ready(&self, queue: &str) -> Result<()>;

    /// Removes delivered messages permanently. Stale handles are ignored (Q6).
    async fn acknowledge(&self, queue: &str, handles: &[Handle]) -> Result<Receipt>;

    /// Returns a delivered message to the queue, and with it all later ones of its group that the
    /// same consumer has. `reason` says what failed. It is delivered again after `delay_ms`.
    async fn release(
        &self,
        queue: &str,
        handle: &Handle,
        delay_ms: u64,
        reason: &str,
    ) -> Result<Receipt>;

    /// Gives up a delivered message permanently. It must be the first of its group that the
    /// consumer has; the messages after it return to the queue. Stale handles are ignored (Q6).
    /// Without room for a dead letter the message stays, and is delivered again a little later.
    async fn give_up(&self, queue: &str, handle: &Handle, reason: &str) -> Result<Receipt>;

    /// Keeps a delivered message, and all others of its group that the same consumer has, hidden
    /// for another `timeout_ms` from now.
    async fn extend(&self, queue: &str, handle: &Handle, timeout_ms: u64) -> Result<()>;

    /// The provider's limits.
    fn limits(&self) -> &QueueLimits;
}

impl QueueLimits {
    /// Errors: `Invalid` if there are too many messages or one of them is too large.
    pub fn check(&self, queue: &str, messages: &[Message]) -> Result<()> {
        self.check_count(queue, messages.len())?;
        for message in messages {
            let (group, bytes) = (message.group.len(), message.body.len());
            let id = message.deduplication.as_ref().map_or(0, Bytes::len);
            if bytes > self.message_bytes_max
                || group > GROUP_BYTES_MAX
                || id > DEDUPLICATION_BYTES_MAX
            {
                return Err(Error::invalid(format!(
                    "send {bytes} bytes with an id of {id} in a group named by {group} to {queue:?}"
                )));
            }
        }
        Ok(())
    }

    /// Errors: `Invalid` if `count` messages or dead letters are too many for one call.
    pub fn check_count(&self, queue: &str, count: usize) -> Result<()> {
        let limit = self.batch_messages_max;
        if count > limit {
            return Err(Error::invalid(format!(
                "send or settle {count} messages of {queue:?}, where {limit} is the limit"
            )));
        }
        Ok(())
    }
}

/// A shared queue port.
pub type SharedQueue = Arc<dyn Queue>;
