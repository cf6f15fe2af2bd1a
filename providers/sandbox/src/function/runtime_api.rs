//! The AWS Lambda Runtime API as one instance sees it (`2018-06-01`): next, response, error, init
//! error.
//!
//! Each instance has its own listener, which identifies it. Where other processes can reach the
//! listener, [`Peers`] keeps them out.
//!
//! An answer is held in memory until it is whole, up to [`ANSWER_BYTES_MAX`]; a longer one is
//! refused as Lambda does. One answer at a time is received from an instance, over however many
//! connections. Its answers therefore take the memory of one answer and of the connections'
//! buffers. All bodies of a function, answers included, share its [`Allowance`]. An error that is
//! too long to be kept is [shortened](failure::shortened).
//!
//! A process may end right after it has sent an answer, so its connections are read to their end.
//! The HTTP library gives up a request whose connection has ended. An answer is therefore received
//! [to its end](Answering), without the connection.

use std::{
    convert::Infallible,
    error::Error,
    ffi::OsString,
    fmt::Debug,
    future::poll_fn,
    sync::{Arc, Weak},
};

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use ports::{VolumeMount, runtime::Function};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{Mutex, Semaphore, oneshot},
    task::JoinSet,
};

use super::{
    failure::{self, ANSWER_BYTES_MAX},
    invocation_channel::{Answer, InvocationChannel, Task},
    request_body::{Allowance, Incoming},
    short_reads::{READ_BYTES_MAX, ShortReads},
};
use crate::process::Peers;

const CONNECTIONS_MAX: usize = 64;
/// The longest head of a request on most connections.
const HEAD_BYTES_MAX: usize = READ_BYTES_MAX + 1;
/// The longest head on a few connections. AWS's clients repeat an error in a header, of up to 1
/// MiB.
const LONG_HEAD_BYTES_MAX: usize = (1 << 20) + HEAD_BYTES_MAX;
/// The connections that may send a long head. They are the first that an instance opens, which are
/// those of its client.
const LONG_HEADS_MAX: usize = 8;
const PREFIX: &str = "/2018-06-01/runtime/";
/// The error type, in a header of an error or in a trailer of a response that failed midway.
const ERROR_TYPE: &str = "lambda-runtime-function-error-type";
/// The error, in base64, in that trailer.
const ERROR_BODY: &str = "lambda-runtime-function-error-body";
const UNKNOWN: &str = "Runtime.Unknown";

/// A response, of the Runtime API or of the server's own [`Api`].
pub type Reply = Response<UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>>;

/// The API that an instance reaches beside the Runtime API, at the same address.
#[async_trait]
pub trait Api: Debug + Send + Sync {
    /// Answers a request of an instance, whose invocation has this
    /// [scope](ports::runtime::Invocation::scope), and which has this `volume` mounted.
    async fn call(
        &self,
        scope: Option<Arc<str>>,
        volume: Option<&dyn VolumeMount>,
        request: Request<Incoming>,
    ) -> Reply;

    /// The variables that an instance of `function` needs for its requests.
    fn variables(&self, _function: &Function) -> Vec<(OsString, OsString)> {
        Vec::new()
    }
}

/// The service of one listener.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) channel: Arc<InvocationChannel>,
    pub(crate) arn: HeaderValue,
    pub(crate) api: Arc<dyn Api>,
    /// It is unmounted with the instance.
    pub(crate) volume: Option<Weak<dyn VolumeMount>>,
    pub(crate) allowance: Allowance,
    /// Held while an answer is received.
    pub(crate) receiving: Mutex<()>,
}

/// The length of the heads that a connection may send.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Head {
    Short,
    Long,
}

/// Serves the instance at `listener`, and no other peers, until `has_ended`. Returns once the
/// connections that were accepted by then have ended.
pub(crate) async fn serve(
    listener: TcpListener,
    peers: Peers,
    served: Served,
    has_ended: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    tokio::select! {
        biased;
        () = accept(&listener, peers, served, &mut connections) => {}
        _ = has_ended => {}
    }
    drop(listener);
    connections.join_all().await;
}

