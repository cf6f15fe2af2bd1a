//! The calls of the API, one module for each.

pub(crate) mod abort;
pub(crate) mod begin;
pub(crate) mod commit;
pub(crate) mod conditional;
pub(crate) mod forward;
pub mod list;
pub mod open;
mod peer_server;
pub(crate) mod read;
pub(crate) mod spill;
pub(crate) mod status;
pub(crate) mod volumes;
pub(crate) mod volumes_leader;
pub(crate) mod write;

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::{
    attempts::open_attempts::Attempts, cache::Cache, cluster::Cluster, collection::Collection,
    context::Context, effects::Effects, idempotency_keys::IdempotencyKeys, loader::Loader,
    packing::Packing, sequencing::Sequencing, serving::Serving,
};

/// Serves the calls of this node's clients, and calls that other nodes forward for transactions of
/// this one.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) context: Arc<Context>,
    pub(crate) serving: Serving,
    pub(crate) cache: Arc<Cache>,
    pub(crate) attempts: Arc<Attempts>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) sequencing: Arc<Sequencing>,
    pub(crate) idempotency_keys: Arc<IdempotencyKeys>,
    pub(crate) effects: Arc<Effects>,
    pub(crate) packing: Arc<Packing>,
    pub(crate) loader: Arc<Loader>,
    pub(crate) collection: Arc<Collection>,
    pub(crate) full_look_ups: Semaphore,
}
