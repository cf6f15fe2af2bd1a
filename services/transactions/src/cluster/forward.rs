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
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    attempts::open_attempts::Found,
    broken::Broken,
    cluster::{
        membership::Address,
        peers::{Answer, Message, NoAnswer, Unheard},
    },
    effects::Effect,
    engine::Core,
    model::{After, Attempt, Call, Committed, Key, NodeId, Outcome, Shown, TransactionId},
    node::Node,
    storage::node_registry,
};

/// A call on its way to the node of its transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Forwarded {
    id: TransactionId,
    attempt: Option<Attempt>,
    asked: Asked,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Asked {
    Get(Key),
    Write(Key, Option<Bytes>),
    Send(Effect, Option<u32>),
    Commit,
    Abort,
    Status,
}

/// What its node says.
pub(crate) type Reply = Result<Said, Refused>;

/// To each call what it asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Said {
    Value(Option<Bytes>),
    Done,
    Committed(Option<(crate::model::Version, crate::model::Position)>),
    Outcome(u8),
}

/// An error as it is sent: which, and what it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused {
    kind: u8,
    outcome: Option<u8>,
    why: String,
}

const OUTCOMES: [Outcome; 6] = [
    Outcome::Open,
    Outcome::Committing,
    Outcome::Committed,
    Outcome::Aborted,
    Outcome::Expired,
    Outcome::BegunAnew,
];

fn number(outcome: Outcome) -> u8 {
    OUTCOMES
        .iter()
        .position(|other| *other == outcome)
        .expect("all are listed") as u8
}

fn outcome(number: u8) -> Result<Outcome> {
    OUTCOMES
        .get(usize::from(number))
        .copied()
        .ok_or_else(not_understood)
}

fn not_understood() -> Error {
    Error::unavailable("a node answers what was not asked")
}

/// What is an error at its owner is the same error here.
const INVALID: &str = "the node of the transaction refuses it";

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Invalid(_) => 0,
            Error::TooLarge(_) => 1,
            Error::TooManyOpen => 2,
            Error::TooMuchBuffered => 3,
            Error::NoSuchTransaction => 4,
            Error::NoSuchQueue => 5,
            Error::NoSuchFunction => 6,
            Error::TransactionFinished(_) => 7,
            Error::NoValidVersion => 8,
            Error::Conflict => 9,
            Error::SnapshotTooOld => 10,
            Error::Expired => 11,
            Error::OutcomeUnknown => 12,
            Error::Unavailable(_) => 13,
            Error::NoRoom => 14,
            Error::Corrupt(_) => 15,
            Error::WrongObjects(_) => 16,
        };
        let (outcome, why) = match error {
            Error::TransactionFinished(outcome) => (Some(number(outcome)), String::new()),
            Error::Unavailable(why) | Error::Corrupt(why) | Error::WrongObjects(why) => {
                (None, why.to_string())
            }
            _ => (None, String::new()),
        };
        Self { kind, outcome, why }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        let Refused {
            kind,
            outcome: number,
            why,
        } = refused;
        match kind {
            0 => Self::Invalid(INVALID),
            1 => Self::TooLarge(INVALID),
            2 => Self::TooManyOpen,
            3 => Self::TooMuchBuffered,
            4 => Self::NoSuchTransaction,
            5 => Self::NoSuchQueue,
            6 => Self::NoSuchFunction,
            7 => match number.map(outcome) {
                Some(Ok(outcome)) => Self::TransactionFinished(outcome),
                _ => not_understood(),
            },
            8 => Self::NoValidVersion,
            9 => Self::Conflict,
            10 => Self::SnapshotTooOld,
            11 => Self::Expired,
            12 => Self::OutcomeUnknown,
            14 => Self::NoRoom,
            15 => Self::Corrupt(why.into()),
            16 => Self::WrongObjects(why.into()),
            _ => Self::Unavailable(why.into()),
        }
    }
}

impl Asked {
    /// Whether nobody but the transaction's node can do it.
    fn is_only_there(&self) -> bool {
        matches!(self, Self::Get(_) | Self::Write(..) | Self::Send(..))
    }

