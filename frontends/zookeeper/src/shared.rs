//! State shared by all connections of a server.

use std::sync::Arc;

use coordination::Gateway;
use listener::PeerLog;

use crate::{Config, Statistics, figures::AllFigures};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) log: PeerLog,
    pub(crate) figures: AllFigures,
    /// The port that the server listens at.
    pub(crate) port: u16,
    /// Its port for TLS.
    pub(crate) secure_port: Option<u16>,
}
