//! Several nodes on one store: the members, their announcements, and requests between them.
//!
//! A node answers calls from its own index, so it must learn what others commit and prove that they
//! still count it as a member. Everything here is news or a lease; the store alone decides commits.
//!
//! Invariants
//! - Every answer from memory passes [`Cluster::may_answer`] first, because others collect and
//!   close without this node once its lease has expired.

mod agreement;
mod announce;
mod announcement_batch;
mod ask;
pub(crate) mod follow;
pub(crate) mod forwarded;
pub mod membership;
pub(crate) mod messages;
mod neighbours;
pub(crate) mod peers;
pub(crate) mod probe;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    Error, Result,
    attempts::open_attempts::Attempts,
    broken::Broken,
    cache::Cache,
    cluster::{
        announcement_batch::AnnouncementBatch, membership::Membership, neighbours::Neighbours,
        peers::Peers, probe::Probes,
    },
    context::Context,
    model::{Address, NodeId},
    node::Node,
};

/// How far a wall clock may be ahead of the others'.
const AHEAD_MAX: Duration = Duration::from_secs(10);

/// This node's view of the others, and its messages to them.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) context: Arc<Context>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) attempts: Arc<Attempts>,
    pub(crate) membership: Arc<dyn Membership>,
    /// The transport to the other nodes; `None` for a single node.
    pub(crate) peers: Option<Arc<dyn Peers>>,
    /// The liveness probes under way.
    pub(crate) probes: Probes,
    pub(crate) state: Mutex<ClusterState>,
}

/// This node's knowledge of other nodes.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    /// The node that it belongs to; `None` if no node serves.
    serving: Option<NodeId>,
    pub(crate) neighbours: Neighbours,
    /// Announcements that are not merged yet.
    pub(crate) batch: AnnouncementBatch,
}

impl Cluster {
    pub(crate) fn lock(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock()
    }

    /// The state, to be changed on behalf of `node`. `None` if that node does not serve.
    pub(crate) fn of(&self, node: NodeId) -> Option<MutexGuard<'_, ClusterState>> {
        let state = self.lock();
        (state.serving == Some(node)).then_some(state)
    }

    /// `node` serves from now on, and knows nothing of the others yet.
    pub(crate) fn start(&self, node: NodeId) {
        *self.lock() = ClusterState {
            serving: Some(node),
            ..ClusterState::default()
        };
    }

    /// No node serves.
    pub(crate) fn stop(&self) {
        self.lock().serving = None;
    }

    /// Errors: `Unavailable` once this node must not answer any more: others act as if it were
    /// gone.
    pub(crate) fn may_answer(&self, node: &Node) -> Result<()> {
        let is_over = self
            .membership
            .may_answer_until()
            .is_some_and(|until| self.context.clock.monotonic() >= until);
        if is_over && !self.context.breaks(Broken::AnswersWithoutLease) {
            node.store.fence();
        }
        node.store.check_fence()
    }

    /// Errors: `Unavailable` while this machine's clock is so far ahead that every other node would
    /// have to exceed it.
    pub(crate) fn check_clock(&self) -> Result<()> {
        if self.context.is_alone() || self.context.breaks(Broken::AcceptsAnyClock) {
            return Ok(());
        }
        if self.lock().neighbours.ahead() > AHEAD_MAX {
            return Err(Error::unavailable(
                "this machine's clock is ahead of the other nodes'",
            ));
        }
        Ok(())
    }

    /// The members except this node.
    pub(crate) fn others(&self, node: &Node) -> BTreeMap<NodeId, Address> {
        let mut nodes = self.membership.members().nodes;
        nodes.remove(&node.id);
        nodes
    }
}
