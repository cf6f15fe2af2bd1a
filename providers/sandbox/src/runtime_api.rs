//! The AWS Lambda Runtime API as one instance sees it (`2018-06-01`): next, response, error, init error.
//!
//! Each instance has a listener of its own, so who connects is known by where it connects; where others reach that, they are not let in
//! ([`Peers`]). Answers are
//! kept in memory until they are whole, up to [`ANSWER_BYTES_MAX`]; what is longer is refused as Lambda does. However many
//! connections an instance has, one answer at a time is received: what it can have us keep of answers is one and its
//! connections' buffers. What else it sends is within its function's [`Allowance`], as its answers are.

use std::{convert::Infallible, error::Error, fmt::Debug, sync::Arc};

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
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
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::Mutex,
    task::JoinSet,
};

use crate::{
    exchange::{Answer, Exchange, NotAsked, Task},
    failure,
    peers::Peers,
    receiving::{Allowance, Incoming},
};

/// The longest result of a function: Lambda's 6 MB and what frames it.
pub(crate) const ANSWER_BYTES_MAX: usize = 6_291_556;
/// The longest that a function says of its failure.
const ERROR_BYTES_MAX: usize = 256 * 1024;
/// Connections of one instance at a time.
const CONNECTIONS_MAX: usize = 64;
/// What is read ahead on each; the head of a request is shorter.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
const PREFIX: &str = "/2018-06-01/runtime/";
/// Of what type a failure is: among the headers of an error, or the trailers of a response that failed midway.
const ERROR_TYPE: &str = "lambda-runtime-function-error-type";
/// What is said of it there, in base64.
const ERROR_BODY: &str = "lambda-runtime-function-error-body";
/// The type of what names none.
const UNKNOWN: &str = "Runtime.Unknown";

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
    exchange: Arc<Exchange>,
    arn: HeaderValue,
    api: Arc<dyn Api>,
    /// What all bodies of the function may have.
    allowance: Allowance,
    /// Held while an answer is received.
    receiving: Mutex<()>,
}

impl Served {
    pub(crate) fn new(
        exchange: Arc<Exchange>,
        arn: HeaderValue,
        api: Arc<dyn Api>,
        allowance: Allowance,
    ) -> Self {
        Self {
            exchange,
            arn,
            api,
            allowance,
            receiving: Mutex::default(),
        }
    }
}

