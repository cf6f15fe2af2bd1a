//! The entry points for fuzzing: decoders and the Runtime API without a process, for arbitrary
//! bytes.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{future::join_all, join};
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, StatusCode, header::HeaderValue};
use ports::{VolumeMount, VolumeMounts, runtime::Invocation, volume_mounts::VolumeAt};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::yield_now,
};

pub use crate::code_store::unpack;
use crate::function::{
    failure::too_long,
    invocation_channel::{Answer, InvocationChannel, Task},
    request_body::{Allowance, Incoming},
    runtime_api::{Api, Head, Reply, Served, converse},
};

/// The id of the invocation that the instance of [`conversation`] gets.
pub const INVOCATION: &str = "the-invocation";
/// The buffer between the two sides.
const BUFFER_BYTES: usize = 64 * 1024;
/// How often the server gets its turn after everything was sent.
const TURNS: usize = 200;

/// The outcome of a conversation.
#[derive(Debug)]
pub struct Conversation {
    /// The server's responses on each connection.
    pub answered: Vec<Vec<u8>>,
    /// The outcome of the invocation: its result, or its error; none: there was no answer.
    pub result: Option<Result<Bytes, Bytes>>,
    /// The error of the start that it reported.
    pub failed_start: Option<Bytes>,
}

/// An API without resources: each call gets 404. There are no volumes either.
#[derive(Debug)]
pub struct Nothing;

#[async_trait]
impl VolumeMounts for Nothing {
    async fn mount(&self, _: &VolumeAt) -> Result<Arc<dyn VolumeMount>, String> {
        Err("this server has no volumes".to_owned())
    }
}

#[async_trait]
impl Api for Nothing {
    async fn call(
        &self,
        _: Option<Arc<str>>,
        _: Option<&dyn VolumeMount>,
        _: Request<Incoming>,
    ) -> Reply {
        let mut response = Response::new(
            Full::default()
                .map_err(|never| match never {})
                .boxed_unsync(),
        );
        *response.status_mut() = StatusCode::NOT_FOUND;
        response
    }
}

/// Lets an instance with one invocation send the bytes of `connections`, one connection each,
/// `piece` bytes at a time, and then close them; all concurrently, over its Runtime API.
pub async fn conversation(connections: &[Vec<u8>], piece: usize) -> Conversation {
    let channel = Arc::new(InvocationChannel::new());
    let invocation = Invocation::new(INVOCATION.to_owned(), Bytes::from_static(b"{}"), false);
    let mut answer = channel.assign(Task {
        invocation,
        deadline_ms: 0,
    });
    let served = Arc::new(Served {
        channel: Arc::clone(&channel),
        arn: HeaderValue::from_static("arn"),
        api: Arc::new(Nothing),
        volume: None,
        allowance: Allowance::default(),
        receiving: tokio::sync::Mutex::default(),
    });
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
        failed_start: channel.failed_start(),
    }
}

async fn on_one(bytes: &[u8], piece: usize, served: Arc<Served>) -> Vec<u8> {
    let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
    let (mut read, mut write) = tokio::io::split(ours);
    let sent = async {
        for piece in bytes.chunks(piece) {
            // The server may have closed it.
            if write.write_all(piece).await.is_err() {
                break;
            }
        }
        // The server takes a closed half for a closed connection, so it must answer before.
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
    let ((), answered, ()) = join!(sent, received, converse(theirs, served, Head::Long));
    answered
}
