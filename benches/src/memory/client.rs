//! One connection to a server, by S3 or by the protocol of Redis.
//!
//! A GET reads its content into one buffer again and again, so that the content costs the generator
//! one copy from the socket and no memory of its own.

use std::{
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    objects::{Content, Objects},
    signing::Signer,
};

/// It stays in the cache of a core.
pub const BUFFER_BYTES: usize = 256 << 10;
/// The longest head of a response.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The part of a refusal that an error shows.
const REFUSAL_BYTES_MAX: usize = 1_000;
const BUCKET: &str = "bench";

/// The language of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 with a signature of version 4.
    S3,
    /// GET and SET of Redis.
    Redis,
}

/// The requests for all objects as bytes, without the content.
#[derive(Debug)]
pub struct Requests {
    gets: Vec<Vec<u8>>,
    puts: Vec<Vec<u8>>,
    protocol: Protocol,
}

impl Requests {
    /// For the objects, signed for the next minutes.
    pub fn new(protocol: Protocol, address: SocketAddr, objects: Objects) -> Self {
        let signer = Signer::now(address);
        let head = |method: &str, index: usize| {
            let key = Objects::key(index);
            match (protocol, method) {
                (Protocol::S3, _) => {
                    signer.head(method, &format!("/{BUCKET}/{key}"), objects.bytes)
                }
                (Protocol::Redis, "GET") => command("*2", "GET", &key, ""),
                (Protocol::Redis, _) => {
                    command("*3", "SET", &key, &format!("${}\r\n", objects.bytes))
                }
            }
        };
        let all = |method: &str| {
            (0..objects.count)
                .map(|index| head(method, index))
                .collect()
        };
        Self {
            gets: all("GET"),
            puts: all("PUT"),
            protocol,
        }
    }
}

fn command(count: &str, name: &str, key: &str, value: &str) -> Vec<u8> {
    format!(
        "{count}\r\n$3\r\n{name}\r\n${}\r\n{key}\r\n{value}",
        key.len()
    )
    .into_bytes()
}

/// The check of a GET's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Its length alone.
    Length,
    /// Each byte.
    Bytes,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
    /// The unread part of the buffer.
    unread: Range<usize>,
    /// The bytes of content so far, by all connections that share it.
    moved: Arc<AtomicU64>,
}

impl Connection {
    /// Connects. The bytes that it reads, and writes with success, are added to `moved`.
    pub async fn to(address: SocketAddr, moved: Arc<AtomicU64>) -> Result<Self> {
        let socket = TcpStream::connect(address).await;
        let socket = socket.with_context(|| format!("connecting to {address}"))?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            buffer: vec![0; BUFFER_BYTES],
            unread: 0..0,
            moved,
        })
    }

    /// Creates the bucket; Redis has none.
    pub async fn create_bucket(&mut self, protocol: Protocol, address: SocketAddr) -> Result<()> {
        if protocol == Protocol::S3 {
            let head = Signer::now(address).head("PUT", &format!("/{BUCKET}"), 0);
            self.socket.write_all(&head).await?;
            let bytes = self.answer().await.context("create a bucket")?;
            self.content(bytes, None).await?;
        }
        Ok(())
    }

    /// Reads object `index`.
    pub async fn get(
        &mut self,
        requests: &Requests,
        content: &Content,
        index: usize,
        check: Check,
    ) -> Result<()> {
        self.socket.write_all(&requests.gets[index]).await?;
        let expected = content.of(index);
        let bytes = match requests.protocol {
            Protocol::S3 => self.answer().await?,
            Protocol::Redis => {
                let line = self.line().await?;
                let bytes = line.strip_prefix('$').and_then(|bytes| bytes.parse().ok());
                bytes.with_context(|| format!("a GET was answered {line:?}"))?
            }
        };
        ensure!(
            bytes == expected.len(),
            "object {index} has {bytes} bytes in place of {}",
            expected.len()
        );
        self.content(bytes, Some(expected).filter(|_| check == Check::Bytes))
            .await?;
        if requests.protocol == Protocol::Redis {
            ensure!(self.line().await?.is_empty(), "a value without an end");
        }
        Ok(())
    }

    /// Writes object `index`.
    pub async fn put(
        &mut self,
        requests: &Requests,
        content: &Content,
        index: usize,
    ) -> Result<()> {
        let bytes = content.of(index);
        let head = &requests.puts[index];
        if bytes.len() <= HEAD_BYTES_MAX {
            self.socket.write_all(&[head, bytes].concat()).await?;
        } else {
            self.socket.write_all(head).await?;
            self.socket.write_all(bytes).await?;
        }
        if requests.protocol == Protocol::Redis {
            self.socket.write_all(b"\r\n").await?;
            let line = self.line().await?;
            ensure!(line == "+OK", "a SET was answered {line:?}");
        } else {
            let length = self.answer().await?;
            ensure!(length == 0, "a PUT was answered with content");
        }
        self.moved.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The head of a response. Returns the length of its content.
    async fn answer(&mut self) -> Result<usize> {
        let status = self.line().await?;
        let mut length = 0;
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse()?;
            }
            let is_framed = name.eq_ignore_ascii_case("transfer-encoding");
            ensure!(!is_framed, "a response of unknown length");
        }
        if status.split(' ').nth(1) != Some("200") {
            let unread = &self.buffer[self.unread.clone()];
            let shown = unread.len().min(length).min(REFUSAL_BYTES_MAX);
            bail!("{status}: {}", String::from_utf8_lossy(&unread[..shown]));
        }
        Ok(length)
    }

    /// A line without its end.
    async fn line(&mut self) -> Result<String> {
        loop {
            let unread = &self.buffer[self.unread.clone()];
            if let Some(end) = unread.windows(2).position(|two| two == b"\r\n") {
                let line = String::from_utf8_lossy(&unread[..end]).into_owned();
                self.unread.start += end + 2;
                return Ok(line);
            }
            ensure!(unread.len() < HEAD_BYTES_MAX, "a line without an end");
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            let free = &mut self.buffer[self.unread.end..];
            let bytes = self.socket.read(free).await?;
            ensure!(bytes > 0, "the server closed the connection");
            self.unread.end += bytes;
        }
    }

    /// Reads `left` bytes of content, and compares them.
    async fn content(&mut self, mut left: usize, mut expected: Option<&[u8]>) -> Result<()> {
        while left > 0 {
            if self.unread.is_empty() {
                let bytes = self.socket.read(&mut self.buffer).await?;
                ensure!(bytes > 0, "the server closed the connection");
                self.unread = 0..bytes;
            }
            let bytes = self.unread.len().min(left);
            if let Some(rest) = &mut expected {
                let (now, later) = rest.split_at(bytes);
                let is_equal = self.buffer[self.unread.clone()][..bytes] == *now;
                ensure!(is_equal, "the server returned other content");
                *rest = later;
            }
            self.unread.start += bytes;
            left -= bytes;
            self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}
