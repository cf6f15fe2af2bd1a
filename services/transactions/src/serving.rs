//! Which node serves in this process, if any.
//!
//! Every part asks it for the node of a call. A call that began on an earlier node is refused
//! instead of mixing two nodes' state.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{Error, Result, node::Node};

/// The node that serves. A process is one node at a time; after a restart of the service it is
/// another.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    node: Mutex<Option<Arc<Node>>>,
    /// Woken when the node is fenced.
    pub(crate) on_fence: Arc<Notify>,
}

impl Serving {
    /// `node` serves from now on.
    pub(crate) fn start(&self, node: &Arc<Node>) {
        *self.node.lock() = Some(Arc::clone(node));
    }

    /// No node serves from now on. Returns the previous one.
    pub(crate) fn stop(&self) -> Option<Arc<Node>> {
        self.node.lock().take()
    }

    pub(crate) fn current(&self) -> Option<Arc<Node>> {
        self.node.lock().clone()
    }

    /// The node that serves.
    ///
    /// Errors: `Unavailable` if there is none, or if the store is no longer the one it began on.
    pub(crate) fn node(&self) -> Result<Arc<Node>> {
        let node = self
            .current()
            .ok_or_else(|| Error::unavailable("the node starts"))?;
        node.store.check_incarnation()?;
        Ok(node)
    }

    /// Whether no node serves, or the serving one is fenced.
    pub(crate) fn is_fenced(&self) -> bool {
        self.current().is_none_or(|node| node.store.is_fenced())
    }
}
