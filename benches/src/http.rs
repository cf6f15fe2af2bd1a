//! HTTP/1.1 to a server: one persistent connection, one request at a time, no client library in the
//! way.

use std::{fmt::Write as _, net::SocketAddr};

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The longest response head that is accepted.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    received: BytesMut,
    address: SocketAddr,
}

impl Connection {
    /// A connection to the server at `address`.
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            received: BytesMut::new(),
            address,
        })
    }

    /// Reconnects: a server closes a connection that has been idle for long.
    pub async fn reopen(&mut self) -> Result<()> {
        *self = Self::open(self.address).await?;
        Ok(())
    }

    /// Sends a request and returns the status and the body of the response.
    pub async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<(u16, Bytes)> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.address);
        for (name, value) in headers {
            write!(request, "{name}: {value}\r\n")?;
        }
        if method != "GET" {
            write!(request, "Content-Length: {}\r\n", body.len())?;
        }
        request += "\r\n";
        let request = [request.as_bytes(), body].concat();
        self.stream.write_all(&request).await?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<(u16, Bytes)> {
        let head_bytes = loop {
            if let Some(end) = self
                .received
                .windows(4)
                .position(|part| part == b"\r\n\r\n")
            {
                break end + 4;
            }
            ensure!(
                self.received.len() < HEAD_BYTES_MAX,
                "an answer without an end of its head"
            );
            self.receive().await?;
        };
        let head = self.received.split_to(head_bytes);
        let head = std::str::from_utf8(&head)?;
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .context("no status")?;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().ok())?
        });
        let length = length.unwrap_or(0);
        while self.received.len() < length {
            self.receive().await?;
        }
        Ok((status, self.received.split_to(length).freeze()))
    }

    async fn receive(&mut self) -> Result<()> {
        ensure!(
            self.stream.read_buf(&mut self.received).await? > 0,
            "{} hung up",
            self.address
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_the_server_has_ended_can_be_opened_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let server = tokio::spawn(async move {
            drop(listener.accept().await.expect("the first connection"));
            let (mut second, _) = listener.accept().await.expect("the second connection");
            second
                .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
                .await
                .expect("answered");
            second
        });
        let mut connection = Connection::open(address).await.expect("connected");
        connection
            .ask("GET", "/", &[], b"")
            .await
            .expect_err("the server has hung up");
        connection.reopen().await.expect("connected again");
        let (status, _) = connection
            .ask("GET", "/", &[], b"")
            .await
            .expect("an answer");
        assert_eq!(status, 204);
        drop(server.await.expect("it has answered"));
    }
}
