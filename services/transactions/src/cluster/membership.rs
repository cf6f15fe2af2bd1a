//! Membership: which processes are transaction nodes, and until when this one may answer as a node.
//!
//! A node answers from its applied frontier. Other nodes act without it once they know that it no
//! longer answers: they collect what it might read, and close what it might commit. So each node
//! has a lease. Past [`Membership::may_answer_until`] it ends all open attempts, drops its state,
//! and restarts under a new id. The others presume it dead only later, at any setting of the
//! clocks.
//!
//! Invariants
//! - A view's number grows by one with each change of the members, of the sequencer, or of the
//!   elections that this node leads.
//! - A process is one node at a time: [`Membership::join`] with a new id ends the one before.
//! - At most one node leads an election at any moment, counting only nodes that may answer.
//!
//! In AFT, section 4.3, an outside monitor polls for dead nodes, and a node that is presumed dead
//! continues. Here the lease ends it first.

use std::{collections::BTreeMap, fmt::Debug};

use async_trait::async_trait;
use ports::Monotonic;
use tokio::sync::watch;

use crate::{Result, model::NodeId};

mod coordinated;
mod roster;

pub use self::coordinated::Coordinated;
pub use crate::model::Address;

/// The members at some moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    /// The number of this view. It grows by one with each change, also of what this node leads.
    pub view: u64,
    /// Every member by its id, including this node once it has joined.
    pub nodes: BTreeMap<NodeId, Address>,
    /// The node that orders for all, if it is known.
    pub sequencer: Option<NodeId>,
}

/// A role that one elected node fills for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Election {
    /// Decides up to where superseded versions may be collected, and resolves the logs of dead
    /// nodes.
    Collector,
    /// Orders the commits of the sequenced keyspaces, which form one group for now, and writes the
    /// logs of volumes.
    Sequencer,
}

/// The membership of transaction nodes, and this node's lease.
#[async_trait]
pub trait Membership: Debug + Send + Sync {
    /// Makes this process `node`, and no longer its previous node. Returns once it is a member,
    /// with a lease and a place in every election.
    ///
    /// Errors: `Unavailable`: it is no member; try again.
    async fn join(&self, node: NodeId) -> Result<()>;

    /// Stops being a member, so that no node waits for its lease to expire. It may not answer after
    /// this.
    async fn leave(&self);

    /// The present members, as far as this process knows.
    fn members(&self) -> Members;

    /// Resolves once the view is above `view`.
    async fn changed(&self, view: u64) -> Members;

    /// The instant until which this node may answer, by its own clock; `None` means forever. It
    /// only grows while the node is a member. Before the first join, and after leaving, it lies in
    /// the past.
    fn may_answer_until(&self) -> Option<Monotonic>;

    /// Whether this node leads `election`. Acts of a leader are valid only while it may answer.
    fn leads(&self, election: Election) -> bool;
}

/// The only node of a store: its lock is the lease.
#[derive(Debug, Default)]
pub struct Alone {
    members: watch::Sender<Members>,
}

impl Alone {
    fn change(&self, nodes: BTreeMap<NodeId, Address>) {
        self.members.send_modify(|members| {
            members.view += 1;
            members.sequencer = nodes.keys().next().copied();
            members.nodes = nodes;
        });
    }
}

#[async_trait]
impl Membership for Alone {
    async fn join(&self, node: NodeId) -> Result<()> {
        self.change(BTreeMap::from([(node, Address::default())]));
        Ok(())
    }

    async fn leave(&self) {
        self.change(BTreeMap::new());
    }

    fn members(&self) -> Members {
        self.members.borrow().clone()
    }

    async fn changed(&self, view: u64) -> Members {
        let mut members = self.members.subscribe();
        let changed = members.wait_for(|members| members.view > view).await;
        changed.expect("the sender lives as long as `self`").clone()
    }

    fn may_answer_until(&self) -> Option<Monotonic> {
        None
    }

    fn leads(&self, _: Election) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        futures_util::FutureExt::now_or_never(future)
    }

    #[test]
    fn whoever_is_alone_is_one_node_at_a_time_and_leads() {
        let alone = Alone::default();
        assert_eq!(now(alone.changed(0)), None, "no node has joined");
        now(alone.join(NodeId(3))).expect("at once").expect("joins");
        now(alone.join(NodeId(4))).expect("at once").expect("joins");
        let members = now(alone.changed(1)).expect("the view has changed");
        assert_eq!(
            members,
            Members {
                view: 2,
                nodes: BTreeMap::from([(NodeId(4), Address::default())]),
                sequencer: Some(NodeId(4)),
            }
        );
        assert_eq!(now(alone.changed(2)), None, "nothing has changed since");
        assert!(alone.leads(Election::Collector) && alone.leads(Election::Sequencer));
        assert_eq!(alone.may_answer_until(), None);
        now(alone.leave()).expect("at once");
        assert_eq!(
            alone.members(),
            Members {
                view: 3,
                nodes: BTreeMap::new(),
                sequencer: None,
            }
        );
    }
}
