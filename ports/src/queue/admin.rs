//! Administration of queues: dead letters, alarms and figures. Senders and consumers need none of
//! it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Sequence;
use crate::{Externalize, Receipt, Result};

/// Names one dead letter of a queue, and is never used again there. Later letters have greater ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LetterId(pub u128);

/// A message that was given up, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Names it to [`QueueAdmin::redrive`] and [`QueueAdmin::purge`], once it has left its group.
    pub id: LetterId,
    /// Its message group.
    pub group: Bytes,
    /// Its place among its group's messages.
    pub sequence: Sequence,
    /// The id that its sender gave it (Q8).
    pub deduplication: Option<Bytes>,
    /// Its payload.
    pub body: Bytes,
    /// How often it was delivered.
    pub attempts: u32,
    /// The reason that its last consumer gave, or that the visibility timeout ran out.
    pub reason: String,
}

/// How much a queue holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Messages that wait or are with a consumer.
    pub messages: u64,
    /// Messages that were given up.
    pub dead_letters: u64,
}

/// The operator's view of a provider's queues.
///
/// Errors of each call: `Invalid` if the queue does not exist.
#[async_trait]
pub trait QueueAdmin: Externalize {
    /// Up to `letters_max` dead letters, oldest first. They begin after `after`, even if that
    /// letter is gone, or with the oldest.
    async fn dead_letters(
        &self,
        queue: &str,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>>;

    /// Sends dead letters again (Q13), at most
    /// [`batch_messages_max`](super::QueueLimits::batch_messages_max). Ignores ids without a
    /// letter.
    ///
    /// Errors: `Invalid` if there are too many; `NoRoom`. Some letters may have been sent before.
    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt>;

    /// Removes dead letters permanently (Q13), at most
    /// [`batch_messages_max`](super::QueueLimits::batch_messages_max). Ignores ids without a
    /// letter.
    ///
    /// Errors: `Invalid` if there are too many.
    async fn purge(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt>;

    /// The alarm: the heads of blocked groups (Q5), as [`DeadLetter`]s that have not left.
    async fn blocked(&self, queue: &str) -> Result<Vec<DeadLetter>>;

    /// Up to `messages_max` messages that wait or are with a consumer (Q14), as [`DeadLetter`]s
    /// that have not left.
    async fn waiting(&self, queue: &str, messages_max: usize) -> Result<Vec<DeadLetter>>;

    /// How much `queue` holds (Q10). Costs no read of its messages.
    async fn backlog(&self, queue: &str) -> Result<Backlog>;
}

/// A shared administration port.
pub type SharedQueueAdmin = Arc<dyn QueueAdmin>;
