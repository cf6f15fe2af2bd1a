//! Binds the address, serves until the shutdown, and stops within a bound.

use std::{io, net::SocketAddr, sync::Arc};

use axum::Router;
use listener::{Timeouts, Tls, signature::Keys};
use tokio::net::TcpListener;
use transactions::peers::MESSAGE_BYTES_MAX;

use crate::{
    backend::{Backend, Limits},
    body::DISCARD_BYTES_MAX,
    guard::Rules,
    router,
    status::Snapshot,
};

/// How to listen.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address to listen on; port 0 picks a free one.
    pub address: SocketAddr,
    /// The token that `Authorization: Bearer` must carry. Health is open to all.
    pub token: Option<String>,
    /// The keys that sign calls of Lambda's API, in place of the token. None: signatures are not
    /// checked.
    pub keys: Option<Keys>,
    /// None: connections have no TLS.
    pub tls: Option<Tls>,
    /// The bounds of the front end.
    pub limits: Limits,
}

/// A bound listener: connections queue up until `run`.
#[derive(Debug)]
pub struct Server<C = Config> {
    pub(crate) listener: TcpListener,
    local_address: SocketAddr,
    pub(crate) config: C,
}

/// Binds the address.
///
/// Errors: the system's, such as an address in use.
pub async fn bind(config: Config) -> io::Result<Server> {
    Server::bind(config.address, config).await
}

impl<C> Server<C> {
    pub(crate) async fn bind(address: SocketAddr, config: C) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self {
            local_address: listener.local_addr()?,
            listener,
            config,
        })
    }

    /// The address with the port that was picked.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }
}

impl Server {
    /// Serves requests until `shutdown` completes, then ends within
    /// [`Timeouts::drain`]. A commit that is cut off may take effect, as if its client had hung up.
    /// A repeat returns its outcome.
    pub async fn run(
        self,
        snapshot: Arc<dyn Snapshot>,
        backend: Arc<Backend>,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) {
        let loopback = self.local_address.ip().is_loopback();
        let limits = self.config.limits;
        let rules = Rules {
            loopback,
            token: self.config.token,
            keys: self.config.keys,
            value_bytes_max: limits.value_bytes_max,
        };
        let router = router::router(snapshot, backend, rules);
        listen(self.listener, self.config.tls, router, &limits, shutdown).await;
    }
}

/// Serves `router` on a bound listener within `limits`, until `shutdown` completes.
pub(crate) async fn listen(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    limits: &Limits,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let refusal = router::refusal(limits.connections_max);
    let longest = limits.value_bytes_max.max(MESSAGE_BYTES_MAX);
    let config = listener::Config {
        connections_max: limits.connections_max,
        body_bytes_max: (longest + DISCARD_BYTES_MAX) as u64,
        timeouts: Timeouts::default(),
        files: None,
        tls,
    };
    listener::serve(listener, config, router, refusal, shutdown).await;
}
