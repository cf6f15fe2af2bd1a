//! Which node this process is, and which others are gone: for services over transactions that give each work to one process.
//!
//! Membership alone does not say that somebody is gone: a view may be older than who has just joined, and a member that was
//! lost may have commits on their way. The row of a node says it, once its log is sealed and resolved.
//!
//! Invariants
//! - Of a node that is gone nothing commits that had not by then.

use crate::{Engine, Error, Result, model::NodeId, storage::node_registry};

impl Engine {
    /// The node that this process is now: another one whenever it has started over. Errors: `Unavailable` while it is none.
    pub fn node(&self) -> Result<NodeId> {
        let node = self.core.serving.node()?;
        self.core.cluster.may_answer(&node)?;
        Ok(node.id)
    }

    /// Whether nothing more commits of what `node` has begun.
    ///
    /// Errors: `Unavailable`, also while it is no member any more, and nobody has seen to what it left.
    pub async fn is_gone(&self, node: NodeId) -> Result<bool> {
        if self
            .core
            .cluster
            .membership
            .members()
            .nodes
            .contains_key(&node)
        {
            return Ok(false);
        }
        let serving = self.core.serving.node()?;
        if node_registry::is_live(&serving.store, node).await? {
            let say = format!("node {} is missed, and its log is not resolved yet", node.0);
            return Err(Error::unavailable(&say));
        }
        Ok(true)
    }

    /// Waits until the members are others than in `view`; says which view that is. Zero: until there are some.
    pub async fn members_changed(&self, view: u64) -> u64 {
        self.core.cluster.membership.changed(view).await.view
    }
}
