//! What every node agrees to need no longer: the horizon of this one, and the least of all.

use std::sync::Arc;

use crate::{
    Result,
    broken::Broken,
    cluster::Cluster,
    model::NodeId,
    node::Node,
    storage::{
        frontier::Heard,
        node_registry::{self, NodeRow},
    },
};

impl Cluster {
    /// What all who run, here and elsewhere, had heard when they began, as far as is agreed on.
    pub(crate) fn horizon(&self, node: &Node) -> Heard {
        let own = self.own_horizon(node);
        if self.context.is_alone() {
            return own;
        }
        self.cache.lock().agreed.clone()
    }

    /// What all who run here had heard when they began; what is heard now, if nobody runs.
    pub(crate) fn own_horizon(&self, node: &Node) -> Heard {
        let attempts = self.attempts.lock();
        let through = node.log.decided_through();
        let mut cache = self.cache.lock();
        if through > cache.heard.through(node.id) {
            cache.advance(node.id, through);
        }
        match attempts.horizon() {
            Some((heard, _)) if !self.context.config.is_broken(Broken::CollectsAboveHorizon) => {
                (**heard).clone()
            }
            _ => (*cache.heard).clone(),
        }
    }

    /// What everybody can agree on now; none: of some that count nothing is known.
    fn agreeable(&self, node: &Node) -> Option<Heard> {
        let own = self.own_horizon(node);
        if self.context.config.is_broken(Broken::CollectsByOwnHorizon) {
            return Some(own);
        }
        let others = self
            .lock()
            .neighbours
            .minimum(node.id, self.context.config.broken)?;
        Some(own.minimum(&others))
    }

    /// What the members could agree on now.
    pub(crate) fn agreeable_to_members(&self, node: &Node) -> Option<Heard> {
        let own = self.own_horizon(node);
        let others = self.others(node);
        let others = self
            .lock()
            .neighbours
            .minimum_of(others.keys(), self.context.config.broken)?;
        Some(own.minimum(&others))
    }

    /// Up to which slot of the sequencer's log everybody agrees to need nothing older.
    pub(crate) async fn agreed_of_sequencer(&self, node: &Node) -> Result<u64> {
        let through = |heard: &Heard| heard.through(NodeId::SEQUENCER);
        let agreed = through(&self.cache.lock().agreed);
        let is_more = self
            .agreeable_to_members(node)
            .is_some_and(|heard| through(&heard) > agreed);
        if is_more {
            self.count(node).await?;
        }
        Ok(through(&self.cache.lock().agreed))
    }

    /// Counts who lives. Whatever they agree on holds for all who join later, too. Errors: this node does not count any more.
    pub(crate) async fn count(&self, node: &Node) -> Result<()> {
        // What those who count had heard before the list is read: who joins while it is on its way is not in it, and may
        // begin below what others say since.
        let before = self.agreeable(node);
        let first = self.lock().neighbours.first_uncounted();
        let rows = node_registry::list_from(&node.store, first).await?;
        let is_live = |row: &NodeRow| row.node == node.id && !row.is_resolved;
        if !rows.iter().any(is_live) {
            node.store.fall();
            node.store.standing()?;
        }
        self.lock().neighbours.count(&rows);
        if let (Some(before), Some(after)) = (before, self.agreeable(node)) {
            let agreed = before.minimum(&after);
            let mut cache = self.cache.lock();
            cache.agreed.merge(&agreed);
            // Long before any deletion goes that a slot has decided: all hear of it.
            let sequenced = agreed.through(NodeId::SEQUENCER);
            Arc::make_mut(&mut cache.dropped).advance(NodeId::SEQUENCER, sequenced);
        }
        Ok(())
    }
}
