//! Which node owns an attempt: calls are forwarded there, because an open attempt exists only in
//! its owner's memory.

use crate::{
    Result,
    broken::Broken,
    cluster::Cluster,
    model::{Address, Attempt, NodeId},
    node::Node,
    storage::node_registry,
};

/// Another node that owns a transaction.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) node: NodeId,
    pub(crate) address: Address,
}

impl Cluster {
    /// The node that owns an attempt; `None` if it is gone. A node that has just joined appears as
    /// a member here a little later. Until then its row, written before its first begin, holds its
    /// address.
    pub(crate) async fn owner_of(&self, node: &Node, attempt: Attempt) -> Result<Option<Owner>> {
        let owner = |address| Owner {
            node: attempt.node,
            address,
        };
        if let Some(address) = self.membership.members().nodes.remove(&attempt.node) {
            return Ok(Some(owner(address)));
        }
        // A node that is no longer a member knows of none.
        self.may_answer(node)?;
        let was_member = self.lock().neighbours.was_member(attempt.node);
        if was_member || self.context.breaks(Broken::TakesTheNewForGone) {
            return Ok(None);
        }
        Ok(node_registry::address_of(&node.store, attempt.node)
            .await?
            .map(owner))
    }
}
