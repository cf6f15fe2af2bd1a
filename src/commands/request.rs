//! One request to a running server.
//!
//! HTTP/1.0 on purpose: the answer then ends where the connection ends and is never chunked, so that this
//! fits on a screen. Bounded in time and bytes, since whoever listens there may not be Landfast.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::config::Listen;

/// How long each of connecting, sending and receiving may take.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Where a server is unless somebody says otherwise.
const URL: &str = "http://127.0.0.1:7600";

/// Where the running server is.
#[derive(Clone, Args)]
pub(crate) struct Target {
    /// The server's HTTP address
    #[arg(long, env = "LANDFAST_URL", default_value = URL, value_name = "URL")]
    url: String,
    /// The token for a server that asks for one; only from the environment
    #[arg(skip = std::env::var("LANDFAST_TOKEN").ok())]
    token: Option<String>,
}

/// What a user has called something, as one segment of a path or the value of a parameter.
pub(crate) fn segment(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Target {
    /// The same, but where the user has not said where the server is, at `http`, where one with these settings would be.
    pub(crate) fn or_at(&self, http: &Listen) -> Self {
        let mut target = self.clone();
        if let Listen::At(address) = http
            && self.url == URL
            && address.port() != 0
        {
            let mut address = *address;
            if address.ip().is_unspecified() {
                address.set_ip(if address.is_ipv4() {
                    Ipv4Addr::LOCALHOST.into()
                } else {
                    Ipv6Addr::LOCALHOST.into()
                });
            }
            target.url = format!("http://{address}");
        }
        target
    }

    /// The address as the user gave it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The body at `path`, if the server answers 200.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<String> {
        let answer = self
            .ask(&Request {
                wait_max: WAIT_MAX,
                ..Request::get(path)
            })?
            .accepted(self, path)?;
        String::from_utf8(answer.body)
            .with_context(|| format!("{}{path} answered no UTF-8", self.url))
    }

    /// What the server answers, whatever that is. Errors: [`Unavailable`], if it may answer later.
    pub(crate) fn ask(&self, request: &Request<'_>) -> anyhow::Result<Answer> {
        let host = self.host()?;
        let answer = self.exchange(host, request).with_context(|| {
            Unavailable(format!(
                "{} does not answer (is `landfast serve` running there?)",
                self.url
            ))
        })?;
        ensure!(
            answer.len() as u64 <= ANSWER_BYTES_MAX,
            "{}{} answers with more than {ANSWER_BYTES_MAX} bytes",
            self.url,
            request.path
        );
        if is_cut_short(&answer) {
            return Err(Unavailable(format!(
                "{}: the server closed the connection before it answered; whether it has done what it was asked to is not known. If it \
                 always does, it does not speak HTTP: give the address behind `http=` in the line `ready`",
                self.url
            ))
            .into());
        }
        Answer::parse(&answer).with_context(|| {
            format!(
                "{}: what answers there does not speak HTTP; give the address behind `http=` in the line `ready`",
                self.url
            )
        })
    }

    fn exchange(&self, host: &str, request: &Request<'_>) -> anyhow::Result<Vec<u8>> {
        let Request {
            method,
            path,
            headers,
            body,
            wait_max,
        } = request;
        let mut stream = TcpStream::connect_timeout(&address(host)?, WAIT_MAX)?;
        stream.set_read_timeout(Some(*wait_max))?;
        stream.set_write_timeout(Some(WAIT_MAX))?;
        let mut head = format!(
            "{method} {path} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {}\r\n",
            body.len()
        );
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
        // Where the connection has ended, what came says that.
        match sent.and(read.map(drop)) {
            Err(error) if answer.is_empty() && !is_an_end(&error) => Err(error.into()),
            _ => Ok(answer),
        }
    }

    /// The host as it is named in the URL, with its port if it has one.
    fn host(&self) -> anyhow::Result<&str> {
        let rest = self
            .url
            .strip_prefix("http://")
            .map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        rest.filter(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@']))
            .with_context(|| {
                format!(
                    "--url (LANDFAST_URL) {:?}: give http://HOST:PORT and nothing behind it",
                    self.url
                )
            })
    }
}

/// The server did not do what it was asked to, and may in a while: it is starting, stopping, or not there.
#[derive(Debug)]
pub(crate) struct Unavailable(String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

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
        Self {
            method: "GET",
            path,
            headers: &[],
            body: &[],
            wait_max: WAIT_MAX,
        }
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
        Some(Self {
            status,
            head: head.to_owned(),
            body: bytes[end + 4..].to_vec(),
        })
    }

    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let fields = self
            .head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'));
        fields
            .filter(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .next()
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
        let said = format!(
            "{}{path} answered {}: {}",
            target.url,
            self.status,
            refusal(&self.body)
        );
        // Of a gateway before the server too: it says so of one that is away.
        if matches!(self.status, 502..=504) {
            Err(Unavailable(said).into())
        } else {
            bail!(said)
        }
    }
}

