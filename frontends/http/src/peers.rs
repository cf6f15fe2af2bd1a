//! Messages between the nodes of one store over HTTP: the client, and the route that receives them.
//!
//! ```text
//! POST /v1/peers            a message    200 its reply
//! GET  /v1/peers/volumes                 101, then the protocol of volumes
//! ```
//!
//! The transactions service defines both as bytes, and checks who sends them. It replies to a
//! message without the store's secret as to a message for another node. The guard and the listener
//! check the rest: a token beyond loopback, and the bounds of connections, time and bytes.
//!
//! A response of any status shows that the node is alive. A status other than 200 shows nothing
//! else. Only the connection reports silence: it is refused, is not made in time, or ends before a
//! response begins.

use std::{fmt::Debug, io, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderValue, Request, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use bytes::Bytes;
use http_client::{Client, Connection, Trust};
use hyper::upgrade;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};
use transactions::{
    membership::Address,
    peers::{MESSAGE_BYTES_MAX, NoAnswer, Peers, message_bytes_max, not_here},
};

use crate::{
    backend::Backend,
    body,
    problem::{Kind, Problem},
    response::{self, Answer},
};

pub(crate) const PATH: &str = "/v1/peers";
const VOLUMES_PATH: &str = "/v1/peers/volumes";
/// The name of the protocol of volumes in upgrades.
const VOLUMES_PROTOCOL: &str = "landfast-volumes";
/// The longest head of a response to an upgrade, in bytes.
const HEAD_BYTES_MAX: usize = 4 << 10;
/// How long the other node may take for it.
const HEAD_MAX: Duration = Duration::from_secs(2);
/// The time for making a connection, out of the time that the service gives a call.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// How long an unused connection is kept: less than the other node keeps it.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// How long a response may stall. The service gives a call less, unless the node shows that it is
/// alive.
const WAIT_MAX: Duration = Duration::from_mins(15);
/// Unused connections that are kept to one node.
const IDLE_CONNECTIONS_MAX: usize = 32;

/// The other nodes over pooled HTTP/1.1 connections. Clones share them.
#[derive(Debug, Clone)]
pub struct HttpPeers {
    http: Client,
    scheme: &'static str,
    trust: Trust,
    authorization: Option<HeaderValue>,
}

impl HttpPeers {
    /// Sends `token` to the other nodes, if there is one: the token of this node's own listener.
    /// With `trust`, they have TLS, as this one. Errors: the token fits no header.
    pub fn new(
        token: Option<&str>,
        trust: Option<Trust>,
    ) -> Result<Self, header::InvalidHeaderValue> {
        let scheme = if trust.is_some() { "https" } else { "http" };
        let trust = trust.unwrap_or_default();
        let http = Client::new(http_client::Config {
            connect_timeout: CONNECT_MAX,
            idle_timeout: IDLE_MAX,
            idle_connections_max: IDLE_CONNECTIONS_MAX,
            response_bytes_max: MESSAGE_BYTES_MAX,
            trust: trust.clone(),
        });
        let authorization = token.map(|token| HeaderValue::try_from(format!("Bearer {token}")));
        let mut authorization = authorization.transpose()?;
        if let Some(token) = &mut authorization {
            token.set_sensitive(true);
        }
        Ok(Self {
            http,
            scheme,
            trust,
            authorization,
        })
    }

