//! Sequencing: which keyspaces are sequenced, and the log that orders their commits.
//!
//! The modules here connect the [`sequencer`](crate::sequencer) to this node. They mark keyspaces,
//! read the log, order commits, take the log over from an earlier leader, and ask a leader on
//! another node.

mod ask;
mod follow;
pub(crate) mod keyspace;
mod leader;
mod order;

use std::sync::Arc;

use tokio::sync;

use crate::{
    cache::Cache, cluster::Cluster, context::Context, idempotency_keys::IdempotencyKeys,
    sequencing::keyspace::Keyspaces,
};

/// Which keyspaces are sequenced, and how commits there are decided.
#[derive(Debug)]
pub(crate) struct Sequencing {
    pub(crate) context: Arc<Context>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) idempotency_keys: Arc<IdempotencyKeys>,
    pub(crate) keyspaces: Keyspaces,
    /// Held while a keyspace is marked.
    pub(crate) marking: sync::Mutex<()>,
}
