//! One request to a running server, with bounds in time and bytes, since the program that listens
//! there may not be Landfast.

use std::{
    env, fmt,
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use clap::Args;
use http::{HeaderMap, header};
use http_body_util::{BodyExt as _, Collected, Empty, Limited};
use http_client::{Client, Error, Failure, StreamedBody, StreamingClient, Trust};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::time::timeout;

use crate::settings::{Listen, Settings};

/// How long connecting may take, and a response unless the caller says otherwise.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How long a streamed response may stall. A backup begins with a checkpoint.
const STALL_MAX: Duration = Duration::from_mins(3);
/// The longest response by default, in bytes.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The slowest line on which the body of a request can be sent.
const SENT_BYTES_PER_S: usize = 64 * 1024;

/// The shown bytes of a refusal in an unknown form.
const SHOWN_BYTES_MAX: usize = 2 * 1024;

/// The address of a server by default.
const URL: &str = "http://127.0.0.1:7600";

/// The address of the running server.
#[derive(Clone, Args)]
pub(crate) struct Target {
    /// The server's HTTP address
    #[arg(long, env = "LANDFAST_URL", default_value = URL, value_name = "URL")]
    url: String,
    /// The token for a server that asks for one; only from the environment
    #[arg(skip = std::env::var("LANDFAST_TOKEN").ok())]
    token: Option<String>,
    /// The authorities of an `https` server's certificate, PEM, instead of those of the system; only from the environment
    #[arg(skip = file_in("LANDFAST_TLS_CA"))]
    ca: Option<PathBuf>,
}

/// The file that an environment variable names. An empty variable is as good as none.
fn file_in(variable: &str) -> Option<PathBuf> {
    let value = env::var_os(variable).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// TLS files from the command line, with the names of their options. Without them, the environment
/// gives the files.
#[derive(Debug)]
pub(crate) struct Given<'a> {
    pub(crate) ca: Option<(&'a Path, &'a str)>,
    /// A certificate for servers that ask for one, and its key, which may be in the same file.
    pub(crate) identity: Option<(&'a Path, Option<&'a Path>, &'a str)>,
}

/// The authorities in a file, or those of the system, and a certificate for servers that ask for
/// one.
pub(crate) fn trust(given: &Given<'_>) -> anyhow::Result<Trust> {
    let variable = "LANDFAST_TLS_CA";
    let ca = file_in(variable);
    let ca = given.ca.or_else(|| Some((ca.as_deref()?, variable)));
    let trust = match ca {
        Some((path, named)) => Trust::in_file(path).context(named.to_owned())?,
        None => Trust::in_system().context("give a file of authorities in LANDFAST_TLS_CA")?,
    };
    let variable = "LANDFAST_TLS_CLIENT_CERT";
    let (certificate, key) = (file_in(variable), file_in("LANDFAST_TLS_CLIENT_KEY"));
    let identity = given
        .identity
        .or_else(|| Some((certificate.as_deref()?, key.as_deref(), variable)));
    Ok(match identity {
        Some((certificate, key, named)) => trust
            .with_identity(certificate, key.unwrap_or(certificate))
            .context(named.to_owned())?,
        None => trust,
    })
}

/// A response's body. Errors: it is not `what` was asked for.
pub(crate) fn parsed<'a, T: Deserialize<'a>>(body: &'a [u8], what: &str) -> anyhow::Result<T> {
    serde_json::from_slice(body).with_context(|| format!("the answer is not {what}"))
}

/// A name from the user as one path segment or the value of a parameter.
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
    /// The same target. If the user gave no address, it is the one where a server with these
    /// settings listens.
    pub(crate) fn or_at(&self, settings: &Settings) -> Self {
        let mut target = self.clone();
        if let Listen::At(mut address) = settings.http
            && self.url == URL
            && address.port() != 0
        {
            match address.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
                IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
                _ => {}
            }
            let has_tls = settings.security.tls.is_some();
            let scheme = if has_tls { "https" } else { "http" };
            target.url = format!("{scheme}://{address}");
            let token = settings.security.token_at(address);
            target.token = target.token.or(token);
        }
        target
    }

    /// The address as the user gave it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The body at `path`, if the server answers 200.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<String> {
        let answer = self.send(&Request::get(path))?;
        String::from_utf8(answer.body.into())
            .with_context(|| format!("{}{path} answered no UTF-8", self.url))
    }

    /// The response, if the server did what it was asked to.
    pub(crate) fn send(&self, request: &Request<'_>) -> anyhow::Result<Answer> {
        self.ask(request)?.accepted(self, request.path)
    }

    /// The server's response of any status. Errors: [`Unavailable`], if it may answer later.
    pub(crate) fn ask(&self, request: &Request<'_>) -> anyhow::Result<Answer> {
        let sending = Duration::from_secs((request.body.len() / SENT_BYTES_PER_S) as u64);
        let wait_max = WAIT_MAX + request.wait_max + sending;
        let client = Client::new(http_client::Config {
            connect_timeout: WAIT_MAX,
            response_bytes_max: request.answer_bytes_max,
            trust: self.trust()?,
            ..http_client::Config::default()
        });
        let http = self.as_http(request)?;
        let answered = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(client.send(http, wait_max));
        let answered = answered.map_err(|error| self.unanswered(error, request.path))?;
        let (head, body) = answered.into_parts();
        Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        })
    }

    /// The body of the response, as it comes, if the server answers 200.
    pub(crate) fn stream(&self, path: &str) -> anyhow::Result<Streamed> {
        let (parts, _) = self.as_http(&Request::get(path))?.into_parts();
        let empty = Empty::new().map_err(|never| match never {}).boxed_unsync();
        let client = StreamingClient::new(http_client::Config {
            connect_timeout: WAIT_MAX,
            trust: self.trust()?,
            ..http_client::Config::default()
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let sent = client.send(http::Request::from_parts(parts, empty));
        let response = runtime.block_on(async { timeout(STALL_MAX, sent).await });
        let response = response.map_err(|_| stalled(&self.url))?;
        let response = response.map_err(|failure| match failure {
            Failure::NotSent(_, error) | Failure::Lost(error) => self.unanswered(error, path),
        })?;
        let (head, body) = response.into_parts();
        if head.status == http::StatusCode::OK {
            return Ok(Streamed {
                runtime,
                body,
                piece: Bytes::new(),
            });
        }
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect();
        let body = runtime
            .block_on(async { timeout(STALL_MAX, body).await })
            .ok()
            .and_then(Result::ok)
            .map_or(Bytes::new(), Collected::to_bytes);
        let answer = Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        };
        answer.accepted(self, path)?;
        bail!("{}{path} answered {}", self.url, head.status)
    }

    fn unanswered(&self, error: Error, path: &str) -> anyhow::Error {
        let url = &self.url;
        let is_tls = url.starts_with("https:");
        match error {
            Error::TooLong { bytes_max, .. } => {
                anyhow!("{url}{path} answers with more than {bytes_max} bytes")
            }
            Error::NotHttp(_) => anyhow!(
                "{url}: the program there does not speak HTTP; give the address after `http=` in the line `ready`, with \
                 https:// if the server has a certificate"
            ),
            Error::NoResponse(_) | Error::Incomplete { .. } => Unavailable(format!(
                "{url}: the server closed the connection before it answered; it may have executed the request. If it \
                 always does this, it does not speak HTTP: give the address after `http=` in the line `ready`{}",
                if is_tls {
                    "; or it wants a certificate: give one in LANDFAST_TLS_CLIENT_CERT"
                } else {
                    ""
                }
            ))
            .into(),
            error => {
                let trusted = if is_tls {
                    ", and is the authority of its certificate in LANDFAST_TLS_CA"
                } else {
                    ""
                };
                anyhow::Error::new(error).context(Unavailable(format!(
                    "{url} does not answer (is `landfast serve` running there{trusted}?)"
                )))
            }
        }
    }

    fn as_http(&self, request: &Request<'_>) -> anyhow::Result<http::Request<Bytes>> {
        let (scheme, host) = self.scheme_and_host()?;
        let uri = format!("{scheme}://{host}{}", request.path);
        let mut http = http::Request::builder().method(request.method).uri(uri);
        if let Some(token) = &self.token {
            http = http.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in request.headers {
            http = http.header(*name, *value);
        }
        http.body(Bytes::copy_from_slice(request.body))
            .with_context(|| format!("{}{} cannot be asked for", self.url, request.path))
    }

    /// The scheme of the URL, and its host with its port if it has one.
    fn scheme_and_host(&self) -> anyhow::Result<(&str, &str)> {
        let parts = self.url.split_once("://");
        let parts = parts.map(|(scheme, rest)| (scheme, rest.strip_suffix('/').unwrap_or(rest)));
        let is_right = |(scheme, host): &(&str, &str)| {
            ["http", "https"].contains(scheme)
                && !host.is_empty()
                && !host.contains(['/', '?', '#', '@'])
        };
        parts.filter(is_right).with_context(|| {
            let url = &self.url;
            format!("--url (LANDFAST_URL) {url:?}: give http://HOST:PORT or https://HOST:PORT and nothing after it")
        })
    }

    /// The authorities of the server's certificate, if it has one.
    fn trust(&self) -> anyhow::Result<Trust> {
        if !self.url.starts_with("https:") {
            return Ok(Trust::default());
        }
        trust(&Given {
            ca: self.ca.as_deref().map(|ca| (ca, "LANDFAST_TLS_CA")),
            identity: None,
        })
    }
}

/// The body of a response that is read as it comes.
#[derive(Debug)]
pub(crate) struct Streamed {
    runtime: tokio::runtime::Runtime,
    body: StreamedBody,
    /// What has come and is not read yet.
    piece: Bytes,
}

impl Read for Streamed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            let frame = self.body.frame();
            let frame = self
                .runtime
                .block_on(async { timeout(STALL_MAX, frame).await });
            match frame.map_err(|_| stalled("the server"))? {
                None => return Ok(0),
                Some(frame) => self.piece = frame?.into_data().unwrap_or_default(),
            }
        }
        let count = self.piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}

