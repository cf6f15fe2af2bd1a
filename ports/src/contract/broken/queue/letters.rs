//! Queues that break Q13.

use async_trait::async_trait;

use super::Twist;
use crate::{
    Receipt, Result,
    queue::{DeadLetter, LetterId, Message, SharedQueue},
};

/// The messages that those of `letters` were which are there.
async fn messages(queue: &SharedQueue, name: &str, letters: &[LetterId]) -> Result<Vec<Message>> {
    let all = queue
        .dead_letters(name, None, usize::MAX)
        .await?
        .into_iter();
    let meant = all.filter(|letter| letters.contains(&letter.id));
    Ok(meant
        .map(
            |DeadLetter {
                 group,
                 deduplication,
                 body,
                 ..
             }| Message {
                group,
                deduplication,
                body,
            },
        )
        .collect())
}

/// Sends again as any sender does, under an id that is still remembered.
#[derive(Debug)]
pub(super) struct SendsAgainWhatIsKnown(pub(super) SharedQueue);

#[async_trait]
impl Twist for SendsAgainWhatIsKnown {
    fn honest(&self) -> &SharedQueue {
        &self.0
    }
    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.0
            .send(queue, messages(&self.0, queue, letters).await?)
            .await?;
        self.0.purge(queue, letters).await
    }
}

/// Sends again and keeps it as a dead letter.
#[derive(Debug)]
pub(super) struct KeepsWhatIsRedriven(pub(super) SharedQueue);

#[async_trait]
impl Twist for KeepsWhatIsRedriven {
    fn honest(&self) -> &SharedQueue {
        &self.0
    }
    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        let again = messages(&self.0, queue, letters).await?.into_iter();
        self.0
            .send(
                queue,
                again
                    .map(|message| Message {
                        deduplication: None,
                        ..message
                    })
                    .collect(),
            )
            .await
    }
}

/// Says that they are removed.
#[derive(Debug)]
pub(super) struct PurgesNothing(pub(super) SharedQueue);

#[async_trait]
impl Twist for PurgesNothing {
    fn honest(&self) -> &SharedQueue {
        &self.0
    }
    async fn purge(&self, queue: &str, _: &[LetterId]) -> Result<Receipt> {
        self.0.purge(queue, &[]).await
    }
}

/// Gives the oldest, wherever one wants to go on.
#[derive(Debug)]
pub(super) struct BeginsAtTheOldest(pub(super) SharedQueue);

#[async_trait]
impl Twist for BeginsAtTheOldest {
    fn honest(&self) -> &SharedQueue {
        &self.0
    }
    async fn dead_letters(
        &self,
        queue: &str,
        _: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        self.0.dead_letters(queue, None, letters_max).await
    }
}

/// Knows the place of a letter only while that is there.
#[derive(Debug)]
pub(super) struct BeginsAnewBehindWhatIsGone(pub(super) SharedQueue);

#[async_trait]
impl Twist for BeginsAnewBehindWhatIsGone {
    fn honest(&self) -> &SharedQueue {
        &self.0
    }
    async fn dead_letters(
        &self,
        queue: &str,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        let all = self.0.dead_letters(queue, None, usize::MAX).await?;
        let known = after.filter(|after| all.iter().any(|letter| letter.id == *after));
        self.0.dead_letters(queue, known, letters_max).await
    }
}
