//! The bounds of a listener in number, bytes and time.

use std::{fmt::Debug, os::fd::OwnedFd, sync::Arc, time::Duration};

use crate::tls::Tls;

/// How long a connection past the limit may take to send its request.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);

/// The bounds of one listener.
#[derive(Debug, Clone)]
pub struct Config {
    /// Connections that are served at once. Past this limit new ones are refused.
    pub connections_max: usize,
    /// The bytes of one request's body on any route. Reading more fails with
    /// [`std::io::ErrorKind::FileTooLarge`].
    pub body_bytes_max: u64,
    /// How long connections may wait.
    pub timeouts: Timeouts,
    /// Files that lie in memory. The kernel sends their bytes without a copy.
    pub files: Option<Arc<dyn FilesInMemory>>,
    /// None: connections have no TLS.
    pub tls: Option<Tls>,
}

/// Files whose bytes lie in the memory of this process.
///
/// A file's bytes never change between a send and their arrival, which may be long after the response.
pub trait FilesInMemory: Debug + Send + Sync {
    /// The file that `bytes` lie in, and their offset in it. None: they lie in no file.
    fn file_of(&self, bytes: &[u8]) -> Option<(Arc<OwnedFd>, u64)>;
}

/// How long a connection may wait for its client.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// From the first byte of a request to the end of its head.
    pub head: Duration,
    /// For the next [`PROGRESS_BYTES`](crate::PROGRESS_BYTES) of a body, or its end, and for the
    /// client to take any bytes of a response.
    pub progress: Duration,
    /// Between two requests, and before the first.
    pub idle: Duration,
    /// The same while as many connections are open as may be.
    pub idle_when_full: Duration,
    /// For requests in progress once the listener stops. Then their connections are cut.
    pub drain: Duration,
}

impl Timeouts {
    /// Those of a connection past the limit, which has one request.
    pub(crate) fn of_refusal(self) -> Self {
        Self {
            head: REFUSED_WITHIN,
            progress: REFUSED_WITHIN,
            idle: REFUSED_WITHIN,
            ..self
        }
    }
}

impl Default for Timeouts {
    /// Clients with pools keep idle connections for about a minute, so `idle` is longer than that.
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            progress: Duration::from_secs(10),
            idle: Duration::from_secs(75),
            idle_when_full: Duration::from_secs(10),
            drain: Duration::from_secs(2),
        }
    }
}
