//! Several nodes on one store: who they are, what they tell each other, and how one asks another.

mod agreement;
mod announce;
mod announcement_batch;
mod ask;
mod follow;
pub(crate) mod forwarded;
mod lease;
pub mod membership;
pub(crate) mod messages;
mod neighbours;
pub(crate) mod owner;
pub(crate) mod peers;
mod probe;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    attempts::open_attempts::Attempts,
    cache::Cache,
    cluster::{
        announcement_batch::Gathered, membership::Membership, neighbours::Neighbours, peers::Peers,
        probe::Looks,
    },
    context::Context,
    model::NodeId,
};

/// This node among others.
#[derive(Debug)]
pub(crate) struct Cluster {
    context: Arc<Context>,
    cache: Arc<Cache>,
    attempts: Arc<Attempts>,
    pub(crate) membership: Arc<dyn Membership>,
    /// The transport to the other nodes. None: this one is alone.
    peers: Option<Arc<dyn Peers>>,
    /// The liveness probes under way.
    looks: Looks,
    state: Mutex<ClusterState>,
}

/// What is known of other nodes.
#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    /// For which node it is known. None: no node serves.
    serving: Option<NodeId>,
    pub(crate) neighbours: Neighbours,
    /// What they have announced, and is not merged.
    pub(crate) gathered: Gathered,
}

impl Cluster {
    pub(crate) fn new(
        context: Arc<Context>,
        cache: Arc<Cache>,
        attempts: Arc<Attempts>,
        membership: Arc<dyn Membership>,
        peers: Option<Arc<dyn Peers>>,
    ) -> Self {
        Self {
            context,
            cache,
            attempts,
            membership,
            peers,
            looks: Looks::default(),
            state: Mutex::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, to be changed on behalf of `node`. None: it serves no longer, or not yet.
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
