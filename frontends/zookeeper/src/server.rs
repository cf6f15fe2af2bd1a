//! Accepts connections, and runs a task for each.
//!
//! Invariants
//! - At most `connections_max` connections are open, and at most `connections_per_address_max` of
//!   one address. A further connection is closed before a byte of it is read.
//! - If the process has no descriptors left, new connections wait in the kernel's backlog and open
//!   ones are served as before. The start and the end of this state are each logged once.
//! - When [`Server::run`] returns, every connection is closed. Sessions remain, because they belong
//!   to the service.

use std::{future::Future, io, net::SocketAddr, pin::pin, sync::Arc};

use coordination::Gateway;
use listener::{Accepting, Line, PeerLog, Stream};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinSet,
};

use crate::{
    Config, Statistics, connection, figures::AllFigures, open_connections::OpenConnections,
    peer::Peer, shared::Shared, transport::Transport,
};

/// A front end that listens. [`Server::run`] serves.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local_address: SocketAddr,
    secure: Option<(TcpListener, SocketAddr)>,
    shared: Arc<Shared>,
}

/// Listens at the configured addresses.
///
/// Errors: an address is not available; or `InvalidInput` if a bound of the configuration is out
/// of range.
pub async fn bind(config: Config, gateway: Arc<Gateway>) -> io::Result<Server> {
    if config.packet_bytes_max > Config::PACKET_BYTES_LIMIT {
        let message = format!(
            "packets of {} bytes cannot be told apart from other protocols; the limit is {}",
            config.packet_bytes_max,
            Config::PACKET_BYTES_LIMIT
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    if config.connections_max == 0
        || config.requests_in_flight_max == 0
        || config.unsent_bytes_max == 0
    {
        let message = "the limits of connections, requests and bytes in flight must not be zero";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let listener = TcpListener::bind(config.listen).await?;
    let local_address = listener.local_addr()?;
    let secure = match &config.secure {
        Some((address, _)) => Some(bind_secure(*address).await?),
        None => None,
    };
    let shared = Arc::new(Shared {
        config,
        gateway,
        statistics: Arc::default(),
        log: PeerLog::default(),
        figures: AllFigures::new(),
        port: local_address.port(),
        secure_port: secure.as_ref().map(|(_, address)| address.port()),
    });
    Ok(Server {
        listener,
        local_address,
        secure,
        shared,
    })
}

async fn bind_secure(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let bound = async {
        let listener = TcpListener::bind(address).await?;
        let local_address = listener.local_addr()?;
        Ok((listener, local_address))
    };
    let named = |error: io::Error| {
        let message = format!("the secure port {address}: {error}");
        io::Error::new(error.kind(), message)
    };
    bound.await.map_err(named)
}

impl Server {
    /// The listening address, with the actual port.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// The address for TLS, with the actual port.
    pub fn secure_address(&self) -> Option<SocketAddr> {
        self.secure.as_ref().map(|(_, address)| *address)
    }

    /// The server's counters.
    pub fn statistics(&self) -> Arc<Statistics> {
        Arc::clone(&self.shared.statistics)
    }

    /// Serves until `shutdown` resolves, then closes the port and the connections. A connection in
    /// the middle of a step finishes it first, for up to `stop_timeout`.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self {
            listener,
            secure,
            shared,
            ..
        } = self;
        let mut shutdown = pin!(shutdown);
        let mut plain = Accepting::of(listener);
        let mut secure = secure.map(|(listener, _)| Accepting::of(listener));
        let mut connections = JoinSet::new();
        let Config {
            connections_max,
            connections_per_address_max,
            ..
        } = shared.config;
        let mut open = OpenConnections::new(connections_max, connections_per_address_max);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(ended) = connections.join_next_with_id() => {
                    shared.statistics.connections_closed.add(1);
                    open.ended(ended.map_or_else(|error| error.id(), |(id, ())| id));
                }
                (stream, peer, is_secure) = next(&mut plain, secure.as_mut()) => match open.check_place(peer) {
                    Ok(()) => {
                        let (stop, stopped) = oneshot::channel();
                        shared.statistics.connections_accepted.add(1);
                        let shared = Arc::clone(&shared);
                        let task = connections.spawn(serve(shared, stream, peer, is_secure, stopped));
                        open.opened(task.id(), peer, stop);
                    }
                    Err(no_place) => {
                        shared.statistics.connections_refused.add(1);
                        if let Some(Line { suppressed }) = shared.log.line() {
                            tracing::warn!(%peer, suppressed, "refused: {no_place}");
                        }
                    }
                },
            }
        }
        drop((plain, secure));
        // A connection whose sender is dropped stops at its next wait.
        drop(open);
        let all_ended = async {
            while connections.join_next().await.is_some() {
                shared.statistics.connections_closed.add(1);
            }
        };
        if tokio::time::timeout(shared.config.stop_timeout, all_ended)
            .await
            .is_err()
        {
            tracing::warn!(open = connections.len(), "connections did not end in time");
            connections.shutdown().await;
        }
    }
}

/// The next connection of either port. Cancellation safe.
async fn next(
    plain: &mut Accepting,
    secure: Option<&mut Accepting>,
) -> (TcpStream, SocketAddr, bool) {
    let secure = async {
        match secure {
            Some(secure) => secure.next().await,
            None => std::future::pending().await,
        }
    };
    // Fair: neither port keeps the other waiting.
    tokio::select! {
        (stream, peer) = plain.next() => (stream, peer, false),
        (stream, peer) = secure => (stream, peer, true),
    }
}

/// The task of a connection. Only its own variables hold the parts of the connection, which the
/// futures inside borrow: an `async fn` would keep its arguments twice.
fn serve(
    shared: Arc<Shared>,
    stream: TcpStream,
    address: SocketAddr,
    is_secure: bool,
    mut stopped: oneshot::Receiver<()>,
) -> impl Future<Output = ()> {
    let mut peer = Peer {
        address,
        x509: None,
    };
    async move {
        match &shared.config.secure {
            Some((_, tls)) if is_secure => {
                // On the heap, so that a task of the other port is as small as without TLS.
                let encrypted =
                    connection::serve_encrypted(&shared, tls, stream, &mut peer, &mut stopped);
                Box::pin(encrypted).await;
            }
            _ => {
                let mut transport = Transport::new(Stream::Plain(stream));
                connection::serve(&shared, &mut transport, &peer, &mut stopped).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future_bytes<A, B, C, D, E, F>(_: impl FnOnce(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    /// Most connections are idle, and their tasks are most of the memory of their sessions.
    #[test]
    fn the_task_of_a_connection_fits_its_size_class() {
        /// The allocator's size class, less the 112 bytes that tokio adds.
        const TASK_BYTES_MAX: usize = 1792 - 112;
        let bytes = future_bytes(serve);
        assert!(bytes <= TASK_BYTES_MAX, "{bytes} bytes");
    }
}
