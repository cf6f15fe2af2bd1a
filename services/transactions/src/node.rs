//! One start of a node: its id, its view of the store, its log.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::{
    model::{Attempt, NodeId},
    node_log::NodeLog,
    store::Store,
};

/// What goes when the node cannot go on, and is made anew.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) store: Arc<Store>,
    pub(crate) log: NodeLog,
    begun: AtomicU64,
}

impl Node {
    pub(crate) fn new(id: NodeId, store: Arc<Store>, log: NodeLog) -> Self {
        Self { id, store, log, begun: AtomicU64::new(0) }
    }

    /// A new attempt.
    pub(crate) fn next_attempt(&self) -> Attempt {
        Attempt { node: self.id, sequence: self.begun.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// Whether it has begun this attempt.
    pub(crate) fn has_begun(&self, attempt: Attempt) -> bool {
        attempt.node == self.id && attempt.sequence <= self.begun.load(Ordering::Relaxed)
    }
}
