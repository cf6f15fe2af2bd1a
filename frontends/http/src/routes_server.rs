//! The listener of routes: functions at its root, and nothing else.
//!
//! An origin of their own is what functions need to work as on API Gateway. Pages of other sites may
//! call them, so `Origin` is passed on and each function, or the CORS settings of its application,
//! decides. The only check is that of `Host`: a page whose name an attacker points at this machine
//! (DNS rebinding) has the same origin as its own site, and no CORS header would stop it.
//!
//! It shares the limits, the body budget and the connection code with the main listener, and needs
//! no token: a function authenticates its callers itself, with the `Authorization` that it receives.

use std::{io, net::SocketAddr, sync::Arc};

use listener::Tls;

use crate::{
    backend::{Backend, Limits},
    guard::Hosts,
    router,
    server::{self, Server},
};

/// How to listen for routes.
#[derive(Debug, Clone)]
pub struct RoutesConfig {
    /// The address to listen on; port 0 picks a free one.
    pub address: SocketAddr,
    /// The names that `Host` may have beside those of this machine, in lower case; `*` for any.
    pub hosts: Vec<String>,
    /// None: connections have no TLS.
    pub tls: Option<Tls>,
    /// The bounds of the listener.
    pub limits: Limits,
}

/// A bound listener of routes.
pub type RoutesServer = Server<RoutesConfig>;

/// Binds the address.
///
/// Errors: the system's, such as an address in use.
pub async fn bind_routes(config: RoutesConfig) -> io::Result<RoutesServer> {
    Server::bind(config.address, config).await
}

impl RoutesServer {
    /// Serves requests until `shutdown` completes, then ends as the main listener does.
    pub async fn run(
        self,
        backend: Arc<Backend>,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) {
        let RoutesConfig {
            hosts, tls, limits, ..
        } = self.config;
        let router = router::for_routes(backend, Hosts::new(hosts));
        server::listen(self.listener, tls, router, &limits, shutdown).await;
    }
}
