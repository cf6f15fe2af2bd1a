//! Which node owns an attempt.

use crate::{
    Result,
    broken::Broken,
    cluster::Cluster,
    model::{Address, Attempt, NodeId},
    node::Node,
    storage::node_registry,
};

/// Another node, whose transaction is asked about.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) node: NodeId,
    pub(crate) address: Address,
}

impl Cluster {
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
        let was_member = self.lock().neighbours.was_member(attempt.node);
        if was_member || self.context.config.is_broken(Broken::TakesTheNewForGone) {
            return Ok(None);
        }
        Ok(node_registry::address_of(&node.store, attempt.node)
            .await?
            .map(owner))
    }
}
