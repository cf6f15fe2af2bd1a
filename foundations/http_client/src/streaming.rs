//! Requests and responses whose bodies stream, so that neither lies in memory as a whole.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use hyper::body::{Frame, SizeHint};
use hyper_util::client::legacy;

use crate::{Config, Error, connector::Connector, lost, pool};

/// The body of a request or of a response.
pub type StreamedBody = UnsyncBoxBody<Bytes, io::Error>;

/// A client whose bodies stream. Clones share its connections.
#[derive(Debug, Clone)]
pub struct StreamingClient {
    pool: legacy::Client<Connector, Lent>,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No connection could be made. The request is whole, and can be served in another way.
    #[error("{1}")]
    NotSent(Box<Request<StreamedBody>>, Error),
    /// The server may have seen the request.
    #[error("{0}")]
    Lost(Error),
}

impl StreamingClient {
    /// A client without connections. It does not bound responses in bytes.
    pub fn new(config: Config) -> Self {
        Self { pool: pool(config) }
    }

    /// Sends `request`, whose URI is `http://HOST:PORT/PATH` or `https`. Returns once the response begins. To
    /// bound the time, drop the future.
    pub async fn send(
        &self,
        request: Request<StreamedBody>,
    ) -> Result<Response<StreamedBody>, Failure> {
        let (head, body) = request.into_parts();
        let body = Arc::new(Mutex::new(body));
        let sent = Request::from_parts(head.clone(), Lent(Arc::clone(&body)));
        match self.pool.request(sent).await {
            Ok(response) => Ok(response.map(|body| body.map_err(io::Error::other).boxed_unsync())),
            Err(error) => {
                let (reason, body) = (lost(&error), Arc::into_inner(body));
                let body = body.filter(|_| error.is_connect());
                let Some(body) = body.and_then(|body| body.into_inner().ok()) else {
                    return Err(Failure::Lost(reason));
                };
                let whole = Request::from_parts(head, body);
                Err(Failure::NotSent(Box::new(whole), reason))
            }
        }
    }
}

/// A body that its owner takes back if it was not sent.
#[derive(Debug)]
struct Lent(Arc<Mutex<StreamedBody>>);

impl Lent {
    fn with<T>(&self, act: impl FnOnce(&mut StreamedBody) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl hyper::body::Body for Lent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.with(|body| Pin::new(body).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.with(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.with(|body| body.size_hint())
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    fn request(address: &str) -> Request<StreamedBody> {
        let body = Full::new(Bytes::from_static(b"content"));
        Request::put(format!("http://{address}/b/k%2F"))
            .header("host", "another")
            .body(body.map_err(|never| match never {}).boxed_unsync())
            .expect("a request")
    }

    #[tokio::test]
    async fn a_request_that_was_not_sent_comes_back_whole() {
        let free = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = free.local_addr().expect("an address").to_string();
        drop(free);
        let client = StreamingClient::new(Config::default());
        match client.send(request(&address)).await {
            Err(Failure::NotSent(request, _)) => {
                let body = request.into_body().collect().await.expect("read");
                assert_eq!(body.to_bytes(), "content");
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_request_is_sent_as_it_is_and_its_response_streams() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("an address").to_string();
        let served = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.expect("a connection");
            let mut received = Vec::new();
            while !received.ends_with(b"content") {
                socket.read_buf(&mut received).await.expect("bytes");
            }
            let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            socket.write_all(response).await.expect("written");
            String::from_utf8(received).expect("text")
        });
        let client = StreamingClient::new(Config::default());
        let response = client.send(request(&address)).await.expect("a response");
        let body = response.into_body().collect().await.expect("read");
        assert_eq!(body.to_bytes(), "ok");
        let received = served.await.expect("served");
        assert!(
            received.starts_with("PUT /b/k%2F HTTP/1.1\r\n"),
            "{received}"
        );
        assert!(received.contains("host: another\r\n"), "{received}");
    }
}
