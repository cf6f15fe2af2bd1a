//! Keeping the store small: it collects superseded versions, retains rows and slots for their
//! windows, and sweeps.
//!
//! Invariants: nothing above the agreed horizon is deleted, and a log slot is trimmed only once
//! nothing in the store still needs it.

mod collector;
pub(crate) mod delete;
mod expire_keys;
mod housekeeping;
mod retention;
mod sweep;
mod tended;
pub(crate) mod uncommitted;

use std::sync::Arc;

use crate::{
    attempts::open_attempts::Attempts, cache::Cache, cluster::Cluster, context::Context,
    idempotency_keys::IdempotencyKeys, loader::Loader, packing::Packing, sequencing::Sequencing,
};

#[derive(Debug)]
pub(crate) struct Collection {
    pub(crate) context: Arc<Context>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) attempts: Arc<Attempts>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) sequencing: Arc<Sequencing>,
    pub(crate) idempotency_keys: Arc<IdempotencyKeys>,
    pub(crate) packing: Arc<Packing>,
    pub(crate) loader: Arc<Loader>,
}