    /// Whether it changes what the transaction comes to, if it is done late.
    fn must_not_come_late(&self) -> bool {
        matches!(self, Self::Write(..) | Self::Send(..))
    }

    /// What its client is told where the transaction's node lives and does not do it: the same as by that node itself.
    fn refused(&self, why: NoAnswer) -> Error {
        match (self, why) {
            (_, NoAnswer::TooMuchBuffered) => Error::TooMuchBuffered,
            (Self::Commit | Self::Abort, _) => Error::OutcomeUnknown,
            (_, why) => Error::unavailable(&why.to_string()),
        }
    }
}

impl Forwarded {
    fn new(call: &Call, asked: Asked) -> Self {
        Self {
            id: call.id.clone(),
            attempt: call.attempt,
            asked,
        }
    }

    pub(crate) fn commit(call: &Call) -> Self {
        Self::new(call, Asked::Commit)
    }
}

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

/// Another node, whose transaction is asked about.
#[derive(Debug)]
pub(crate) struct Owner {
    node: NodeId,
    address: Address,
}

impl Core {
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
        self.owner_of(&node, attempt).await
    }

    /// The node of an attempt; none: it is gone. One that has joined is heard of as a member here a little later: until then
    /// its row, which is there before its first begin, says where it is reached.
    pub(crate) async fn owner_of(&self, node: &Node, attempt: Attempt) -> Result<Option<Owner>> {
        let owner = |address| Owner {
            node: attempt.node,
            address,
        };
        if let Some(address) = self.membership.members().nodes.remove(&attempt.node) {
            return Ok(Some(owner(address)));
        }
        // Whoever is no member any more knows of none.
        self.may_answer(node)?;
        let was_member = self.cluster.lock().neighbours.was_member(attempt.node);
        if was_member || self.context.config.is_broken(Broken::TakesTheNewForGone) {
            return Ok(None);
        }
        Ok(node_registry::address_of(&node.store, attempt.node)
            .await?
            .map(owner))
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
            Said::Outcome(number) => Ok(outcome(number)?),
            _ => Err(Failed::Unreachable(not_understood())),
        }
    }

    /// A call from another node. It goes no further.
    pub(crate) async fn serve_forwarded(self: &Arc<Self>, forwarded: Forwarded) -> Reply {
        let Forwarded { id, attempt, asked } = forwarded;
        let call = Call { id, attempt };
        self.serve_asked(&call, asked).await.map_err(Refused::from)
    }

    async fn serve_asked(self: &Arc<Self>, call: &Call, asked: Asked) -> Result<Said> {
        match asked {
            Asked::Get(key) => {
                let Shown { value, point } = self.get(call, &key).await?;
                self.serving.node()?.store.externalize(point).await?;
                Ok(Said::Value(value))
            }
            Asked::Write(key, value) => self.write(call, key, value).await.map(|()| Said::Done),
            Asked::Send(effect, place) => self.send(call, effect, place).await.map(|()| Said::Done),
            Asked::Commit => {
                let Committed { after } = self.commit(call).await?;
                Ok(Said::Committed(
                    after.map(|after| (after.version, after.position)),
                ))
            }
            Asked::Abort => self.abort(call).await.map(|()| Said::Done),
            Asked::Status => {
                self.end_if_begun_elsewhere(call).await?;
                let Shown { value, point } = self.status(call).await?;
                self.serving.node()?.store.externalize(point).await?;
                Ok(Said::Outcome(number(value)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_the_same_on_the_other_side() {
        let finished = OUTCOMES.map(Error::TransactionFinished);
        let others = [
            Error::Invalid(INVALID),
            Error::TooLarge(INVALID),
            Error::TooManyOpen,
            Error::TooMuchBuffered,
            Error::NoSuchTransaction,
            Error::NoSuchQueue,
            Error::NoSuchFunction,
            Error::NoValidVersion,
            Error::Conflict,
            Error::SnapshotTooOld,
            Error::Expired,
            Error::OutcomeUnknown,
            Error::unavailable("why"),
            Error::NoRoom,
            Error::Corrupt("where".into()),
            Error::WrongObjects("why".into()),
        ];
        for error in finished.into_iter().chain(others) {
            assert_eq!(Error::from(Refused::from(error.clone())), error);
        }
    }
}
