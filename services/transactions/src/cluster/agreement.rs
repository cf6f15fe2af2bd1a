//! Agreement on collection: this node's horizon, and the minimum over all nodes.
//!
//! A version superseded before the agreed horizon is needed by no open transaction on any node, so
//! it may be collected (T6).

use std::sync::Arc;

use crate::{
    Result,
    broken::Broken,
    cluster::Cluster,
    model::NodeId,
    node::Node,
    storage::{
        frontier::Frontier,
        node_registry::{self, NodeRow},
    },
};

impl Cluster {
    /// The agreed minimum frontier of all open transactions, here and elsewhere.
    pub(crate) fn horizon(&self, node: &Node) -> Frontier {
        let own = self.own_horizon(node);
        if self.context.is_alone() {
            return own;
        }
        self.cache.lock().agreed.clone()
    }

    /// The minimum frontier of this node's open transactions; the applied frontier if there is
    /// none.
    pub(crate) fn own_horizon(&self, node: &Node) -> Frontier {
        let attempts = self.attempts.lock();
        let through = node.log.decided_through();
        let mut cache = self.cache.lock();
        if through > cache.applied.through(node.id) {
            cache.advance(node.id, through);
        }
        match attempts.horizon() {
            Some((applied, _)) if !self.context.breaks(Broken::CollectsAboveHorizon) => {
                (**applied).clone()
            }
            _ => (*cache.applied).clone(),
        }
    }

    /// The horizon that all nodes could agree on now; `None` if the state of a counted node is
    /// unknown.
    fn agreeable(&self, node: &Node) -> Option<Frontier> {
        let own = self.own_horizon(node);
        if self.context.breaks(Broken::CollectsByOwnHorizon) {
            return Some(own);
        }
        let others = self
            .lock()
            .neighbours
            .minimum(node.id, self.context.config.mutant)?;
        Some(own.minimum(&others))
    }

    /// The horizon that the members could agree on now.
    pub(crate) fn agreeable_to_members(&self, node: &Node) -> Option<Frontier> {
        let own = self.own_horizon(node);
        let others = self.others(node);
        let others = self
            .lock()
            .neighbours
            .minimum_of(others.keys(), self.context.config.mutant)?;
        Some(own.minimum(&others))
    }

    /// The slot of the sequencer's log below which no node needs anything.
    pub(crate) async fn agreed_of_sequencer(&self, node: &Node) -> Result<u64> {
        let through = |applied: &Frontier| applied.through(NodeId::SEQUENCER);
        let agreed = through(&self.cache.lock().agreed);
        let is_more = self
            .agreeable_to_members(node)
            .is_some_and(|applied| through(&applied) > agreed);
        if is_more {
            self.count(node).await?;
        }
        Ok(through(&self.cache.lock().agreed))
    }

    /// Counts the live nodes. Their agreement also holds for nodes that join later. Errors: this
    /// node does not count any more.
    pub(crate) async fn count(&self, node: &Node) -> Result<()> {
        // The agreement of counted nodes before the list is read. A node that joins during the read
        // is not in the list, and may begin below what the others have sent since.
        let before = self.agreeable(node);
        let first = self.lock().neighbours.first_uncounted;
        let rows = node_registry::list_from(&node.store, first).await?;
        let is_live = |row: &NodeRow| row.node == node.id && !row.is_resolved;
        if !rows.iter().any(is_live) {
            node.store.fence();
            node.store.check_fence()?;
        }
        self.lock().neighbours.count(&rows);
        if let (Some(before), Some(after)) = (before, self.agreeable(node)) {
            let agreed = before.minimum(&after);
            let mut cache = self.cache.lock();
            cache.agreed.merge(&agreed);
            // Long before any deletion from a slot is dropped, all nodes apply the slot.
            let sequenced = agreed.through(NodeId::SEQUENCER);
            Arc::make_mut(&mut cache.dropped).advance(NodeId::SEQUENCER, sequenced);
        }
        Ok(())
    }
}
