//! Several nodes on one store: the members, their announcements, and requests between them.
//!
//! A node answers calls from its own index, so it must learn what others commit and prove that they
//! still count it as a member. Everything here is news or a lease; the store alone decides commits.

mod agreement;
mod announce;
mod announcement_batch;
mod ask;
pub(crate) mod follow;
pub(crate) mod forwarded;
mod lease;
pub mod membership;
pub(crate) mod messages;
mod neighbours;
pub(crate) mod owner;
pub(crate) mod peers;
pub(crate) mod probe;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::{
    attempts::open_attempts::Attempts,
    cache::Cache,
    cluster::{
        announcement_batch::AnnouncementBatch, membership::Membership, neighbours::Neighbours,
        peers::Peers, probe::Probes,
    },
    context::Context,
    model::NodeId,
};

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
}
