//! A server over HTTP/1.1: one connection that is kept, one request at a time.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use bytes::Bytes;
use http_client::{Client, Config};

/// How long a server may take to answer.
const WAIT_MAX: Duration = Duration::from_mins(15);
/// The longest response: a value, plus the overhead of a page of keys.
const ANSWER_BYTES_MAX: usize = 128 << 20;

/// A client of one server with one connection.
#[derive(Debug)]
pub struct Connection {
    client: Client,
    address: SocketAddr,
}

impl Connection {
    /// A client of the server at `address`, which connects with the first request.
    pub fn to(address: SocketAddr) -> Self {
        let config = Config {
            idle_connections_max: 1,
            response_bytes_max: ANSWER_BYTES_MAX,
            ..Config::default()
        };
        Self {
            client: Client::new(config),
            address,
        }
    }

    /// The server's answer: the status and the body.
    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<(u16, Bytes)> {
        let response = self.respond(method, path, headers, body).await?;
        Ok((response.status().as_u16(), response.into_body()))
    }

    /// The server's answer, with its headers.
    pub async fn respond(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<http::Response<Bytes>> {
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.client
            .send(request.body(Bytes::copy_from_slice(body))?, WAIT_MAX)
            .await
            .with_context(|| format!("{method} {path} at {}", self.address))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    async fn answer_one(mut stream: TcpStream) {
        let _ = stream.read(&mut [0; 1024]).await.expect("a request");
        stream
            .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
            .await
            .expect("answered");
    }

    #[tokio::test]
    async fn a_connection_that_the_server_has_ended_is_made_anew() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let server = tokio::spawn(async move {
            for _ in 0..2 {
                answer_one(listener.accept().await.expect("a connection").0).await;
            }
        });
        let connection = Connection::to(address);
        for _ in 0..2 {
            let (status, _) = connection
                .ask("GET", "/", &[], b"")
                .await
                .expect("an answer");
            assert_eq!(status, 204);
            // Until the client has seen the end.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
        server.await.expect("it has answered twice");
    }
}
