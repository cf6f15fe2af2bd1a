//! Any node accepts any call (T10). A call for a transaction of another node is forwarded there,
//! over one hop only.
//!
//! The attempt number identifies the node that owns the transaction. Clients send it with each
//! call, and generated ids contain it. For a client id without an attempt number, the decision row
//! names the owner.
//!
//! An owner that does not answer may be dead or alive. The state it held of the transaction exists
//! only there, so a read or a write ends the transaction. The outcome of a commit is looked up.
//! Both go through the row, which is closed first ([`outcome`](crate::calls::status)). That is safe
//! even if the node is alive, and no caller waits until its lease expires.
//!
//! A node that is alive is waited for. Its refusal is returned here under the same name, and the
//! transaction stays open. A write that times out ends its transaction, because a copy may still be
//! on its way. Otherwise the client could write the same key again through any node, and the old
//! copy might arrive after that. A sequence number for each write would order only the copies from
//! one node.
//!
//! Answers from here are durable already, so they depend on nothing.

use std::sync::Arc;

use crate::{
    Error, Result,
    attempts::open_attempts::AttemptState,
    broken::Broken,
    calls::Calls,
    cluster::{
        forwarded::{Asked, Said, not_understood},
        messages::{Answer, Message},
        peers::Unanswered,
    },
    model::{Address, Call, NodeId},
    node::Node,
    storage::node_registry,
};

/// Another node that owns a transaction, and its address.
type Owner = (NodeId, Address);

impl Calls {
    /// The owner of this call's transaction. `None` if that is this node or a dead one. Errors:
    /// `Unavailable`, also if this node is not a member.
    async fn owner_elsewhere(self: &Arc<Self>, call: &Call) -> Result<Option<Owner>> {
        if self.context.is_alone() || !matches!(self.find(call), AttemptState::Unknown) {
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
        match attempt.filter(|attempt| attempt.node != node.id) {
            Some(attempt) => self.owner_of(&node, attempt.node).await,
            None => Ok(None),
        }
    }

    /// The address of a node that owns transactions; `None` if it is gone. A node that has just
    /// joined appears as a member here a little later. Until then its row, written before its first
    /// begin, holds its address.
    pub(crate) async fn owner_of(&self, node: &Node, owner: NodeId) -> Result<Option<Owner>> {
        let cluster = &self.cluster;
        if let Some(address) = cluster.membership.members().nodes.remove(&owner) {
            return Ok(Some((owner, address)));
        }
        // A node that is no longer a member knows of none.
        cluster.may_answer(node)?;
        let was_member = cluster.lock().neighbours.was_member(owner);
        if was_member || self.context.breaks(Broken::TakesTheNewForGone) {
            return Ok(None);
        }
        let address = node_registry::address_of(&node.store, owner).await?;
        Ok(address.map(|address| (owner, address)))
    }

    /// The answer of another node that owns this call's transaction. `None`: the call is done
    /// here, also because the owner of a commit, an abort or a status does not answer. The row
    /// answers instead: a status closes an undecided row, which is safe even if the node is alive.
    pub(crate) async fn elsewhere(
        self: &Arc<Self>,
        call: &Call,
        asked: impl FnOnce() -> Asked,
    ) -> Result<Option<Said>> {
        let Some(owner) = self.owner_elsewhere(call).await? else {
            return Ok(None);
        };
        // Boxed: its future is large, and most calls are of transactions of this node.
        let said = Box::pin(self.forward(&owner, call, asked())).await?;
        if said.is_none() {
            tracing::debug!(
                ?owner,
                "the owner of a transaction does not answer; its decision row does"
            );
        }
        Ok(said)
    }

    /// The owner's answer. `None` if it does not answer, and the row decides.
    pub(crate) async fn forward(
        self: &Arc<Self>,
        owner: &Owner,
        call: &Call,
        asked: Asked,
    ) -> Result<Option<Said>> {
        let node = self.serving.node()?;
        let message = Message::Forward(call.clone(), asked);
        let answer = self
            .cluster
            .ask_at_length(&node, owner.0, &owner.1, &message)
            .await;
        let Message::Forward(_, asked) = message else {
            unreachable!("it was made here")
        };
        let outlives_late_writes = self.context.breaks(Broken::OutlivesLateWrites);
        match answer {
            Ok(Answer::Reply(reply)) => reply.map(Some).map_err(Error::from),
            Ok(_) if asked.is_only_there() => Err(not_understood()),
            Err(Unanswered::Late(_)) if asked.must_not_come_late() && !outlives_late_writes => {
                Err(self.ended_with_its_node(owner, call).await)
            }
            Err(Unanswered::Refused(why) | Unanswered::Late(why)) => Err(asked.refused(why)),
            Err(Unanswered::Silence(Error::Unavailable(_))) if asked.is_only_there() => {
                Err(self.ended_with_its_node(owner, call).await)
            }
            Ok(_) | Err(Unanswered::Silence(Error::Unavailable(_))) => Ok(None),
            Err(Unanswered::Silence(error)) => Err(error),
        }
    }

    /// The transaction's state was only there. The caller should begin again without waiting for
    /// the node's lease to expire.
    async fn ended_with_its_node(self: &Arc<Self>, owner: &Owner, call: &Call) -> Error {
        tracing::debug!(
            ?owner,
            "the owner of a transaction does not answer in time: the transaction ends"
        );
        match self.status(call).await {
            Ok(outcome) => Error::TransactionFinished(outcome.value),
            Err(error) => error,
        }
    }
}
