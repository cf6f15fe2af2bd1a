//! The accept loop, the limit of connections, and the graceful stop.

use std::{convert::Infallible, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Body;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout},
};
use tower_service::Service;

use crate::{
    accepting::Accepting,
    body::RequestBody,
    config::Config,
    connection::{self, BoxError},
    peer_log::PeerLog,
    places::{Place, Places},
};

/// How often at most the log says that the limit is reached.
const LOG_EVERY: Duration = Duration::from_mins(1);

/// Accepts connections of `listener` and answers their requests by `service`, until `shutdown`
/// completes. A connection past the limit has one request answered by `refusal`.
///
/// At the shutdown no more are accepted, idle connections end, and requests in progress have
/// [`Timeouts::drain`](crate::Timeouts::drain) to end before their connections are cut.
pub async fn serve<S, B>(
    listener: TcpListener,
    config: Config,
    service: S,
    refusal: S,
    shutdown: impl Future<Output = ()>,
) where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let (stop, stopping) = watch::channel(false);
    let mut acceptor = Acceptor::new(listener, config.connections_max);
    let mut connections = JoinSet::new();
    let log = Arc::<PeerLog>::default();
    let mut shutdown = pin!(shutdown);
    loop {
        let (accepted, place) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = acceptor.accept() => accepted,
        };
        let service = if place.is_refusal { &refusal } else { &service };
        connections.spawn(connection::serve(
            accepted,
            place,
            config.clone(),
            Arc::clone(&log),
            service.clone(),
            stopping.clone(),
        ));
    }
    drop(acceptor);
    stop.send_replace(true);
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(config.timeouts.drain, drained).await.is_err() {
        tracing::info!(
            connections = connections.len(),
            "http: requests in progress were cut off"
        );
    }
}

/// Accepts one connection at a time while places are free.
struct Acceptor {
    accepting: Accepting,
    connections_max: usize,
    places: Places,
    /// When the limit was last logged.
    logged: Option<Instant>,
}

impl Acceptor {
    fn new(listener: TcpListener, connections_max: usize) -> Self {
        Self {
            accepting: Accepting::of(listener),
            connections_max,
            places: Places::new(connections_max),
            logged: None,
        }
    }

    /// The next connection and its place. May be dropped and called anew.
    async fn accept(&mut self) -> ((TcpStream, SocketAddr), Place) {
        self.places.wait_until_free().await;
        let accepted = self.accepting.next().await;
        let place = self.places.take().expect("only this loop takes places");
        if place.is_refusal {
            self.log_full();
        }
        (accepted, place)
    }

    fn log_full(&mut self) {
        let now = Instant::now();
        if self.logged.is_none_or(|logged| now >= logged + LOG_EVERY) {
            self.logged = Some(now);
            tracing::warn!(
                connections = self.connections_max,
                "http: as many connections are open as may be; new ones are refused"
            );
        }
    }
}
