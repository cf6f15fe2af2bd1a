//! New connections, with or without TLS by the scheme of the URI, within one time limit.

use std::{
    fmt, fs,
    future::Future,
    io,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tokio::{net::TcpStream, time::timeout};
use tower_service::Service;

/// A connection that nothing was sent on.
pub type Connection = TokioIo<Stream>;
type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The longest PEM file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The authorities whose certificates a client accepts. By default none: no `https` server is
/// reached.
#[derive(Clone)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Those of this system.
    ///
    /// Errors: it has none that can be read.
    pub fn in_system() -> io::Result<Self> {
        let mut found = rustls_native_certs::load_native_certs();
        if found.certs.is_empty() {
            let why = found.errors.pop().map(|error| format!(": {error}"));
            let why = why.unwrap_or_default();
            return Err(io::Error::other(format!(
                "this system has no certificates of authorities{why}"
            )));
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        Ok(Self::of(roots))
    }

    /// Those in a PEM file.
    ///
    /// Errors: `InvalidInput` with the file and what is wrong with it.
    pub fn in_file(path: &Path) -> io::Result<Self> {
        let unusable = |why: &dyn fmt::Display| {
            let message = format!("{}: {why}", path.display());
            io::Error::new(io::ErrorKind::InvalidInput, message)
        };
        let bytes = fs::metadata(path).map_err(|error| unusable(&error))?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(unusable(&format!(
                "it is longer than {FILE_BYTES_MAX} bytes"
            )));
        }
        let pem = fs::read(path).map_err(|error| unusable(&error))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| unusable(&error))?;
            let added = roots.add(certificate);
            added.map_err(|error| unusable(&error))?;
        }
        if roots.is_empty() {
            return Err(unusable(&"it holds no certificate in PEM format"));
        }
        Ok(Self::of(roots))
    }

    fn of(roots: RootCertStore) -> Self {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has the ciphers of both versions");
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        Self(Arc::new(config))
    }
}

impl Default for Trust {
    fn default() -> Self {
        Self::of(RootCertStore::empty())
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").finish_non_exhaustive()
    }
}

/// A connection to the server of `uri`, without the pool of a client.
///
/// Errors: it cannot be made within `connect_timeout`.
pub async fn connect(uri: Uri, trust: &Trust, connect_timeout: Duration) -> io::Result<Connection> {
    let made = Connector::new(trust.clone(), connect_timeout)
        .call(uri)
        .await;
    made.map(TokioIo::new).map_err(io::Error::other)
}

/// Makes the connections of a pool.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    https: HttpsConnector<HttpConnector>,
    /// For the connection with its handshake: a peer may accept it and be silent.
    connect_timeout: Duration,
}

impl Connector {
    pub(crate) fn new(trust: Trust, connect_timeout: Duration) -> Self {
        let mut http = HttpConnector::new();
        http.set_connect_timeout(Some(connect_timeout));
        http.set_nodelay(true);
        http.enforce_http(false);
        Self {
            https: HttpsConnector::from((http, trust.0)),
            connect_timeout,
        }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.https.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.https.call(uri);
        let connect_timeout = self.connect_timeout;
        Box::pin(async move {
            let late = |_elapsed| -> BoxError {
                let message = format!("no connection within {} s", connect_timeout.as_secs_f32());
                io::Error::new(io::ErrorKind::TimedOut, message).into()
            };
            timeout(connect_timeout, connecting).await.map_err(late)?
        })
    }
}