/// Accepts connections without end.
async fn accept(
    listener: &TcpListener,
    peers: Peers,
    served: Served,
    connections: &mut JoinSet<()>,
) {
    let served = Arc::new(served);
    let long_heads = Arc::new(Semaphore::new(LONG_HEADS_MAX));
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                // The check costs one kernel query, and no place among the connections.
                if !peers.admit(&stream).await {
                    // A stranger may connect without end: other tasks have a turn before the next
                    // one.
                    drop(stream);
                    tokio::task::yield_now().await;
                    continue;
                }
                // A response is one packet, and the instance waits for it.
                let _ = stream.set_nodelay(true);
                let (served, long) = (Arc::clone(&served), Arc::clone(&long_heads));
                connections.spawn(async move {
                    let long = long.try_acquire_owned();
                    let head = if long.is_ok() {
                        Head::Long
                    } else {
                        Head::Short
                    };
                    converse(stream, served, head).await;
                });
            }
            // No descriptors are left. They come back as connections end.
            Err(error) => {
                tracing::debug!(%error, "a function's connection was not accepted");
                tokio::task::yield_now().await;
            }
        }
    }
}

pub(crate) async fn converse<S>(stream: S, served: Arc<Served>, head: Head)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let answering = Answering::default();
    let service = service_fn(|request| {
        let served = Arc::clone(&served);
        let is_answer = is_answer(&request);
        let reply = async move {
            let (request, charged) = served.allowance.receive(request);
            let reply = route(request, &served).await;
            drop(charged);
            reply
        };
        let direct = if is_answer {
            *answering.lock() = Some(Box::pin(reply));
            None
        } else {
            Some(reply)
        };
        let answering = Arc::clone(&answering);
        async move {
            let reply = match direct {
                Some(reply) => reply.await,
                None => {
                    poll_fn(|context| {
                        let mut answering = answering.lock();
                        let reply = answering.as_mut().expect("the connection has not ended");
                        reply.as_mut().poll(context)
                    })
                    .await
                }
            };
            answering.lock().take();
            Ok::<_, Infallible>(reply)
        }
    });
    // The instance decides how it ends, and logs its own errors.
    let _ = http1::Builder::new()
        .max_buf_size(match head {
            Head::Long => LONG_HEAD_BYTES_MAX,
            Head::Short => HEAD_BYTES_MAX,
        })
        .serve_connection(TokioIo::new(ShortReads::of(stream)), service)
        .await;
    let left = answering.lock().take();
    if let Some(answer) = left {
        answer.await;
    }
}

/// The answer that a connection receives. It outlives the connection: an instance that ends right
/// after its answer closes the connection before the server has received the answer.
type Answering = Arc<parking_lot::Mutex<Option<BoxFuture<'static, Reply>>>>;

/// Whether a request is the answer to an invocation, or the error of a start.
fn is_answer<B>(request: &Request<B>) -> bool {
    request.method() == Method::POST && request.uri().path().starts_with(PREFIX)
}

async fn route(request: Request<Incoming>, served: &Served) -> Reply {
    let Served {
        channel,
        arn,
        api,
        volume,
        ..
    } = served;
    if !is_from_a_program(request.headers()) {
        return refusal(StatusCode::FORBIDDEN, "Forbidden");
    }
    let path = request.uri().path().to_owned();
    let Some(path) = path.strip_prefix(PREFIX) else {
        let volume = volume.as_ref().and_then(Weak::upgrade);
        return api.call(channel.scope(), volume.as_deref(), request).await;
    };
    match (
        request.method(),
        path.split('/').collect::<Vec<_>>().as_slice(),
    ) {
        (&Method::GET, ["invocation", "next"]) => match channel.next().await {
            Some(task) => invocation(task, arn),
            None => refusal(StatusCode::GONE, "Ended"),
        },
        (&Method::POST, ["invocation", id, "response"]) => {
            if !channel.expects(id) {
                return taken(false);
            }
            match served.whole(request.into_body(), ANSWER_BYTES_MAX).await {
                Ok(bytes) => taken(channel.answer(id, Answer::Response(bytes))),
                Err(Unfit::TooLong(bytes)) => {
                    channel.answer(id, Answer::TooLong(bytes));
                    refusal(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge")
                }
                Err(Unfit::Failed(error)) => taken(channel.answer(id, Answer::Error(error))),
                Err(Unfit::BrokenOff) => refusal(StatusCode::BAD_REQUEST, "BrokenOff"),
            }
        }
        (&Method::POST, ["invocation", id, "error"]) => {
            if !channel.expects(id) {
                return taken(false);
            }
            let error = served.error_of(request).await;
            taken(channel.answer(id, Answer::Error(error)))
        }
        (&Method::POST, ["init", "error"]) => {
            channel.fail_start(served.error_of(request).await);
            taken(true)
        }
        _ => refusal(StatusCode::NOT_FOUND, "NoSuchPath"),
    }
}

/// Whether no browser page can have sent it. A function with the machine's network has its listener
/// on the machine's loopback, which any page can call by another host name.
fn is_from_a_program(headers: &HeaderMap) -> bool {
    let is_ours = |host: &HeaderValue| host.as_bytes().starts_with(b"127.0.0.1:");
    headers.get(HOST).is_none_or(is_ours) && !headers.contains_key(ORIGIN)
}

/// The answer to `next`.
fn invocation(task: Task, arn: &HeaderValue) -> Reply {
    let invocation = task.invocation;
    let mut response = Response::builder()
        .header("lambda-runtime-aws-request-id", &invocation.id)
        .header("lambda-runtime-deadline-ms", task.deadline_ms)
        .header("lambda-runtime-invoked-function-arn", arn)
        .header("lambda-runtime-trace-id", trace_id(&invocation.id))
        .header(CONTENT_TYPE, "application/json");
    if let Some(context) = invocation.client_context {
        response = response.header("lambda-runtime-client-context", context);
    }
    response
        .body(whole_body(invocation.payload))
        .unwrap_or_else(|_| refusal(StatusCode::INTERNAL_SERVER_ERROR, "InvalidHeader"))
}

/// The tracing header of the request `id`, in the format of X-Ray: not sampled, since no daemon
/// collects segments here. All attempts of an event have the same one.
fn trace_id(id: &str) -> String {
    /// The parameters of the 128-bit FNV-1a hash.
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;
    let root = id.bytes().fold(BASIS, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(PRIME)
    });
    let digits = format!("{root:032x}");
    let (time, random) = digits.split_at(8);
    let parent = &digits[16..];
    format!("Root=1-{time}-{random};Parent={parent};Sampled=0")
}

