//! Messages between the nodes of one store over HTTP: the client, and the route that receives them.
//!
//! ```text
//! POST /v1/peers    a message    200 its reply
//! ```
//!
//! The transactions service defines both as bytes, and checks who sends them. It replies to a
//! message without the store's secret as to a message for another node. The guard and the listener
//! check the rest: a token beyond loopback, and the bounds of connections, time and bytes.
//!
//! A response of any status shows that the node is alive. A status other than 200 shows nothing
//! else. Only the connection reports silence: it is refused, is not made in time, or ends before a
//! response begins.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderValue, Request, StatusCode, header},
    routing::post,
};
use bytes::Bytes;
use http_client::Client;
use transactions::{
    membership::Address,
    peers::{MESSAGE_BYTES_MAX, NoAnswer, Peers, message_bytes_max, not_here},
};

use crate::{
    backend::Backend,
    body,
    problem::Kind,
    response::{self, Answer},
};

pub(crate) const PATH: &str = "/v1/peers";
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
    authorization: Option<HeaderValue>,
}

impl HttpPeers {
    /// Sends `token` to the other nodes, if there is one: the token of this node's own listener.
    /// Errors: it fits no header.
    pub fn new(token: Option<&str>) -> Result<Self, header::InvalidHeaderValue> {
        let http = Client::new(http_client::Config {
            connect_timeout: CONNECT_MAX,
            idle_timeout: IDLE_MAX,
            idle_connections_max: IDLE_CONNECTIONS_MAX,
            response_bytes_max: MESSAGE_BYTES_MAX,
        });
        let authorization = token.map(|token| HeaderValue::try_from(format!("Bearer {token}")));
        let mut authorization = authorization.transpose()?;
        if let Some(token) = &mut authorization {
            token.set_sensitive(true);
        }
        Ok(Self {
            http,
            authorization,
        })
    }

    fn request(&self, address: &Address, message: Bytes) -> Result<Request<Bytes>, NoAnswer> {
        let mut request = Request::post(format!("http://{}{PATH}", address.0))
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

pub(crate) fn routes() -> Router<Arc<Backend>> {
    Router::new().route(PATH, post(answer))
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
