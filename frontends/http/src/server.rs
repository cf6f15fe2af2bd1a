//! Binds the listener, serves until told to stop, stops within a bound.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::watch};
use transactions::peers::MESSAGE_BYTES_MAX;

use crate::{
    backend::Backend,
    body::{Budget, DISCARD_BYTES_MAX},
    connection::{Bounded, Patience},
    guard::Rules,
    routes,
    services::Services,
    status::Snapshot,
};

/// How long open requests may take once the server is told to stop; then they are cut off.
///
/// A commit that is cut off goes on or not, as one whose client hung up: its repeat tells.
pub const DRAIN_MAX: Duration = Duration::from_secs(2);
/// What a request has beside its value: line, headers, and the framing of chunks.
const ENVELOPE_BYTES_MAX: usize = 128 * 1024;

/// What is taken in and waited for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once; the next one waits in the kernel's queue until one ends.
    pub connections_max: usize,
    /// The longest value of a key, in bytes; beyond it 413.
    pub value_bytes_max: usize,
    /// The bytes of all bodies that are being received or worked on; beyond it 429.
    pub buffered_bytes_max: usize,
    /// How long a service has for an answer before it is 503: longer than a commit takes to say that it is
    /// undecided, shorter than a connection may be quiet.
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
    /// Where to accept connections; port 0 picks a free one.
    pub address: SocketAddr,
    /// What `Authorization: Bearer` must carry if the address is not on loopback; health is open to all.
    pub token: Option<String>,
    /// What is taken in and waited for.
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

    /// Answers requests until `shutdown` completes, then ends within [`DRAIN_MAX`].
    pub async fn run(
        self,
        snapshot: Arc<dyn Snapshot>,
        services: Arc<Services>,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
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
        let router = routes::router(snapshot, backend, rules);
        let request_bytes_max =
            value_bytes_max.max(MESSAGE_BYTES_MAX) + DISCARD_BYTES_MAX + ENVELOPE_BYTES_MAX;
        let (stopping, mut stopped) = watch::channel(false);
        let signal = async move {
            shutdown.await;
            let _ = stopping.send(true);
        };
        let serving = axum::serve(
            Bounded::new(self.listener, connections_max, request_bytes_max),
            router.into_make_service_with_connect_info::<Patience>(),
        )
        .with_graceful_shutdown(signal);
        let cut_off = async {
            // An error means that the server has ended by itself: the other branch has won already.
            let _ = stopped.wait_for(|is_stopping| *is_stopping).await;
            tokio::time::sleep(DRAIN_MAX).await;
        };
        tokio::select! {
            biased;
            ended = serving => ended,
            () = cut_off => {
                tracing::info!("http: open requests were cut off");
                Ok(())
            }
        }
    }
}
