//! Which node this process is, and which others are dead: for services over transactions that
//! assign each job to one process.
//!
//! Membership alone does not prove that a node is dead. A view may be older than a node that has
//! just joined, and a lost member may have commits on their way. The node's row proves it, once its
//! log is sealed and resolved.
//!
//! Invariants
//! - A dead node commits nothing more.

use crate::{Engine, Error, Result, model::NodeId, storage::node_registry};

impl Engine {
    /// The present node of this process; it changes with every restart. Errors: `Unavailable` while
    /// there is none.
    pub fn node(&self) -> Result<NodeId> {
        let node = self.calls.serving.node()?;
        self.calls.cluster.may_answer(&node)?;
        Ok(node.id)
    }

    /// Whether no transaction of `node` can commit any more.
    ///
    /// Errors: `Unavailable`, also while it is no longer a member and its log is not resolved yet.
    pub async fn is_gone(&self, node: NodeId) -> Result<bool> {
        if self
            .calls
            .cluster
            .membership
            .members()
            .nodes
            .contains_key(&node)
        {
            return Ok(false);
        }
        let serving = self.calls.serving.node()?;
        if node_registry::is_live(&serving.store, node).await? {
            let say = format!("node {} is missed, and its log is not resolved yet", node.0);
            return Err(Error::unavailable(&say));
        }
        Ok(true)
    }

    /// Waits until the membership view differs from `view`; returns the new view. Zero: waits until
    /// there are members.
    pub async fn members_changed(&self, view: u64) -> u64 {
        self.calls.cluster.membership.changed(view).await.view
    }
}
