//! The node that serves the volumes of the store: the elected sequencer.
//!
//! Its volumes answer reads from memory, so no other node may take their logs over while it may
//! answer. The others send it the calls of their clients over connections that begin with the
//! store's secret.

use crate::{
    Error, Result,
    broken::Broken,
    calls::Calls,
    cluster::{membership::Election, messages::Way},
    model::{Address, NodeId},
    node::Node,
};

/// The node that serves volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumesLeader {
    /// This process, as this node.
    Here(NodeId),
    /// Another node, at this address.
    There(NodeId, Address),
}

impl Calls {
    /// Errors: `Unavailable` unless `node` serves volumes.
    pub(crate) fn may_serve_volumes(&self, node: &Node) -> Result<()> {
        self.cluster.may_answer(node)?;
        let membership = &self.cluster.membership;
        let is_said_to_lead = || membership.members().sequencer == Some(node.id);
        let leads = membership.leads(Election::Sequencer)
            || self.context.breaks(Broken::AnswersWithoutLease) && is_said_to_lead();
        if leads {
            return Ok(());
        }
        Err(Error::unavailable(
            "another server of the store serves volumes",
        ))
    }

    pub(crate) fn volumes_leader(&self) -> Result<VolumesLeader> {
        let node = self.serving.node()?;
        self.cluster.may_answer(&node)?;
        let unknown = || Error::unavailable("no server of the store serves volumes at the moment");
        let members = self.cluster.membership.members();
        let leader = members.sequencer.ok_or_else(unknown)?;
        if leader == node.id {
            self.may_serve_volumes(&node)?;
            return Ok(VolumesLeader::Here(leader));
        }
        let address = members.nodes.get(&leader).ok_or_else(unknown)?;
        Ok(VolumesLeader::There(leader, address.clone()))
    }

    pub(crate) fn volumes_head(&self, to: NodeId) -> Result<Vec<u8>> {
        let node = self.serving.node()?;
        let secret = node.secret;
        let secret = secret.ok_or_else(|| Error::unavailable("there is no other node"))?;
        let from = node.id;
        Ok(Way { from, to, secret }.to_volumes())
    }

    pub(crate) fn admits_volumes(&self, head: &[u8]) -> Option<NodeId> {
        let way = Way::of_volumes(head)?;
        let node = self.serving.node().ok()?;
        let is_for_it = node.id == way.to && node.secret == Some(way.secret);
        let serves = is_for_it && self.may_serve_volumes(&node).is_ok();
        serves.then_some(way.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::peers::tests::start_among_others, storage::secret::Secret};

    /// T9: a connection for volumes needs the store's secret.
    #[test]
    fn a_connection_without_the_secret_is_not_admitted() {
        simulated::run(async {
            let service = start_among_others().await;
            let engine = service.engine();
            let node = engine.node().expect("it has started");
            assert_eq!(engine.volumes_leader(), Ok(VolumesLeader::Here(node)));
            let head = engine.volumes_head(node).expect("one of several");
            assert_eq!(engine.admits_volumes(&head), Some(node));
            let (from, secret) = (node, Secret(0));
            let strange = Way {
                from,
                to: node,
                secret,
            };
            assert_eq!(engine.admits_volumes(&strange.to_volumes()), None);
            let other = engine.volumes_head(NodeId(node.0 + 1)).expect("a head");
            assert_eq!(engine.admits_volumes(&other), None);
        });
    }
}