/// Whether an error says that whoever is connected has closed the connection.
fn is_an_end(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        error.kind(),
        K::ConnectionReset | K::ConnectionAborted | K::BrokenPipe
    )
}

/// Whether `answer` is one of HTTP of which something is missing, which may be all of it.
fn is_cut_short(answer: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"HTTP/1.";
    let Some(whole) = Answer::parse(answer) else {
        let is_one = answer
            .iter()
            .zip(BEGINNING)
            .all(|(came, expected)| came == expected);
        return is_one && !answer.windows(4).any(|four| four == b"\r\n\r\n");
    };
    let announced = whole
        .header("content-length")
        .and_then(|bytes| bytes.parse::<usize>().ok());
    announced.is_some_and(|bytes| whole.body.len() < bytes)
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
    let has_port = host
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let target = if has_port {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    target
        .to_socket_addrs()?
        .next()
        .context("the host has no address")
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// What is said of a server that answers this and goes.
    fn said_of(answer: &'static [u8]) -> anyhow::Result<Answer> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let target = Target {
            url: format!("http://{}", listener.local_addr().expect("bound")),
            token: None,
        };
        let server = thread::spawn(move || {
            let (mut peer, _) = listener.accept().expect("connected");
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                peer.read_exact(&mut byte).expect("asked");
                asked.push(byte[0]);
            }
            peer.write_all(answer).expect("sent");
        });
        let said = target
            .ask(&Request::get("/v1/status"))
            .and_then(|answer| answer.accepted(&target, "/"));
        server.join().expect("it has answered");
        said
    }

    #[test]
    fn a_connection_that_broke_is_told_from_what_speaks_no_http() {
        let broken: [&[u8]; 4] = [
            b"",
            b"HTT",
            b"HTTP/1.1 200 OK\r\nContent-Le",
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
        ];
        for answer in broken {
            let error = said_of(answer).expect_err("it breaks off");
            assert!(
                error
                    .to_string()
                    .contains("closed the connection before it answered"),
                "{error:#}"
            );
            assert!(error.is::<Unavailable>());
        }
        for answer in [&b"SSH-2.0-x\r\n"[..], b"HTTP/1.1 two hundred\r\n\r\n"] {
            let error = said_of(answer).expect_err("no HTTP");
            assert!(
                error.to_string().contains("does not speak HTTP"),
                "{error:#}"
            );
            assert!(!error.is::<Unavailable>());
        }
        let whole = said_of(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab").expect("it answers");
        assert_eq!(whole.body, b"ab");
    }

    #[test]
    fn who_may_answer_later_is_told_from_who_refuses() {
        let starting = said_of(b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}").expect_err("not now");
        assert!(starting.is::<Unavailable>(), "{starting:#}");
        let refused = said_of(b"HTTP/1.1 409 Conflict\r\n\r\n{}").expect_err("never");
        assert!(!refused.is::<Unavailable>(), "{refused:#}");
        let unused = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("bound");
        let target = Target {
            url: format!("http://{unused}"),
            token: None,
        };
        let nobody = target.ask(&Request::get("/")).expect_err("nobody listens");
        assert!(
            nobody.is::<Unavailable>() && nobody.to_string().contains("does not answer"),
            "{nobody:#}"
        );
    }
}
