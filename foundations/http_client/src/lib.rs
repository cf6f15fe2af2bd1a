//! A pooled HTTP/1.1 client with bounds in time and bytes, over TLS where the URI says `https`.
//!
//! The nodes of one store, the command line and the benches call servers with it. It sends a
//! request once and returns the whole response. Callers decide what an error means and whether to
//! repeat, because only they know whether a request is idempotent. So [`Error`] says whether the
//! request may have reached the server.
//!
//! A pooled connection that the server closed while it idled is replaced before a request is
//! written to it. Redirects, cookies and compression are deliberately absent.

// Why: real time and sockets enter here, as in a front end.
#![allow(clippy::disallowed_methods)]

mod connector;
mod streaming;

use std::{error::Error as _, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Body;
use hyper_util::{
    client::legacy,
    rt::{TokioExecutor, TokioTimer},
};
use tokio::time::timeout;

use self::connector::Connector;
pub use self::connector::{Connection, Trust, connect, peer_address};
pub use self::streaming::{Failure, StreamedBody, StreamingClient};

/// The bounds of one client.
#[derive(Debug, Clone)]
pub struct Config {
    /// For making a connection, with its TLS handshake.
    pub connect_timeout: Duration,
    /// How long an unused connection is kept. Choose less than the server keeps it.
    pub idle_timeout: Duration,
    /// Unused connections that are kept to one server.
    pub idle_connections_max: usize,
    /// The bytes of one response's body.
    pub response_bytes_max: usize,
    /// The authorities of `https` servers.
    pub trust: Trust,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            idle_connections_max: 32,
            response_bytes_max: 8 << 20,
            trust: Trust::default(),
        }
    }
}

/// Why there is no whole response.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No connection could be made: the server has not seen the request.
    #[error("{0}")]
    Connect(String),
    /// The connection ended before a response began: the server may have seen the request.
    #[error("{0}")]
    NoResponse(String),
    /// No response began within this time: the server may have seen the request.
    #[error("nothing came for {} s", .0.as_secs_f32())]
    TimedOut(Duration),
    /// The bytes that came back are not HTTP/1.1.
    #[error("{0}")]
    NotHttp(String),
    /// A response with this status began and did not end.
    #[error("{reason}")]
    Incomplete {
        /// The status of the response.
        status: StatusCode,
        /// How it ended.
        reason: String,
    },
    /// The body of the response is longer than [`Config::response_bytes_max`].
    #[error("the response has more than {bytes_max} bytes")]
    TooLong {
        /// The status of the response.
        status: StatusCode,
        /// The bound.
        bytes_max: usize,
    },
}

/// A client of any number of servers. Clones share its connections.
#[derive(Debug, Clone)]
pub struct Client {
    pool: legacy::Client<Connector, Full<Bytes>>,
    response_bytes_max: usize,
}

impl Client {
    /// A client without connections.
    pub fn new(config: Config) -> Self {
        Self {
            response_bytes_max: config.response_bytes_max,
            pool: pool(config),
        }
    }

    /// Sends `request`, whose URI is `http://HOST:PORT/PATH` or `https`, and returns the whole response.
    ///
    /// `wait_max` bounds the wait for the head of the response, and for each further piece of it:
    /// a response that goes on coming is read to its end. To bound the whole time, drop the future.
    pub async fn send(
        &self,
        request: Request<Bytes>,
        wait_max: Duration,
    ) -> Result<Response<Bytes>, Error> {
        let request = request.map(Full::new);
        let response = match timeout(wait_max, self.pool.request(request)).await {
            Ok(begun) => begun.map_err(|error| lost(&error))?,
            Err(_elapsed) => return Err(Error::TimedOut(wait_max)),
        };
        let (head, mut body) = response.into_parts();
        let status = head.status;
        let incomplete = |reason: String| Error::Incomplete { status, reason };
        let mut whole = BytesMut::new();
        loop {
            let frame = timeout(wait_max, body.frame())
                .await
                .map_err(|_elapsed| incomplete(Error::TimedOut(wait_max).to_string()))?;
            let Some(frame) = frame else {
                return Ok(Response::from_parts(head, whole.freeze()));
            };
            let frame = frame.map_err(|error| incomplete(error.to_string()))?;
            let data = frame.into_data().unwrap_or_default();
            if data.len() > self.response_bytes_max - whole.len() {
                let bytes_max = self.response_bytes_max;
                return Err(Error::TooLong { status, bytes_max });
            }
            whole.extend_from_slice(&data);
        }
    }
}

fn pool<B>(config: Config) -> legacy::Client<Connector, B>
where
    B: Body<Data = Bytes> + Send,
{
    let connector = Connector::new(config.trust, config.connect_timeout);
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(config.idle_timeout)
        .pool_max_idle_per_host(config.idle_connections_max)
        .build(connector)
}

/// The error of a request without a response. hyper's own says little, its cause says why.
fn lost(error: &legacy::Error) -> Error {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    let is_parse = causes
        .filter_map(|cause| cause.downcast_ref::<hyper::Error>())
        .any(hyper::Error::is_parse);
    let cause = error.source();
    let reason = cause.map_or_else(|| error.to_string(), ToString::to_string);
    if error.is_connect() {
        Error::Connect(reason)
    } else if is_parse {
        Error::NotHttp(reason)
    } else {
        Error::NoResponse(reason)
    }
}

impl Error {
    /// The status of a response that began.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Incomplete { status, .. } | Self::TooLong { status, .. } => Some(*status),
            _ => None,
        }
    }
}