/// Serves the instance whose `listener` and `peers` these are for ever.
pub(crate) async fn serve(listener: TcpListener, peers: Peers, served: Served) {
    let served = Arc::new(served);
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                // Whose it is costs a look by the kernel, and no place among the connections.
                if !peers.admit(&stream).await {
                    // A stranger may come as often as it likes: everybody else has a turn before the next one.
                    drop(stream);
                    tokio::task::yield_now().await;
                    continue;
                }
                // An answer is one packet, and somebody waits for it.
                let _ = stream.set_nodelay(true);
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

/// Answers what comes on one connection.
pub(crate) async fn converse<S>(stream: S, served: Arc<Served>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
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
    let _ = http1::Builder::new()
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn route(request: Request<Incoming>, served: &Served) -> Reply {
    let Served {
        exchange, arn, api, ..
    } = served;
    if !is_from_a_program(request.headers()) {
        return refusal(StatusCode::FORBIDDEN, "Forbidden");
    }
    let path = request.uri().path().to_owned();
    let Some(path) = path.strip_prefix(PREFIX) else {
        return api.call(exchange.scope(), request).await;
    };
    match (
        request.method(),
        path.split('/').collect::<Vec<_>>().as_slice(),
    ) {
        (&Method::GET, ["invocation", "next"]) => match exchange.next().await {
            Some(task) => invocation(task, arn),
            None => refusal(StatusCode::GONE, "Ended"),
        },
        (&Method::POST, ["invocation", id, "response"]) => {
            if !exchange.expects(id) {
                return refusal(StatusCode::BAD_REQUEST, "InvalidRequestID");
            }
            match served.whole(request.into_body(), ANSWER_BYTES_MAX).await {
                Ok(bytes) => taken(exchange.answer(id, Answer::Response(bytes))),
                Err(Unfit::TooLong(bytes)) => {
                    let _ = exchange.answer(id, Answer::TooLong(bytes));
                    refusal(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge")
                }
                Err(Unfit::Failed(error)) => taken(exchange.answer(id, Answer::Error(error))),
                Err(Unfit::BrokenOff) => refusal(StatusCode::BAD_REQUEST, "BrokenOff"),
            }
        }
        (&Method::POST, ["invocation", id, "error"]) => {
            if !exchange.expects(id) {
                return refusal(StatusCode::BAD_REQUEST, "InvalidRequestID");
            }
            let error = served.error_of(request).await;
            taken(exchange.answer(id, Answer::Error(error)))
        }
        (&Method::POST, ["init", "error"]) => {
            exchange.fail_start(served.error_of(request).await);
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
    let Task {
        invocation,
        deadline_ms,
    } = task;
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
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// Why a body is no answer.
enum Unfit {
    /// It has so many bytes.
    TooLong(usize),
    /// It has no end: what there is of it is not what was meant (U3).
    BrokenOff,
    /// It was sent while it was made, and that failed, as its trailers say: nor is this what was meant.
    Failed(Bytes),
}

impl Served {
    /// The whole of a body. Errors: why it is none.
    async fn whole(&self, mut body: Incoming, bytes_max: usize) -> Result<Bytes, Unfit> {
        let _receiving = self.receiving.lock().await;
        let mut bytes = BytesMut::new();
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                // What is too long already does not get shorter.
                return Err(if length > bytes_max {
                    Unfit::TooLong(length)
                } else {
                    Unfit::BrokenOff
                });
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(other) => match other.into_trailers().ok().as_ref().and_then(failed_midway) {
                    Some(error) => return Err(Unfit::Failed(error)),
                    None => continue,
                },
            };
            length += data.len();
            if length <= bytes_max {
                bytes.extend_from_slice(&data);
            } else {
                bytes = BytesMut::new();
            }
        }
        if length > bytes_max {
            Err(Unfit::TooLong(length))
        } else {
            Ok(bytes.freeze())
        }
    }

    /// What a function says of its failure, of the type that its header names unless it says another.
    async fn error_of(&self, request: Request<Incoming>) -> Bytes {
        let kind = request.headers().get(ERROR_TYPE).cloned();
        let kind = kind
            .as_ref()
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or(UNKNOWN);
        match self.whole(request.into_body(), ERROR_BYTES_MAX).await {
            Ok(said) => in_an_object(kind, said),
            Err(Unfit::Failed(error)) => error,
            Err(Unfit::TooLong(bytes)) => failure::payload(
                kind,
                &format!("it said why in {bytes} bytes, and {ERROR_BYTES_MAX} are kept"),
            ),
            Err(Unfit::BrokenOff) => failure::payload(kind, "what it said of why broke off"),
        }
    }
}

/// What the trailers of a response say of its failure, if they do: the runtime had begun to send it before it knew.
fn failed_midway(trailers: &HeaderMap) -> Option<Bytes> {
    let kind = trailers.get(ERROR_TYPE)?.to_str().unwrap_or(UNKNOWN);
    let said = trailers
        .get(ERROR_BODY)
        .and_then(|said| BASE64_STANDARD.decode(said).ok());
    Some(match said {
        Some(said) => in_an_object(kind, said.into()),
        None => failure::payload(
            kind,
            "it failed while its response was sent, and did not say why",
        ),
    })
}

/// What is said of a failure, as an object in JSON: itself, or one around it.
fn in_an_object(kind: &str, said: Bytes) -> Bytes {
    if is_object(&said) {
        said
    } else {
        failure::payload(kind, &String::from_utf8_lossy(&said))
    }
}

fn is_object(said: &[u8]) -> bool {
    let begins = said.iter().find(|byte| !byte.is_ascii_whitespace());
    begins == Some(&b'{') && serde_json::from_slice::<serde::de::IgnoredAny>(said).is_ok()
}
