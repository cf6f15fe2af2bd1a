//! Sockets: a pool of keep-alive connections per node, one request at a time on each.

use std::{error::Error as _, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, header, response::Parts};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::ClientConfig;
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    call::{Call, Condition, Response},
    limits::{CONNECT_MAX, CONNECTIONS_MAX, IDLE_MAX},
    nodes::Address,
    pace::{self, TOO_LATE},
};

const ATTEMPT: &str = "landfast-attempt";
const AFTER: &str = "landfast-after";
const EFFECT: &str = "landfast-effect";
const USER_AGENT: &str = concat!("landfast-rust/", env!("CARGO_PKG_VERSION"));

/// The result of sending a request once.
#[derive(Debug)]
pub(crate) enum Event {
    Response(Response),
    /// No response came. `was_sent` is false only if not one byte can have reached the server.
    Lost {
        reason: String,
        was_sent: bool,
    },
    /// The request can never be sent to any server.
    Malformed(String),
}

impl Event {
    fn lost(reason: impl Into<String>, was_sent: bool) -> Self {
        let reason = reason.into();
        Self::Lost { reason, was_sent }
    }
}

/// Every connection of one client. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Connections {
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    nodes: Arc<[Node]>,
    /// The credentials in every request.
    pub(crate) authorization: Option<HeaderValue>,
}

#[derive(Debug)]
struct Node {
    scheme: &'static str,
    address: String,
    places: Semaphore,
}

impl Connections {
    /// `trust` is for the nodes with TLS.
    pub(crate) fn to(nodes: &[Address], trust: Arc<ClientConfig>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_MAX));
        connector.set_nodelay(true);
        connector.enforce_http(false);
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(CONNECTIONS_MAX)
            .build(HttpsConnector::from((connector, trust)));
        let node = |address: &Address| Node {
            scheme: if address.is_tls { "https" } else { "http" },
            address: address.authority.clone(),
            places: Semaphore::new(CONNECTIONS_MAX),
        };
        Self {
            http,
            nodes: nodes.iter().map(node).collect(),
            authorization: None,
        }
    }

    pub(crate) fn address(&self, node: usize) -> &str {
        &self.nodes[node].address
    }

    /// Sends one request once. A response that begins within `most` is read for as long as it keeps
    /// its pace.
    pub(crate) async fn send(&self, node: usize, call: &Call, most: Duration) -> Event {
        let node = &self.nodes[node];
        let request = match self.request(node, call) {
            Ok(request) => request,
            Err(error) => return Event::Malformed(format!("it cannot be sent: {error}")),
        };
        let Ok(_place) = timeout(most, node.places.acquire()).await else {
            let reason = format!("all {CONNECTIONS_MAX} connections were busy");
            return Event::lost(reason, false);
        };
        call.begin_sending();
        match timeout(most, self.http.request(request)).await {
            Ok(Ok(response)) => {
                let (head, body) = response.into_parts();
                answer(&head, body).await
            }
            Ok(Err(error)) => {
                let cause = error.source();
                let reason = cause.map_or_else(|| error.to_string(), ToString::to_string);
                Event::lost(reason, !error.is_connect())
            }
            Err(_) => Event::lost(TOO_LATE, true),
        }
    }

    fn request(&self, node: &Node, call: &Call) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}://{}{}", node.scheme, node.address, call.path))
            .header(header::USER_AGENT, USER_AGENT);
        let effect = call.effect.map(|place| place.to_string());
        let condition = match &call.condition {
            None => (None, None),
            Some(Condition::Absent) => (Some("*"), None),
            Some(Condition::Present) => (None, Some("*")),
            Some(Condition::Match(etag)) => (None, Some(&**etag)),
        };
        let named = [
            (ATTEMPT, call.attempt.as_deref()),
            (AFTER, call.after.as_deref()),
            (EFFECT, effect.as_deref()),
            (header::CONTENT_TYPE.as_str(), call.content_type),
            (header::IF_NONE_MATCH.as_str(), condition.0),
            (header::IF_MATCH.as_str(), condition.1),
        ];
        for (name, value) in named {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        request.body(Full::new(call.body.clone()))
    }
}

async fn answer(head: &Parts, body: Incoming) -> Event {
    match pace::whole(body).await {
        Ok(body) => Event::Response(Response {
            status: head.status.as_u16(),
            after: text(&head.headers, AFTER),
            retry_after: text(&head.headers, header::RETRY_AFTER.as_str()),
            etag: text(&head.headers, header::ETAG.as_str()),
            body,
        }),
        Err(reason) => Event::lost(reason, true),
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, error::ErrorKind};

    /// Before, the client repeated such a request until its time ran out, and reported that no
    /// server answered.
    #[tokio::test]
    async fn what_no_server_can_be_sent_is_refused_at_once() {
        let state = Client::connect(["http://127.0.0.1:9"])
            .expect("a URL")
            .state();
        let refused = state.get(vec![b'k'; 70_000]);
        let error = timeout(Duration::from_mins(2), refused)
            .await
            .expect("at once")
            .expect_err("it is too long");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    }
}
