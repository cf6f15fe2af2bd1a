//! HTTP/1.1 over one connection that waits for each response: the Runtime API, and invocations.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
};

use anyhow::{Context as _, Result};

/// One connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    host: String,
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The id of an invocation, if it has one.
    pub id: String,
    /// Whether a function failed.
    pub is_failed: bool,
    /// The body.
    pub body: Vec<u8>,
}

impl Connection {
    /// Connects to `HOST:PORT`.
    pub fn open(host: String) -> Result<Self> {
        let stream = TcpStream::connect(&host).with_context(|| format!("connect to {host}"))?;
        stream.set_nodelay(true)?;
        let reader = BufReader::new(stream.try_clone()?);
        Ok(Self {
            stream,
            reader,
            host,
        })
    }

    /// Sends a request, and reads its response.
    pub fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Answer> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n",
            self.host,
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.write_all(&request)?;
        let (mut length, mut line) = (0, String::new());
        self.reader.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.with_context(|| format!("the server answered {line:?}"))?;
        let (mut id, mut is_failed) = (String::new(), false);
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
                    "x-amz-function-error" => is_failed = true,
                    _ => {}
                }
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body)?;
        Ok(Answer {
            status,
            id,
            is_failed,
            body,
        })
    }
}
