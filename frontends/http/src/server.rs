//! Binds the address, serves until the shutdown, and stops within a bound.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use listener::Timeouts;
use tokio::net::TcpListener;
use transactions::peers::MESSAGE_BYTES_MAX;

use crate::{
    backend::Backend,
    body::{Budget, DISCARD_BYTES_MAX},
    guard::Rules,
    router,
    services::Services,
    status::Snapshot,
};

/// The time for requests in progress once the server is told to stop. Then they are cut off.
///
/// A commit that is cut off may take effect, as if its client had hung up. A repeat returns its
/// outcome.
pub const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The bounds of the front end.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections that are served at once. More are refused with 503.
    pub connections_max: usize,
    /// The longest value of a key, in bytes; beyond it 413.
    pub value_bytes_max: usize,
    /// The bytes of all bodies that are received or worked on; beyond it 429.
    pub buffered_bytes_max: usize,
    /// The time of a service for a response, before it is 503: longer than a commit takes to report
    /// that it is undecided.
    pub answer_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 256,
            value_bytes_max: 64 << 20,
            buffered_bytes_max: 256 << 20,
            answer_timeout: Duration::from_secs(8),
        }
    }
}

/// How to listen.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address to listen on; port 0 picks a free one.
    pub address: SocketAddr,
    /// The token that `Authorization: Bearer` must carry if the address is not on loopback. Health
    /// is open to all.
    pub token: Option<String>,
    /// The bounds of the front end.
    pub limits: Limits,
}

/// A bound listener: connections queue up until [`Server::run`].
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local_address: SocketAddr,
    token: Option<String>,
    limits: Limits,
}

/// Binds the address.
///
/// Errors: the system's, such as an address in use.
pub async fn bind(config: Config) -> io::Result<Server> {
    let listener = TcpListener::bind(config.address).await?;
    let local_address = listener.local_addr()?;
    Ok(Server {
        listener,
        local_address,
        token: config.token,
        limits: config.limits,
    })
}

impl Server {
    /// The address with the port that was picked.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Serves requests until `shutdown` completes, then ends within [`DRAIN_MAX`].
    pub async fn run(
        self,
        snapshot: Arc<dyn Snapshot>,
        services: Arc<Services>,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) {
        let loopback = self.local_address.ip().is_loopback();
        let Limits {
            connections_max,
            value_bytes_max,
            buffered_bytes_max,
            answer_timeout,
        } = self.limits;
        let rules = Rules {
            loopback,
            token: self.token.filter(|_| !loopback),
            value_bytes_max,
        };
        let budget = Budget::new(buffered_bytes_max);
        let backend = Backend {
            services,
            budget,
            value_bytes_max,
            answer_timeout,
        };
        let router = router::router(snapshot, backend, rules);
        let config = listener::Config {
            connections_max,
            body_bytes_max: (value_bytes_max.max(MESSAGE_BYTES_MAX) + DISCARD_BYTES_MAX) as u64,
            timeouts: Timeouts {
                drain: DRAIN_MAX,
                ..Timeouts::default()
            },
        };
        let refusal = router::refusal(connections_max);
        listener::serve(self.listener, config, router, refusal, shutdown).await;
    }
}
