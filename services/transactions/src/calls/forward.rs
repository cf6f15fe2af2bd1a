//! Any node takes any call (T10): one for a transaction of another node goes there, one hop and no further.
//!
//! Whose a transaction is says its attempt, which a client carries and a generated id contains; of a name without an attempt
//! its row says it. A node that says nothing, whatever it is asked, may be gone, or not. What it held of the transaction is only there, so
//! a read or a write ends it; what became of a commit is found out. Both by the row, which is closed first ([`outcome`](crate::calls::status)):
//! that is safe however alive the node is, and nobody waits until it is missed.
//!
//! A node that lives is waited for, and what it refuses is refused here, under the same name: nothing ends. But a write that is
//! waited for no longer, while its copy may still be on its way, ends its transaction: once its client hears of it, that client may
//! write the same key anew, by whichever node, and the copy must not come after that. A number for each write would tell the owner
//! which is older only among the copies of one node.
//!
//! What is answered from here is durable already, so it rests on nothing.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Error, Result,
    attempts::open_attempts::Found,
    broken::Broken,
    calls::Calls,
    cluster::{
        forwarded::{self, Asked, Forwarded, Said, not_understood},
        messages::{Answer, Message},
        owner::Owner,
        peers::Unheard,
    },
    effects::Effect,
    model::{After, Call, Committed, Key, Outcome, Shown},
};

/// What a call comes to that was passed on and not done.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Its node says nothing: its row does.
    Unreachable(Error),
    /// Its node lives.
    Refused(Error),
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Unreachable(error) | Failed::Refused(error) => error,
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl Calls {
    /// Whose call this is; none: this node's, or of one that is gone. Errors: `Unavailable` also if this node is no member.
    pub(crate) async fn owner_elsewhere(self: &Arc<Self>, call: &Call) -> Result<Option<Owner>> {
        if self.context.is_alone() || !matches!(self.find(call), Found::Nothing) {
            return Ok(None);
        }
        let node = self.serving.node()?;
        let attempt = match (call.attempt, call.id.generated()) {
            (Some(attempt), _) => Some(attempt),
            (None, Some(generated)) => Some(generated.attempt),
            (None, None) => node
                .store
                .decision(&call.id)
                .await?
                .0
                .map(|decision| decision.attempt),
        };
        let Some(attempt) = attempt.filter(|attempt| attempt.node != node.id) else {
            return Ok(None);
        };
        self.cluster.owner_of(&node, attempt).await
    }

    async fn forward(
        self: &Arc<Self>,
        owner: &Owner,
        call: &Call,
        asked: Asked,
    ) -> Result<Said, Failed> {
        let node = self.serving.node()?;
        let message = Message::Forward(Forwarded::new(call, asked));
        let answer = self
            .cluster
            .ask_at_length(&node, owner.node, &owner.address, &message)
            .await;
        let Message::Forward(Forwarded { asked, .. }) = message else {
            unreachable!("it was made here")
        };
        let outlives_late_writes = self.context.config.is_broken(Broken::OutlivesLateWrites);
        match answer {
            Ok(Answer::Reply(reply)) => reply.map_err(|refused| Failed::Refused(refused.into())),
            Ok(_) => Err(Failed::Unreachable(not_understood())),
            Err(Unheard::Late(_)) if asked.must_not_come_late() && !outlives_late_writes => Err(
                Failed::Refused(Box::pin(self.ended_with_its_node(owner, call)).await),
            ),
            Err(Unheard::Refused(why) | Unheard::Late(why)) => {
                Err(Failed::Refused(asked.refused(why)))
            }
            Err(Unheard::Silence(Error::Unavailable(_))) if asked.is_only_there() => Err(
                Failed::Refused(Box::pin(self.ended_with_its_node(owner, call)).await),
            ),
            Err(Unheard::Silence(Error::Unavailable(why))) => {
                Err(Failed::Unreachable(Error::Unavailable(why)))
            }
            Err(Unheard::Silence(error)) => Err(Failed::Refused(error)),
        }
    }

    /// What it held was only there, so whoever asks had better begin again, and need not wait until the node is missed.
    async fn ended_with_its_node(self: &Arc<Self>, owner: &Owner, call: &Call) -> Error {
        tracing::debug!(
            ?owner,
            "the node of a transaction does not answer, or not in time: the transaction ends"
        );
        match self.status(call).await {
            Ok(outcome) => Error::TransactionFinished(outcome.value),
            Err(error) => error,
        }
    }

    pub(crate) async fn forward_get(
        self: &Arc<Self>,
        owner: &Owner,
        call: &Call,
        key: &Key,
    ) -> Result<Shown<Option<Bytes>>> {
        match self.forward(owner, call, Asked::Get(key.clone())).await? {
            Said::Value(value) => Ok(Shown::durable(value)),
            _ => Err(not_understood()),
        }
    }

    pub(crate) async fn forward_write(
        self: &Arc<Self>,
        owner: &Owner,
        call: &Call,
        key: Key,
        value: Option<Bytes>,
    ) -> Result<()> {
        self.forward(owner, call, Asked::Write(key, value)).await?;
        Ok(())
    }

    pub(crate) async fn forward_send(
        self: &Arc<Self>,
        owner: &Owner,
        call: &Call,
        effect: Effect,
        place: Option<u32>,
    ) -> Result<()> {
        self.forward(owner, call, Asked::Send(effect, place))
            .await?;
        Ok(())
    }

    pub(crate) async fn forward_commit(
        self: &Arc<Self>,
        owner: &Owner,
        call: &Call,
    ) -> Result<Committed, Failed> {
        match self.forward(owner, call, Asked::Commit).await? {
            Said::Committed(after) => Ok(Committed {
                after: after.map(|(version, position)| After { version, position }),
            }),
            _ => Err(Failed::Unreachable(not_understood())),
        }
    }

    pub(crate) async fn forward_abort(
        self: &Arc<Self>,
        owner: &Owner,
        call: &Call,
    ) -> Result<(), Failed> {
        self.forward(owner, call, Asked::Abort).await.map(drop)
    }

    pub(crate) async fn forward_status(
        self: &Arc<Self>,
        owner: &Owner,
        call: &Call,
    ) -> Result<Outcome, Failed> {
        match self.forward(owner, call, Asked::Status).await? {
            Said::Outcome(number) => Ok(forwarded::outcome(number)?),
            _ => Err(Failed::Unreachable(not_understood())),
        }
    }
}
