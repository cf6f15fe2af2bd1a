//! The way between nodes over HTTP: what one sends, and the route where another takes it.
//!
//! ```text
//! POST /v1/peers    a message    200 its answer
//! ```
//!
//! Both are bytes of the transactions service, which knows what they say and who may send them: a message without the store's
//! secret is answered like one to a node that is not here. The listener adds what it asks of everybody: a token beyond
//! loopback, its bounds of connections, time and bytes.
//!
//! Whatever its status, an answer says that the other node is there; anything but 200 says nothing else. Silence is only what the
//! way there reports: nobody listens, the connection ends before an answer begins, or is not made in time.

use std::{error::Error as _, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderValue, Request, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use transactions::{
    membership::Address,
    peers::{MESSAGE_BYTES_MAX, NoAnswer, Peers, message_bytes_max, not_here},
};

use crate::{
    backend::Backend,
    body,
    connection::OfConnection,
    problem::{Kind, Problem},
};

/// Where nodes are asked.
pub(crate) const PATH: &str = "/v1/peers";
/// How long a connection may take to be made, out of the time that the service gives a call.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// How long a connection is kept that nobody uses: less than the other side keeps it.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// How many of them are kept to one node.
const IDLE_CONNECTIONS_MAX: usize = 32;

/// Other nodes, by HTTP/1.1 with connections that are kept. Clones share them.
#[derive(Clone)]
pub struct HttpPeers {
    http: Client<HttpConnector, Full<Bytes>>,
    authorization: Option<HeaderValue>,
}

impl fmt::Debug for HttpPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpPeers").finish_non_exhaustive()
    }
}

impl HttpPeers {
    /// Shows `token` to the other nodes, if there is one: that of this node's own listener. Errors: it fits no header.
    pub fn new(token: Option<&str>) -> Result<Self, header::InvalidHeaderValue> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_MAX));
        connector.set_nodelay(true);
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(connector);
        let authorization = token
            .map(|token| HeaderValue::try_from(format!("Bearer {token}")))
            .transpose()?;
        Ok(Self {
            http,
            authorization,
        })
    }

    fn request(&self, address: &Address, message: Bytes) -> Result<Request<Full<Bytes>>, NoAnswer> {
        let mut request = Request::post(format!("http://{}{PATH}", address.0))
            .header(header::CONTENT_TYPE, "application/octet-stream");
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        request
            .body(Full::new(message))
            .map_err(|error| NoAnswer::Silence(error.to_string().into()))
    }
}

#[async_trait]
impl Peers for HttpPeers {
    async fn call(&self, address: &Address, message: Bytes) -> Result<Bytes, NoAnswer> {
        let request = self.request(address, message)?;
        let response = self.http.request(request).await.map_err(|error| {
            let why = error
                .source()
                .map_or_else(|| error.to_string(), ToString::to_string);
            NoAnswer::Silence(why.into())
        })?;
        let status = response.status();
        let said = || format!("{} answers {status}", address.0).into();
        match status {
            StatusCode::OK => {}
            StatusCode::TOO_MANY_REQUESTS => return Err(NoAnswer::TooMuchBuffered),
            _ => return Err(NoAnswer::Unavailable(said())),
        }
        match Limited::new(response.into_body(), MESSAGE_BYTES_MAX)
            .collect()
            .await
        {
            Ok(whole) => Ok(whole.to_bytes()),
            // It has begun to answer, so it has done what it was asked.
            Err(error) => Err(NoAnswer::Unavailable(error.to_string().into())),
        }
    }
}

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new().route(PATH, post(answer))
}

async fn answer(
    State(backend): State<Arc<Backend>>,
    waits: OfConnection,
    body: Body,
) -> Result<Response, Problem> {
    // Whoever was asked is not this process, which only begins: there is nothing to wait for.
    let Ok(engine) = backend.transactions() else {
        return Ok(said(not_here()));
    };
    let bytes_max = |first: u8| message_bytes_max(first);
    let whole = body::read_by_kind(body, bytes_max, &backend.budget).await?;
    let (message, _reserved) = whole.into_parts();
    let bytes = message.len();
    let answer = async { Ok(engine.answer_peer(message).await) };
    Ok(said(
        backend
            .in_time_for(bytes, &waits, Kind::Unavailable, answer)
            .await?,
    ))
}

fn said(answer: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/octet-stream")], answer).into_response()
}