fn stalled(who: &str) -> io::Error {
    let why = format!("{who} has sent nothing for {} s", STALL_MAX.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// The server did not execute the request but may do so later: it is starting, stopping or away.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unavailable(String);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a [u8],
    /// How long the response may take.
    pub(crate) wait_max: Duration,
    /// The longest response, in bytes.
    pub(crate) answer_bytes_max: usize,
}

impl<'a> Request<'a> {
    pub(crate) fn get(path: &'a str) -> Self {
        Self {
            method: "GET",
            path,
            headers: &[],
            body: &[],
            wait_max: WAIT_MAX,
            answer_bytes_max: ANSWER_BYTES_MAX,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// The value of a header, if it is visible ASCII.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The server's detail, if a run has taken effect, or may have, and cannot be seen yet.
    pub(crate) fn unseen(&self) -> Option<String> {
        let Problem { name, detail, id } = serde_json::from_slice(&self.body).ok()?;
        (self.status == 503 && name == "outcome-unknown" && id.is_some()).then_some(detail)
    }

    /// The response itself, if the server did what it was asked to.
    pub(crate) fn accepted(self, target: &Target, path: &str) -> anyhow::Result<Self> {
        if (200..300).contains(&self.status) {
            return Ok(self);
        }
        let status = self.status;
        let said = self
            .message()
            .unwrap_or_else(|| self.unreadable(target, path));
        // A gateway in front of the server reports with these that it is away.
        match status {
            502..=504 => Err(Unavailable(said).into()),
            _ => bail!(said),
        }
    }

    /// The message of a refusal, with the name that scripts compare: of a problem document, or of
    /// an error of Lambda's API.
    fn message(&self) -> Option<String> {
        if let Ok(Problem { name, detail, .. }) = serde_json::from_slice(&self.body) {
            return Some(format!("{detail} ({name})"));
        }
        let LambdaError { message } = serde_json::from_slice(&self.body).ok()?;
        Some(match self.header("x-amzn-errortype") {
            Some(name) => format!("{message} ({name})"),
            None => message,
        })
    }

    /// A refusal that no Landfast server wrote.
    fn unreadable(&self, target: &Target, path: &str) -> String {
        let said = String::from_utf8_lossy(&self.body);
        let said = said.trim();
        let beginning = &said[..said.floor_char_boundary(SHOWN_BYTES_MAX)];
        let (url, status) = (&target.url, self.status);
        format!("{url}{path} answered {status}: {beginning}")
    }
}

#[derive(Deserialize)]
struct Problem {
    #[serde(rename = "type")]
    name: String,
    detail: String,
    /// The run that it is about.
    id: Option<String>,
}

#[derive(Deserialize)]
struct LambdaError {
    #[serde(alias = "Message")]
    message: String,
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use super::*;

    /// The result for a server that sends this and ends the connection.
    fn said_of(answer: &'static [u8]) -> anyhow::Result<Answer> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let target = Target {
            url: format!("http://{}", listener.local_addr().expect("bound")),
            token: None,
            ca: None,
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
        let said = target.send(&Request::get("/v1/status"));
        server.join().expect("it has answered");
        said
    }

    #[test]
    fn a_broken_connection_is_distinguished_from_another_protocol() {
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
        assert_eq!(whole.body, "ab");
    }

    #[test]
    fn an_unavailable_server_is_distinguished_from_a_refusal() {
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
            ca: None,
        };
        let nobody = target.ask(&Request::get("/")).expect_err("nobody listens");
        assert!(
            nobody.is::<Unavailable>() && nobody.to_string().contains("does not answer"),
            "{nobody:#}"
        );
    }
}
