//! One connection: hyper between the socket and the service.

use std::{
    convert::Infallible,
    error::Error,
    fmt,
    future::poll_fn,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, sync::watch, time::timeout};
use tower_service::Service;

use crate::{
    body::RequestBody,
    config::Config,
    exchange::{Exchange, InProgress},
    peer_log::{Line, PeerLog},
    places::Place,
    socket::Socket,
    stream::Stream,
    tls::HandshakeError,
};

/// The client. Each request has it among its extensions.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether the connection has TLS.
    pub is_encrypted: bool,
}

/// A service's error type, as hyper takes it.
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// The body of a response that is being sent. The exchange ends with it.
struct ResponseBody<B> {
    body: B,
    _in_progress: InProgress,
}

impl<B: Body + Unpin> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves one connection until it ends, or until its current request has its response once
/// `stopping` is true. A connection past the limit has one request, for which its client has
/// a second.
pub(crate) async fn serve<S, B>(
    (stream, peer): (TcpStream, SocketAddr),
    place: Place,
    mut config: Config,
    log: Arc<PeerLog>,
    service: S,
    mut stopping: watch::Receiver<bool>,
) where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let mut builder = http1::Builder::new();
    if place.is_refusal {
        builder.keep_alive(false);
        config.timeouts = config.timeouts.of_refusal();
    }
    let stream = match encrypted(stream, &config, &mut stopping).await {
        Ok(Some(stream)) => stream,
        Ok(None) | Err(HandshakeError::PeerGone) => return,
        Err(error) => return closed(&log, peer, &error),
    };
    let is_encrypted = stream.is_encrypted();
    let exchange = Arc::new(Exchange::default());
    let socket = Socket::new(stream, place, &config, &exchange);
    let answer = service_fn(move |request: Request<Incoming>| {
        let in_progress = exchange.begin();
        let mut request = request.map(|body| RequestBody::new(body, &exchange, &config));
        request.extensions_mut().insert(Peer {
            address: peer,
            is_encrypted,
        });
        respond(service.clone(), request, Arc::clone(&exchange), in_progress)
    });
    let connection = builder
        // It would run while the connection idles: see `Timeouts::head`.
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(socket), answer)
        .with_upgrades();
    let mut connection = pin!(connection);
    let stopped = async {
        // An error means that the listener is gone, which is a stop as well.
        let _ = stopping.wait_for(|is_stopping| *is_stopping).await;
    };
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    match ended {
        Err(error) if error.is_parse() => closed(&log, peer, &error),
        Err(error) => tracing::debug!(%peer, %error, "http: a connection ended early"),
        Ok(()) => {}
    }
}

fn closed(log: &PeerLog, peer: SocketAddr, why: &dyn fmt::Display) {
    if let Some(Line { suppressed }) = log.line() {
        tracing::warn!(%peer, suppressed, "http: connection closed: {why}");
    }
}

async fn respond<S, B>(
    mut service: S,
    request: Request<RequestBody>,
    exchange: Arc<Exchange>,
    in_progress: InProgress,
) -> Result<Response<ResponseBody<B>>, Infallible>
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
{
    poll_fn(|context| service.poll_ready(context)).await?;
    let response = service.call(request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        exchange.begin_other_protocol();
    }
    Ok(response.map(|body| ResponseBody {
        body,
        _in_progress: in_progress,
    }))
}

/// The connection once its handshake is done, if the listener has TLS. None: the listener stops.
async fn encrypted(
    stream: TcpStream,
    config: &Config,
    stopping: &mut watch::Receiver<bool>,
) -> Result<Option<Stream>, HandshakeError> {
    let Some(tls) = &config.tls else {
        return Ok(Some(Stream::Plain(stream)));
    };
    // A place for a refusal is taken for a moment only.
    let accepting = timeout(config.timeouts.head, tls.accept(stream));
    tokio::select! {
        biased;
        _ = stopping.wait_for(|is_stopping| *is_stopping) => Ok(None),
        accepted = accepting => {
            let accepted = accepted.map_err(|_elapsed| HandshakeError::TimedOut)??;
            Ok(Some(Stream::Tls(Box::new(accepted))))
        }
    }
}
