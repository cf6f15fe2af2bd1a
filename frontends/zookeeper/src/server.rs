//! Listens, and gives each connection a task.
//!
//! Invariants
//! - At most `connections_max` connections are open; one more is closed before a byte of it is read.
//! - When [`Server::run`] returns, every connection is closed. Sessions live on: they are the service's.

use std::{collections::BTreeMap, future::Future, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use coordination::Gateway;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinSet,
};

use crate::{Config, Statistics, connection};

/// How long to wait before accepting again when the process has no descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// What all connections of a server share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) statistics: Arc<Statistics>,
}

/// A front end that listens; [`Server::run`] serves.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local_address: SocketAddr,
    shared: Arc<Shared>,
}

/// Listens at the configured address.
///
/// Fails if the address cannot be had, or with `InvalidInput` if a bound of the configuration is out of
/// range.
pub async fn bind(config: Config, gateway: Arc<Gateway>) -> io::Result<Server> {
    if config.packet_bytes_max > Config::PACKET_BYTES_LIMIT {
        let message = format!(
            "packets of {} bytes are too long to tell from other protocols, the limit is {}",
            config.packet_bytes_max,
            Config::PACKET_BYTES_LIMIT
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    if config.connections_max == 0 || config.requests_in_flight_max == 0 || config.unsent_bytes_max == 0 {
        let message = "a front end without connections, requests or bytes in flight serves nobody";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let listener = TcpListener::bind(config.listen).await?;
    let local_address = listener.local_addr()?;
    let shared = Arc::new(Shared { config, gateway, statistics: Arc::default() });
    Ok(Server { listener, local_address, shared })
}

impl Server {
    /// Where it listens, with the port that was picked.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Its counters.
    pub fn statistics(&self) -> Arc<Statistics> {
        Arc::clone(&self.shared.statistics)
    }

    /// Serves until `shutdown` resolves, then closes the port and the connections. A connection in the
    /// middle of a step finishes it first, for up to `stop_timeout`.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self { listener, shared, .. } = self;
        let mut shutdown = pin!(shutdown);
        let mut connections = JoinSet::new();
        let mut stops = BTreeMap::new();
        let mut next_id: u64 = 0;
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(ended) = connections.join_next() => {
                    // A task that panicked does not say which it was; its entry is a few idle bytes.
                    if let Ok(id) = ended {
                        stops.remove(&id);
                    }
                }
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) if connections.len() < shared.config.connections_max => {
                        next_id += 1;
                        let (stop, stopped) = oneshot::channel();
                        stops.insert(next_id, stop);
                        connections.spawn(serve(Arc::clone(&shared), stream, peer, stopped, next_id));
                    }
                    Ok((_stream, peer)) => {
                        shared.statistics.connection_refused();
                        tracing::warn!(%peer, open = connections.len(), "refused: too many connections");
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }
        drop(listener);
        // A connection whose sender is gone stops at its next wait.
        drop(stops);
        let all_ended = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(shared.config.stop_timeout, all_ended).await.is_err() {
            tracing::warn!(open = connections.len(), "connections did not end in time");
            connections.shutdown().await;
        }
    }
}

async fn serve(
    shared: Arc<Shared>,
    stream: TcpStream,
    peer: SocketAddr,
    stopped: oneshot::Receiver<()>,
    id: u64,
) -> u64 {
    shared.statistics.connection_accepted();
    let closing = Closing(&shared.statistics);
    connection::serve(&shared, stream, peer, stopped).await;
    drop(closing);
    id
}

/// Counts a connection as closed, also when its task is dropped.
struct Closing<'a>(&'a Statistics);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.connection_closed();
    }
}
