//! One GET to a running server.
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

/// How long each of connecting, sending and receiving may take.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 4 * 1024 * 1024;

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
        let host = self.host()?;
        let answer = self
            .exchange(host, path)
            .with_context(|| format!("{} does not answer (is `landfast serve` running there?)", self.url))?;
        let not_http =
            "what answers there does not speak HTTP; give the address behind `http=` in the line `ready`";
        let (head, body) =
            answer.split_once("\r\n\r\n").with_context(|| format!("{}: {not_http}", self.url))?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        ensure!(head.starts_with("HTTP/1.") && status.len() == 3, "{}: {not_http}", self.url);
        if status != "200" {
            bail!("{}{path} answered {status}: {}", self.url, body.trim());
        }
        Ok(body.to_owned())
    }

    fn exchange(&self, host: &str, path: &str) -> anyhow::Result<String> {
        let address = address(host)?;
        let mut stream = TcpStream::connect_timeout(&address, WAIT_MAX)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        stream.set_write_timeout(Some(WAIT_MAX))?;
        let authorization = match &self.token {
            Some(token) => format!("Authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n{authorization}\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
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

/// The address of a host; port 80 if it names none.
fn address(host: &str) -> anyhow::Result<SocketAddr> {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let target = if has_port { host.to_owned() } else { format!("{host}:80") };
    target.to_socket_addrs()?.next().context("the host has no address")
}
