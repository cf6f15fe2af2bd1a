//! One start of a node: its id, its view of the store, its log.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use ports::Monotonic;
use tokio::sync::Notify;

use crate::{
    model::{Attempt, NodeId},
    node_log::NodeLog,
    sequencer::Sequencer,
    store::Store,
};

/// What goes when the node cannot go on, and is made anew.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) store: Arc<Store>,
    pub(crate) log: NodeLog,
    /// Woken when there may be something to tidy.
    pub(crate) work: Notify,
    /// When it began to serve.
    pub(crate) started: Monotonic,
    begun: AtomicU64,
    /// Once a keyspace is sequenced.
    sequencer: OnceLock<Sequencer>,
}

impl Node {
    pub(crate) fn new(id: NodeId, store: Arc<Store>, log: NodeLog, started: Monotonic) -> Self {
        Self {
            id,
            store,
            log,
            work: Notify::new(),
            started,
            begun: AtomicU64::new(0),
            sequencer: OnceLock::new(),
        }
    }

    /// Who orders the commits of sequenced keyspaces; none: there are none.
    pub(crate) fn sequencer(&self) -> Option<&Sequencer> {
        self.sequencer.get()
    }

    /// This node orders them from now on.
    pub(crate) fn set_sequencer(&self, sequencer: Sequencer) {
        self.sequencer.set(sequencer).expect("a node takes the sequencer's log over once");
    }

    /// Nothing is left to do or to clean for an entry in `slot`.
    pub(crate) fn settled(&self, slot: u64) {
        self.log.settled(slot);
        self.work.notify_one();
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