/// The response to an answer; `is_taken`: the instance had such an invocation.
fn taken(is_taken: bool) -> Reply {
    if !is_taken {
        return refusal(StatusCode::BAD_REQUEST, "InvalidRequestID");
    }
    let mut response = Response::new(whole_body(Bytes::from_static(br#"{"status":"OK"}"#)));
    *response.status_mut() = StatusCode::ACCEPTED;
    response
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

enum Unfit {
    TooLong(usize),
    /// It breaks off, so its part must not count as the whole (U3).
    BrokenOff,
    /// It was streamed, and its trailers report that the function failed midway.
    Failed(Bytes),
}

impl Served {
    async fn whole(&self, mut body: Incoming, bytes_max: usize) -> Result<Bytes, Unfit> {
        let _receiving = self.receiving.lock().await;
        let mut bytes = BytesMut::new();
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                // A body that is too long already stays so.
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

    /// The function's error. The header gives its type, unless the body does.
    async fn error_of(&self, request: Request<Incoming>) -> Bytes {
        let kind = request.headers().get(ERROR_TYPE).cloned();
        let kind = kind
            .as_ref()
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or(UNKNOWN);
        match self.whole(request.into_body(), ANSWER_BYTES_MAX).await {
            Ok(error) if error.len() > failure::BYTES_MAX => failure::shortened(kind, &error),
            Ok(error) => as_object(kind, error),
            Err(Unfit::Failed(error)) => error,
            Err(Unfit::TooLong(bytes)) => failure::payload(
                kind,
                &format!("the error has {bytes} bytes, over the bound of {ANSWER_BYTES_MAX}"),
            ),
            Err(Unfit::BrokenOff) => failure::payload(kind, "the error broke off"),
        }
    }
}

/// The error in the trailers of a response, if there is one: the runtime had begun to send before
/// the failure.
fn failed_midway(trailers: &HeaderMap) -> Option<Bytes> {
    let kind = trailers.get(ERROR_TYPE)?.to_str().unwrap_or(UNKNOWN);
    let error = trailers
        .get(ERROR_BODY)
        .and_then(|error| BASE64_STANDARD.decode(error).ok());
    Some(match error {
        Some(error) => as_object(kind, error.into()),
        None => failure::payload(
            kind,
            "the function failed while it sent its response, and gave no reason",
        ),
    })
}

/// The error as a JSON object: itself, or wrapped in one.
fn as_object(kind: &str, error: Bytes) -> Bytes {
    if is_object(&error) {
        error
    } else {
        failure::payload(kind, &String::from_utf8_lossy(&error))
    }
}

fn is_object(error: &[u8]) -> bool {
    let begins = error.iter().find(|byte| !byte.is_ascii_whitespace());
    begins == Some(&b'{') && serde_json::from_slice::<serde::de::IgnoredAny>(error).is_ok()
}
