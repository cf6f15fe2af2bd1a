//! Q5, Q10, Q13 and Q14, broken for operators.

use crate::{
    QueueAdmin, Receipt, Result,
    decorate::QueueAdminDecorator,
    decorates,
    queue::{Backlog, DeadLetter, LetterId, Message, SharedQueue, SharedQueueAdmin},
};

/// The messages of those of `letters` that exist.
async fn messages(
    admin: &SharedQueueAdmin,
    name: &str,
    letters: &[LetterId],
) -> Result<Vec<Message>> {
    let all = admin
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

/// Sends again as any sender does, under an id that is still remembered (Q13).
#[derive(Debug)]
pub(super) struct SendsAgainWhatIsKnown {
    pub(super) admin: SharedQueueAdmin,
    pub(super) queue: SharedQueue,
}

decorates!(SendsAgainWhatIsKnown, dyn QueueAdmin, admin);

impl QueueAdminDecorator for SendsAgainWhatIsKnown {
    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        self.queue
            .send(queue, messages(&self.admin, queue, letters).await?)
            .await?;
        self.admin.purge(queue, letters).await
    }
}

/// Sends a letter again and keeps it as a dead letter (Q13).
#[derive(Debug)]
pub(super) struct KeepsWhatIsRedriven {
    pub(super) admin: SharedQueueAdmin,
    pub(super) queue: SharedQueue,
}

decorates!(KeepsWhatIsRedriven, dyn QueueAdmin, admin);

impl QueueAdminDecorator for KeepsWhatIsRedriven {
    async fn redrive(&self, queue: &str, letters: &[LetterId]) -> Result<Receipt> {
        let again = messages(&self.admin, queue, letters).await?.into_iter();
        self.queue
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

/// Removes no letter (Q13).
#[derive(Debug)]
pub(super) struct PurgesNothing(pub(super) SharedQueueAdmin);

decorates!(PurgesNothing, dyn QueueAdmin, 0);

impl QueueAdminDecorator for PurgesNothing {
    async fn purge(&self, queue: &str, _: &[LetterId]) -> Result<Receipt> {
        self.0.purge(queue, &[]).await
    }
}

/// Starts every page at the oldest letter (Q13).
#[derive(Debug)]
pub(super) struct BeginsAtTheOldest(pub(super) SharedQueueAdmin);

decorates!(BeginsAtTheOldest, dyn QueueAdmin, 0);

impl QueueAdminDecorator for BeginsAtTheOldest {
    async fn dead_letters(
        &self,
        queue: &str,
        _: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        self.0.dead_letters(queue, None, letters_max).await
    }
}

/// Starts a page after a missing letter at the oldest one (Q13).
#[derive(Debug)]
pub(super) struct BeginsAnewBehindWhatIsGone(pub(super) SharedQueueAdmin);

decorates!(BeginsAnewBehindWhatIsGone, dyn QueueAdmin, 0);

impl QueueAdminDecorator for BeginsAnewBehindWhatIsGone {
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

/// Keeps no dead letters (Q5).
#[derive(Debug)]
pub(super) struct DropsPoison(pub(super) SharedQueueAdmin);

decorates!(DropsPoison, dyn QueueAdmin, 0);

impl QueueAdminDecorator for DropsPoison {
    async fn dead_letters(
        &self,
        _: &str,
        _: Option<LetterId>,
        _: usize,
    ) -> Result<Vec<DeadLetter>> {
        Ok(Vec::new())
    }
}

/// Blocks groups silently (Q5).
#[derive(Debug)]
pub(super) struct RaisesNoAlarm(pub(super) SharedQueueAdmin);

decorates!(RaisesNoAlarm, dyn QueueAdmin, 0);

impl QueueAdminDecorator for RaisesNoAlarm {
    async fn blocked(&self, _: &str) -> Result<Vec<DeadLetter>> {
        Ok(Vec::new())
    }
}

/// Shows messages by delivering them (Q14).
#[derive(Debug)]
pub(super) struct ShowsByDelivering {
    pub(super) admin: SharedQueueAdmin,
    pub(super) queue: SharedQueue,
}

decorates!(ShowsByDelivering, dyn QueueAdmin, admin);

impl QueueAdminDecorator for ShowsByDelivering {
    async fn waiting(&self, queue: &str, messages_max: usize) -> Result<Vec<DeadLetter>> {
        let shown = self.admin.waiting(queue, messages_max).await?;
        let given = self.queue.receive(queue, 1).await?;
        for delivery in &given {
            self.queue
                .release(queue, &delivery.handle, 0, "looked at")
                .await?;
        }
        Ok(shown)
    }
}

/// Leaves out messages that a consumer has (Q14).
#[derive(Debug)]
pub(super) struct ShowsWhatIsUntried(pub(super) SharedQueueAdmin);

decorates!(ShowsWhatIsUntried, dyn QueueAdmin, 0);

impl QueueAdminDecorator for ShowsWhatIsUntried {
    async fn waiting(&self, queue: &str, messages_max: usize) -> Result<Vec<DeadLetter>> {
        let mut shown = self.0.waiting(queue, messages_max).await?;
        shown.retain(|message| message.attempts == 0);
        Ok(shown)
    }
}

/// Counts messages that a consumer has as done (Q10).
#[derive(Debug)]
pub(super) struct CountsWhatItGives {
    pub(super) admin: SharedQueueAdmin,
    pub(super) queue: SharedQueue,
}

decorates!(CountsWhatItGives, dyn QueueAdmin, admin);

impl QueueAdminDecorator for CountsWhatItGives {
    async fn backlog(&self, queue: &str) -> Result<Backlog> {
        let honest = self.admin.backlog(queue).await?;
        let given = self.queue.receive(queue, 1).await?;
        for delivery in &given {
            self.queue
                .release(queue, &delivery.handle, 0, "looked at")
                .await?;
        }
        Ok(Backlog {
            messages: given.len() as u64,
            ..honest
        })
    }
}

/// Counts no dead letters (Q10).
#[derive(Debug)]
pub(super) struct CountsNoDeadLetters(pub(super) SharedQueueAdmin);

decorates!(CountsNoDeadLetters, dyn QueueAdmin, 0);

impl QueueAdminDecorator for CountsNoDeadLetters {
    async fn backlog(&self, queue: &str) -> Result<Backlog> {
        Ok(Backlog {
            dead_letters: 0,
            ..self.0.backlog(queue).await?
        })
    }
}
