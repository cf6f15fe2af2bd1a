//! Membership: who is a transaction node, and until when this process may answer as one.
//!
//! A node answers from what it has heard, and others do without it (they collect what it might read, close what it
//! might commit) once they know that it answers no more. So each node has a lease: past [`Membership::may_answer_until`]
//! it ends all that is open, forgets what it knows, and begins again under a new id. Others take it for gone only later,
//! whatever any clock says.
//!
//! Invariants
//! - A view's number grows by one with each change, of the members or of the offices that this node leads.
//! - A process is one node at a time: [`Membership::join`] with a new id ends the one before.
//! - At most one node leads an office at any moment, counted by what it may answer.
//!
//! AFT, section 4.3, leaves membership to whoever polls from outside, and a node that is taken for dead goes on; here
//! the lease ends it first.

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
    /// The number of this view: it grows by one with each change, also of what this node leads.
    pub view: u64,
    /// Every member by its id, this node among them once it has joined.
    pub nodes: BTreeMap<NodeId, Address>,
}

/// What one node does for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Office {
    /// Decides up to where what is superseded may be collected, and sees to the logs of nodes that are gone.
    Collector,
    /// Orders the commits of the sequenced keyspaces, which are one group as yet.
    Sequencer,
}

/// Who is a transaction node, and until when this one may answer.
#[async_trait]
pub trait Membership: Debug + Send + Sync {
    /// This process is `node` from now on, and no longer the one it was. Returns once it is a member, with a lease and a
    /// place in every election.
    ///
    /// Errors: `Unavailable`: it is no member; try again.
    async fn join(&self, node: NodeId) -> Result<()>;

    /// Stops being a member, so that nobody waits for its lease to run out. Nothing is answered after it.
    async fn leave(&self);

    /// The members now, as far as this process knows.
    fn members(&self) -> Members;

    /// Resolves once the view is above `view`.
    async fn changed(&self, view: u64) -> Members;

    /// The instant until which this node may answer, by its own clock; none: for ever. It only grows while the node is a
    /// member; before the first join, and once it has left, it lies in the past.
    fn may_answer_until(&self) -> Option<Monotonic>;

    /// Whether this node leads `office`. What it does in that office counts only while it may answer.
    fn leads(&self, office: Office) -> bool;
}

/// The one node of a store that nobody else reaches: its lock is the lease.
#[derive(Debug)]
pub struct Alone {
    members: watch::Sender<Members>,
}

impl Default for Alone {
    fn default() -> Self {
        Self {
            members: watch::Sender::new(Members::default()),
        }
    }
}

#[async_trait]
impl Membership for Alone {
    async fn join(&self, node: NodeId) -> Result<()> {
        self.members.send_modify(|members| {
            let nodes = BTreeMap::from([(node, Address::default())]);
            *members = Members {
                view: members.view + 1,
                nodes,
            };
        });
        Ok(())
    }

    async fn leave(&self) {
        self.members.send_modify(|members| {
            *members = Members {
                view: members.view + 1,
                nodes: BTreeMap::new(),
            };
        });
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

    fn leads(&self, _: Office) -> bool {
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
        assert_eq!(now(alone.changed(0)), None, "nobody has joined");
        now(alone.join(NodeId(3))).expect("at once").expect("joins");
        now(alone.join(NodeId(4))).expect("at once").expect("joins");
        let members = now(alone.changed(1)).expect("the view has changed");
        assert_eq!(
            members,
            Members {
                view: 2,
                nodes: BTreeMap::from([(NodeId(4), Address::default())])
            }
        );
        assert_eq!(now(alone.changed(2)), None, "nothing has changed since");
        assert!(alone.leads(Office::Collector) && alone.leads(Office::Sequencer));
        assert_eq!(alone.may_answer_until(), None);
        now(alone.leave()).expect("at once");
        assert_eq!(
            alone.members(),
            Members {
                view: 3,
                nodes: BTreeMap::new()
            }
        );
    }
}
