//! What stands at an edge, by itself: for tests and fuzzing, which drive it with bytes that nobody would send.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{future::join_all, join};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, StatusCode, header::HeaderValue};
use ports::runtime::Invocation;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::yield_now,
};

pub use crate::archives::unpack;
use crate::{
    exchange::{Answer, Exchange, Task},
    failure::too_long,
    receiving::{Allowance, Incoming},
    runtime_api::{Api, Reply, Served, converse},
};

/// The id of the invocation that the instance of [`conversation`] is given.
pub const INVOCATION: &str = "the-invocation";
/// What may lie between the two sides.
const BUFFER_BYTES: usize = 64 * 1024;
/// How often the server is given its turn once all was sent.
const TURNS: usize = 200;

/// What a conversation came to.
#[derive(Debug)]
pub struct Conversation {
    /// What the instance was answered on each of its connections.
    pub answered: Vec<Vec<u8>>,
    /// What became of its invocation: its result, or how it failed; none: nothing was said.
    pub result: Option<Result<Bytes, Bytes>>,
    /// What it said of its start.
    pub failed_start: Option<Bytes>,
}

/// Nothing is there beside the Runtime API: each call is answered 404.
#[derive(Debug)]
pub struct Nothing;

#[async_trait]
impl Api for Nothing {
    async fn call(&self, _: Option<Arc<str>>, _: Request<Incoming>) -> Reply {
        let mut response = Response::new(
            Full::default()
                .map_err(|never| match never {})
                .boxed_unsync(),
        );
        *response.status_mut() = StatusCode::NOT_FOUND;
        response
    }
}

/// Has an instance with one invocation send what `connections` says on each, `piece` bytes at a time, and close it: all at once,
/// over its Runtime API.
pub async fn conversation(connections: &[Vec<u8>], piece: usize) -> Conversation {
    let exchange = Arc::new(Exchange::new());
    let invocation = Invocation::new(INVOCATION.to_owned(), Bytes::from_static(b"{}"), false);
    let mut answer = exchange.assign(Task {
        invocation,
        deadline_ms: 0,
    });
    let arn = HeaderValue::from_static("arn");
    let served = Arc::new(Served::new(
        Arc::clone(&exchange),
        arn,
        Arc::new(Nothing),
        Allowance::default(),
    ));
    let all = connections
        .iter()
        .map(|bytes| on_one(bytes, piece.max(1), Arc::clone(&served)));
    let answered = join_all(all).await;
    let result = match answer.try_recv() {
        Ok(Answer::Response(bytes)) => Some(Ok(bytes)),
        Ok(Answer::Error(payload)) => Some(Err(payload)),
        Ok(Answer::TooLong(bytes)) => Some(Err(too_long(bytes))),
        Err(_) => None,
    };
    Conversation {
        answered,
        result,
        failed_start: exchange.failed_start(),
    }
}

async fn on_one(bytes: &[u8], piece: usize, served: Arc<Served>) -> Vec<u8> {
    let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
    let (mut read, mut write) = tokio::io::split(ours);
    let sent = async {
        for piece in bytes.chunks(piece) {
            // The other side may have closed it.
            if write.write_all(piece).await.is_err() {
                break;
            }
        }
        // Who closes its half is taken to have gone; so what it has sent is answered first, or never is.
        for _ in 0..TURNS {
            yield_now().await;
        }
        let _ = write.shutdown().await;
    };
    let received = async {
        let mut answered = Vec::new();
        let _ = read.read_to_end(&mut answered).await;
        answered
    };
    let ((), answered, ()) = join!(sent, received, converse(theirs, served));
    answered
}
