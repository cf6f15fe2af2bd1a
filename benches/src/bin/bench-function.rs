//! A function for measurements: speaks the Lambda Runtime API over one connection, and does what
//! its event says.
//!
//! The event is `{"bytes": N, "pause_ms": N}`, both optional. The function waits for `pause_ms`, as
//! if it computed, and writes `bytes` bytes under a key of its own. `PAUSE_MS` in its environment
//! overrides the event's `pause_ms`. The function returns its event.

#![allow(clippy::disallowed_methods)] // a benchmark is about real time; no seed replays it

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    bytes: usize,
    pause_ms: u64,
}

/// One connection to the Runtime API.
struct Connection {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    host: String,
}

/// A response: the request id, if it has one, and its body.
struct Answer {
    id: String,
    body: Vec<u8>,
}

impl Connection {
    fn open(host: String) -> Result<Self> {
        let stream = TcpStream::connect(&host).with_context(|| format!("connect to {host}"))?;
        stream.set_nodelay(true)?;
        let reader = BufReader::new(stream.try_clone()?);
        Ok(Self {
            stream,
            reader,
            host,
        })
    }

    fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Answer> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n",
            self.host,
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.write_all(&request)?;
        let (mut id, mut length, mut line) = (String::new(), 0, String::new());
        loop {
            line.clear();
            self.reader.read_line(&mut line)?;
            let header = line.trim_end();
            if header.is_empty() {
                break;
            }
            if let Some((name, value)) = header.split_once(':') {
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => length = value.trim().parse()?,
                    "lambda-runtime-aws-request-id" => value.trim().clone_into(&mut id),
                    _ => {}
                }
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body)?;
        Ok(Answer { id, body })
    }
}

fn main() -> Result<()> {
    let host = env::var("AWS_LAMBDA_RUNTIME_API")
        .context("AWS_LAMBDA_RUNTIME_API says where the Runtime API is")?;
    let pause_ms = env::var("PAUSE_MS")
        .ok()
        .and_then(|pause| pause.parse().ok());
    let mut connection = Connection::open(host)?;
    loop {
        let next = connection.ask("GET", "/2018-06-01/runtime/invocation/next", b"")?;
        let event: Event = serde_json::from_slice(&next.body).unwrap_or_default();
        let pause = Duration::from_millis(pause_ms.unwrap_or(event.pause_ms));
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        if event.bytes > 0 {
            let path = format!("/v1/state/bench-{}", next.id);
            connection.ask("PUT", &path, &vec![b'x'; event.bytes])?;
        }
        let path = format!("/2018-06-01/runtime/invocation/{}/response", next.id);
        connection.ask("POST", &path, &next.body)?;
    }
}
