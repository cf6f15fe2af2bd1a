//! Addresses of front ends, and the names of hosts.

use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs as _},
    path::PathBuf,
    str::FromStr,
};

use http::uri::Authority;
use serde::Deserialize;

/// The address of a front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Listen {
    /// Nowhere.
    Off,
    /// At this address; port 0 picks a free one.
    At(SocketAddr),
}

/// The Unix socket for client processes of volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VolumesSocket {
    /// None.
    Off,
    /// In the data directory. If that holds no sockets, the server goes on without one.
    Usual(PathBuf),
    /// At a path that was asked for.
    At(PathBuf),
}

/// A host without a port, in lower case, or `*`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct HostName(pub(crate) String);

/// Whether it is `HOST:PORT`, with a port of a server and an address of version 6 in brackets.
pub(crate) fn is_host_and_port(text: &str) -> bool {
    text.parse::<Authority>().is_ok_and(|parsed| {
        let is_whole = !parsed.host().is_empty() && !text.contains('@');
        is_whole && parsed.port_u16().is_some_and(|port| port > 0)
    })
}

impl Listen {
    pub(super) fn loopback(port: u16) -> Self {
        Self::At(SocketAddr::from(([127, 0, 0, 1], port)))
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let wrong = |error| format!("expected HOST:PORT or off: {error}");
        let address = text.to_socket_addrs().map_err(wrong)?.next();
        address
            .map(Self::At)
            .ok_or("the host has no address".into())
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.parse::<Authority>();
        // An authority with a port or a user is longer than its host.
        if text == "*" || parsed.is_ok_and(|authority| authority.host() == text) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        Err(
            "expected a host without a port, such as shop.example or [2001:db8::1], or *"
                .to_owned(),
        )
    }
}

impl TryFrom<String> for HostName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}