    /// A connection to the volumes of the server at `address`. The next bytes are those of their
    /// protocol. Errors: it cannot be reached, or refuses.
    pub async fn connect_to_volumes(&self, address: &Address) -> io::Result<Connection> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time");
        let uri = format!("{}://{}{VOLUMES_PATH}", self.scheme, address.0);
        let uri = uri.parse().map_err(io::Error::other)?;
        let mut stream = http_client::connect(uri, &self.trust, CONNECT_MAX).await?;
        let mut head = format!(
            "GET {VOLUMES_PATH} HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\nupgrade: {VOLUMES_PROTOCOL}\r\n",
            address.0
        )
        .into_bytes();
        if let Some(token) = &self.authorization {
            head.extend([b"authorization: ", token.as_bytes(), b"\r\n"].concat());
        }
        head.extend(b"\r\n");
        let answered = timeout(HEAD_MAX, async {
            stream.write_all(&head).await?;
            stream.flush().await?;
            head_of_response(&mut stream).await
        });
        let answer = answered.await.map_err(late)??;
        if !answer.starts_with(b"HTTP/1.1 101") {
            let line = answer.split(|byte| *byte == b'\r').next();
            let line = String::from_utf8_lossy(line.unwrap_or_default()).into_owned();
            return Err(io::Error::other(line));
        }
        Ok(stream)
    }

    fn request(&self, address: &Address, message: Bytes) -> Result<Request<Bytes>, NoAnswer> {
        let mut request = Request::post(format!("{}://{}{PATH}", self.scheme, address.0))
            .header(header::CONTENT_TYPE, "application/octet-stream");
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(message);
        request.map_err(|error| NoAnswer::Silence(error.to_string().into()))
    }
}

#[async_trait]
impl Peers for HttpPeers {
    async fn call(&self, address: &Address, message: Bytes) -> Result<Bytes, NoAnswer> {
        let request = self.request(address, message)?;
        let (status, body) = match self.http.send(request, WAIT_MAX).await {
            Ok(response) => (response.status(), Ok(response.into_body())),
            Err(error) => match error.status() {
                Some(status) => (status, Err(error)),
                None => return Err(NoAnswer::Silence(error.to_string().into())),
            },
        };
        match (status, body) {
            (StatusCode::OK, Ok(answer)) => Ok(answer),
            // The response has begun, so the node has done what it was asked.
            (StatusCode::OK, Err(error)) => Err(NoAnswer::Unavailable(error.to_string().into())),
            (StatusCode::TOO_MANY_REQUESTS, _) => Err(NoAnswer::TooMuchBuffered),
            _ => {
                let why = format!("{} answers {status}", address.0);
                Err(NoAnswer::Unavailable(why.into()))
            }
        }
    }
}

/// The head of a response. The peer sends nothing after it until it is asked.
async fn head_of_response(stream: &mut Connection) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    // A refusal has a body.
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= HEAD_BYTES_MAX || stream.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new()
        .route(PATH, post(answer))
        .route(VOLUMES_PATH, get(volumes))
}

async fn volumes(
    State(backend): State<Arc<Backend>>,
    mut request: Request<Body>,
) -> Result<Response, Problem> {
    let protocol = request.headers().get(header::UPGRADE);
    if protocol.is_none_or(|protocol| protocol != VOLUMES_PROTOCOL) {
        let why = "this is for other servers of the store, which upgrade to their own protocol";
        return Err(Problem::invalid(why));
    }
    let peers = Arc::clone(backend.volume_peers()?);
    let upgraded = upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgraded.await {
            Ok(upgraded) => peers.serve(TokioIo::new(upgraded)).await,
            Err(error) => tracing::debug!(%error, "a request for volumes was no upgrade"),
        }
    });
    let headers = [
        (header::CONNECTION, "upgrade"),
        (header::UPGRADE, VOLUMES_PROTOCOL),
    ];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

async fn answer(State(backend): State<Arc<Backend>>, body: Body) -> Answer {
    // This process is still starting, so it is not the node that the message is for.
    let Ok(engine) = backend.transactions() else {
        return Ok(response::bytes(not_here()));
    };
    let whole = body::read_by_kind(body, message_bytes_max, &backend.budget).await?;
    let (message, _reserved) = whole.into_parts();
    let bytes = message.len();
    let answer = async { Ok(engine.answer_peer(message).await) };
    let in_time = backend.in_time(bytes, Kind::Unavailable, answer);
    Ok(response::bytes(in_time.await?))
}
