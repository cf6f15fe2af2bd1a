//! The calls of the API, one module for each.

pub(crate) mod abort;
pub(crate) mod begin;
pub(crate) mod commit;
pub(crate) mod forward;
pub mod list;
pub(crate) mod plain_write;
pub(crate) mod read;
mod send;
pub(crate) mod spill;
pub(crate) mod status;
pub(crate) mod write;

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::{
    attempts::open_attempts::Attempts, cache::Cache, cluster::Cluster, collection::Collection,
    context::Context, effects::Effects, idempotency_keys::IdempotencyKeys, loader::Loader,
    packing::Packing, serializable::Serializable, serving::Serving,
};

/// The calls of this node's clients, and of other nodes for transactions of this one.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) context: Arc<Context>,
    pub(crate) serving: Arc<Serving>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) attempts: Arc<Attempts>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) serializable: Arc<Serializable>,
    pub(crate) idempotency_keys: Arc<IdempotencyKeys>,
    pub(crate) effects: Arc<Effects>,
    pub(crate) packing: Arc<Packing>,
    pub(crate) loader: Arc<Loader>,
    pub(crate) collection: Arc<Collection>,
    /// How many more begins may ask the store at a time whether they have committed, while there is no room for them.
    pub(crate) full_look_ups: Semaphore,
}
