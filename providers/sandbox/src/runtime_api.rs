//! The AWS Lambda Runtime API as one instance sees it (`2018-06-01`): next, response, error, init error.
//!
//! Each instance has a listener of its own inside its sandbox, so who connects is known by where it connects. Answers are
//! kept in memory until they are whole, up to [`ANSWER_BYTES_MAX`]; what is longer is refused as Lambda does.

use std::{convert::Infallible, error::Error, fmt::Debug, sync::Arc};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    exchange::{Answer, Exchange, NotAsked, Task},
    failure,
    receiving::{Allowance, Incoming},
};

/// The longest result of a function: Lambda's 6 MB and what frames it.
pub(crate) const ANSWER_BYTES_MAX: usize = 6_291_556;
/// Connections of one instance at a time.
const CONNECTIONS_MAX: usize = 64;
const PREFIX: &str = "/2018-06-01/runtime/";

/// What is answered, here or by whoever serves what functions ask for beside the Runtime API.
pub type Reply = Response<UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>>;

/// What an instance reaches beside the Runtime API, at the same address.
#[async_trait]
pub trait Api: Debug + Send + Sync {
    /// Answers a request of an instance, whose invocation has this [scope](ports::runtime::Invocation::scope).
    async fn call(&self, scope: Option<Arc<str>>, request: Request<Incoming>) -> Reply;
}

/// What one listener serves.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) arn: HeaderValue,
    pub(crate) api: Arc<dyn Api>,
    /// What all bodies of the function may have.
    pub(crate) allowance: Allowance,
}

/// Serves the instance at the other end of `listener` for ever.
pub(crate) async fn serve(listener: TcpListener, served: Served) {
    let served = Arc::new(served);
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn(converse(stream, Arc::clone(&served)));
            }
            // Descriptors are short: they come back as connections end.
            Err(error) => {
                tracing::debug!(%error, "a function's connection was not accepted");
                tokio::task::yield_now().await;
            }
        }
    }
}

async fn converse(stream: TcpStream, served: Arc<Served>) {
    // An answer is one packet, and somebody waits for it.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let served = Arc::clone(&served);
        async move {
            let (request, charged) = served.allowance.receive(request);
            let reply = route(request, &served).await;
            drop(charged);
            Ok::<_, Infallible>(reply)
        }
    });
    // It ends as the instance ends it; its words are in its log.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn route(request: Request<Incoming>, served: &Served) -> Reply {
    let Served { exchange, arn, api, .. } = served;
    if !is_from_a_program(request.headers()) {
        return refusal(StatusCode::FORBIDDEN, "Forbidden");
    }
    let path = request.uri().path().to_owned();
    let Some(path) = path.strip_prefix(PREFIX) else { return api.call(exchange.scope(), request).await };
    match (request.method(), path.split('/').collect::<Vec<_>>().as_slice()) {
        (&Method::GET, ["invocation", "next"]) => match exchange.next().await {
            Some(task) => invocation(task, arn),
            None => refusal(StatusCode::GONE, "Ended"),
        },
        (&Method::POST, ["invocation", id, "response"]) => {
            if !exchange.expects(id) {
                return refusal(StatusCode::BAD_REQUEST, "InvalidRequestID");
            }
            match whole(request.into_body()).await {
                Ok(bytes) => taken(exchange.answer(id, Answer::Response(bytes))),
                Err(Unfit::TooLong(bytes)) => {
                    let _ = exchange.answer(id, Answer::TooLong(bytes));
                    refusal(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge")
                }
                Err(Unfit::BrokenOff) => refusal(StatusCode::BAD_REQUEST, "BrokenOff"),
            }
        }
        (&Method::POST, ["invocation", id, "error"]) => {
            let error = error_of(request).await;
            taken(exchange.answer(id, Answer::Error(error)))
        }
        (&Method::POST, ["init", "error"]) => {
            exchange.fail_start(error_of(request).await);
            taken(Ok(()))
        }
        _ => refusal(StatusCode::NOT_FOUND, "NoSuchPath"),
    }
}

/// Whether no page in a browser can have sent it: where a function has the machine's network, its listener is on the machine's
/// loopback, which any page may be made to call by another name.
fn is_from_a_program(headers: &HeaderMap) -> bool {
    let is_ours = |host: &HeaderValue| host.as_bytes().starts_with(b"127.0.0.1:");
    headers.get(HOST).is_none_or(is_ours) && !headers.contains_key(ORIGIN)
}

/// The answer to `next`.
fn invocation(task: Task, arn: &HeaderValue) -> Reply {
    let Task { invocation, deadline_ms } = task;
    let mut response = Response::builder()
        .header("lambda-runtime-aws-request-id", &invocation.id)
        .header("lambda-runtime-deadline-ms", deadline_ms)
        .header("lambda-runtime-invoked-function-arn", arn)
        .header(CONTENT_TYPE, "application/json");
    if let Some(context) = invocation.client_context {
        response = response.header("lambda-runtime-client-context", context);
    }
    response
        .body(whole_body(invocation.payload))
        .unwrap_or_else(|_| refusal(StatusCode::INTERNAL_SERVER_ERROR, "InvalidHeader"))
}

fn taken(answered: Result<(), NotAsked>) -> Reply {
    match answered {
        Ok(()) => {
            let mut response = Response::new(whole_body(Bytes::from_static(br#"{"status":"OK"}"#)));
            *response.status_mut() = StatusCode::ACCEPTED;
            response
        }
        Err(NotAsked) => refusal(StatusCode::BAD_REQUEST, "InvalidRequestID"),
    }
}

fn refusal(status: StatusCode, kind: &str) -> Reply {
    let message = status.canonical_reason().unwrap_or_default();
    let mut response = Response::new(whole_body(failure::payload(kind, message)));
    *response.status_mut() = status;
    response
}

fn whole_body(bytes: Bytes) -> UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>> {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// Why a body is no answer.
enum Unfit {
    /// It has so many bytes.
    TooLong(usize),
    /// It has no end: what there is of it is not what was meant (U3).
    BrokenOff,
}

/// The whole of a body.
async fn whole(mut body: Incoming) -> Result<Bytes, Unfit> {
    let mut bytes = BytesMut::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Unfit::BrokenOff)?.into_data() else { continue };
        length += data.len();
        if length <= ANSWER_BYTES_MAX {
            bytes.extend_from_slice(&data);
        }
    }
    if length > ANSWER_BYTES_MAX { Err(Unfit::TooLong(length)) } else { Ok(bytes.freeze()) }
}

/// What a function says of its failure: its JSON, or what its header names.
async fn error_of(request: Request<Incoming>) -> Bytes {
    let kind = request.headers().get("lambda-runtime-function-error-type").cloned();
    let said = whole(request.into_body()).await.unwrap_or_else(|_| Bytes::new());
    if serde_json::from_slice::<serde::de::IgnoredAny>(&said).is_ok() {
        return said;
    }
    let kind = kind.as_ref().and_then(|kind| kind.to_str().ok()).unwrap_or("Runtime.Unknown");
    failure::payload(kind, &String::from_utf8_lossy(&said))
}
