//! A server over HTTP/1.1: one connection that is kept, one request at a time, no client library in the way.

use std::{fmt::Write as _, net::SocketAddr};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use simulation::transactions::history::{Shown, Writer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use transactions::model::{After, Key, TransactionId, Version};

/// The longest head of an answer that is believed.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// One client of a server.
#[derive(Debug)]
pub struct Http {
    stream: TcpStream,
    received: BytesMut,
    address: SocketAddr,
    id: String,
    attempt: String,
}

#[derive(Deserialize)]
struct Begun {
    id: String,
    attempt: String,
}

#[derive(Deserialize)]
struct Committed {
    after: String,
}

impl Http {
    /// A connection to the server at `address`.
    pub async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: BytesMut::new(), address, id: String::new(), attempt: String::new() })
    }

    pub(super) async fn begin(&mut self) -> Result<Writer> {
        self.attempt.clear();
        let (status, body) = self.ask("POST", "/v1/transactions", b"{}").await?;
        ensure!(status == 201, "begin: {status} {}", body.escape_ascii());
        let begun: Begun = serde_json::from_slice(&body)?;
        (self.id, self.attempt) = (begun.id, begun.attempt);
        Ok(Writer { id: TransactionId::new(self.id.clone())?, attempt: self.attempt.parse()? })
    }

    pub(super) async fn get(&mut self, key: &Key) -> Result<Shown> {
        let path = self.key_path(key);
        let (status, body) = self.ask("GET", &path, b"").await?;
        match status {
            200 => Ok(Shown::Value(body)),
            404 => Ok(Shown::Absent),
            409 if body.windows(16).any(|part| part == b"no-valid-version") => Ok(Shown::NoValidVersion),
            _ => bail!("get: {status} {}", body.escape_ascii()),
        }
    }

    pub(super) async fn put(&mut self, key: &Key, value: Bytes) -> Result<()> {
        let path = self.key_path(key);
        let (status, body) = self.ask("PUT", &path, &value).await?;
        ensure!(status == 204, "put: {status} {}", body.escape_ascii());
        Ok(())
    }

    pub(super) async fn commit(&mut self) -> Result<Version> {
        let path = format!("/v1/transactions/{}/commit", self.id);
        let (status, body) = self.ask("POST", &path, b"").await?;
        ensure!(status == 200, "commit: {status} {}", body.escape_ascii());
        let committed: Committed = serde_json::from_slice(&body)?;
        Ok(committed.after.parse::<After>()?.version)
    }

    pub(super) async fn abort(&mut self) -> Result<()> {
        let path = format!("/v1/transactions/{}", self.id);
        let (status, body) = self.ask("DELETE", &path, b"").await?;
        ensure!(status == 204, "abort: {status} {}", body.escape_ascii());
        Ok(())
    }

    /// Keys of the workload need no escaping.
    fn key_path(&self, key: &Key) -> String {
        format!("/v1/transactions/{}/keys/{}", self.id, key.name().escape_ascii())
    }

    async fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Result<(u16, Bytes)> {
        let Self { address, attempt, .. } = self;
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n");
        if !attempt.is_empty() {
            write!(request, "Landfast-Attempt: {attempt}\r\n")?;
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
            if let Some(end) = self.received.windows(4).position(|part| part == b"\r\n\r\n") {
                break end + 4;
            }
            ensure!(self.received.len() < HEAD_BYTES_MAX, "an answer without an end of its head");
            self.receive().await?;
        };
        let head = self.received.split_to(head_bytes);
        let head = std::str::from_utf8(&head)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        let length = length.unwrap_or(0);
        while self.received.len() < length {
            self.receive().await?;
        }
        Ok((status, self.received.split_to(length).freeze()))
    }

    async fn receive(&mut self) -> Result<()> {
        ensure!(self.stream.read_buf(&mut self.received).await? > 0, "{} hung up", self.address);
        Ok(())
    }
}
