//! The start and the end of a node, and what nodes leave that are gone.

mod fault_manager;
mod join;
mod leave;
mod resolve;
mod start;

use std::sync::Arc;

use crate::{
    attempts::open_attempts::Attempts, cache::Cache, calls::Calls, cluster::Cluster,
    collection::Collection, context::Context, effects::Effects, idempotency_keys::IdempotencyKeys,
    packing::Packing, serializable::Serializable, serving::Serving,
};

/// Starts and ends the nodes of this process.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) context: Arc<Context>,
    pub(crate) serving: Arc<Serving>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) attempts: Arc<Attempts>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) serializable: Arc<Serializable>,
    pub(crate) idempotency_keys: Arc<IdempotencyKeys>,
    pub(crate) effects: Arc<Effects>,
    pub(crate) packing: Arc<Packing>,
    pub(crate) collection: Arc<Collection>,
    pub(crate) calls: Arc<Calls>,
}
