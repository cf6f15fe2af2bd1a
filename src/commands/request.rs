//! One request to a running server.
//!
//! HTTP/1.0 on purpose: the answer then ends where the connection ends and is never chunked, so that this
//! fits on a screen. Bounded in time and bytes, since whoever listens there may not be Landfast.

use std::{
    fmt,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use serde::Deserialize;

/// How long each of connecting, sending and receiving may take.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Where the running server is.
#[derive(Clone, Args)]
pub(crate) struct Target {
    /// The server's HTTP address
    #[arg(long, env = "LANDFAST_URL", default_value = "http://127.0.0.1:7600", value_name = "URL")]
    url: String,
    /// The token for a server that asks for one; only from the environment
    #[arg(skip = std::env::var("LANDFAST_TOKEN").ok())]
    token: Option<String>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Target {
    /// The address as the user gave it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The body at `path`, if the server answers 200.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<String> {
        let answer = self.ask(&Request { wait_max: WAIT_MAX, ..Request::get(path) })?.accepted(self, path)?;
        String::from_utf8(answer.body).with_context(|| format!("{}{path} answered no UTF-8", self.url))
    }

    /// What the server answers, whatever that is.
    pub(crate) fn ask(&self, request: &Request<'_>) -> anyhow::Result<Answer> {
        let host = self.host()?;
        let answer = self
            .exchange(host, request)
            .with_context(|| format!("{} does not answer (is `landfast serve` running there?)", self.url))?;
        ensure!(
            answer.len() as u64 <= ANSWER_BYTES_MAX,
            "{}{} answers with more than {ANSWER_BYTES_MAX} bytes",
            self.url,
            request.path
        );
        Answer::parse(&answer).with_context(|| {
            format!(
                "{}: what answers there does not speak HTTP; give the address behind `http=` in the line `ready`",
                self.url
            )
        })
    }

    fn exchange(&self, host: &str, request: &Request<'_>) -> anyhow::Result<Vec<u8>> {
        let Request { method, path, headers, body, wait_max } = request;
        let mut stream = TcpStream::connect_timeout(&address(host)?, WAIT_MAX)?;
        stream.set_read_timeout(Some(*wait_max))?;
        stream.set_write_timeout(Some(WAIT_MAX))?;
        let mut head =
            format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {}\r\n", body.len());
        if let Some(token) = &self.token {
            head.extend(["Authorization: Bearer ", token, "\r\n"]);
        }
        for (name, value) in *headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        head += "\r\n";
        stream.write_all(head.as_bytes())?;
        // A refusal may come, and the connection end, before all of the body is sent: the answer says why.
        let sent = stream.write_all(body);
        let mut answer = Vec::new();
        let read = stream.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut answer);
        if answer.is_empty() {
            sent?;
            read?;
        }
        Ok(answer)
    }

    /// The host as it is named in the URL, with its port if it has one.
    fn host(&self) -> anyhow::Result<&str> {
        let rest = self.url.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        rest.filter(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@'])).with_context(|| {
            format!("--url (LANDFAST_URL) {:?}: give http://HOST:PORT and nothing behind it", self.url)
        })
    }
}

/// What to ask.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a [u8],
    /// How long the answer may take.
    pub(crate) wait_max: Duration,
}

impl<'a> Request<'a> {
    /// What lies at `path`.
    pub(crate) fn get(path: &'a str) -> Self {
        Self { method: "GET", path, headers: &[], body: &[], wait_max: WAIT_MAX }
    }
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// None: it is no HTTP.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
        let status = (status.len() == 3).then(|| status.parse().ok())??;
        Some(Self { status, head: head.to_owned(), body: bytes[end + 4..].to_vec() })
    }

    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }

    /// Where what was asked for took effect on a run, or may have, and cannot be seen yet: what the server says of that.
    pub(crate) fn unseen(&self) -> Option<String> {
        let Problem { name, detail, id } = serde_json::from_slice(&self.body).ok()?;
        (self.status == 503 && name == "outcome-unknown" && id.is_some()).then_some(detail)
    }

    /// Itself, if the server did what it was asked to.
    pub(crate) fn accepted(self, target: &Target, path: &str) -> anyhow::Result<Self> {
        if (200..300).contains(&self.status) {
            return Ok(self);
        }
        bail!("{}{path} answered {}: {}", target.url, self.status, refusal(&self.body));
    }
}

/// A problem document.
#[derive(Deserialize)]
struct Problem {
    #[serde(rename = "type")]
    name: String,
    detail: String,
    /// Which run it is about.
    id: Option<String>,
}

/// What a refusal says: the name and the detail of a problem document; all of what is none.
fn refusal(body: &[u8]) -> String {
    match serde_json::from_slice(body) {
        Ok(Problem { name, detail, .. }) => format!("{name}: {detail}"),
        Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
    }
}

/// The address of a host; port 80 if it names none.
fn address(host: &str) -> anyhow::Result<SocketAddr> {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let target = if has_port { host.to_owned() } else { format!("{host}:80") };
    target.to_socket_addrs()?.next().context("the host has no address")
}
