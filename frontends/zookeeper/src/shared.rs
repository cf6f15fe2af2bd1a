//! State shared by all connections of a server.

use std::sync::Arc;

use coordination::Gateway;

use crate::{Config, Statistics, peer_log::PeerLog};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) log: PeerLog,
}
