//! New connections, with or without TLS by the scheme of the URI, within one time limit.

use std::{
    fmt, fs,
    future::Future,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Extensions, Uri};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::{
    client::legacy::connect::{Connection as _, HttpConnector, HttpInfo},
    rt::TokioIo,
};
use rustls::{
    ClientConfig, RootCertStore, SignatureScheme,
    client::ResolvesClientCert,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
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
/// reached. Also the certificate that the client presents, if it has one.
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
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            let added = roots.add(certificate);
            added.map_err(|error| unusable(path, error))?;
        }
        Ok(Self::of(roots))
    }

    /// The same for servers that ask for a certificate. Each handshake with one of them reads the
    /// files anew. Files that then do not load are replaced by what they were here.
    ///
    /// Errors: `InvalidInput` with the file and what is wrong with it.
    pub fn with_identity(self, certificate: &Path, key: &Path) -> io::Result<Self> {
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        let first = Arc::new(identity(&certificate, &key)?);
        let mut config = ClientConfig::clone(&self.0);
        config.client_auth_cert_resolver = Arc::new(Identity {
            certificate,
            key,
            first,
        });
        Ok(Self(Arc::new(config)))
    }

    /// For TLS over a stream that the caller has connected.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0)
    }

    fn of(roots: RootCertStore) -> Self {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has the ciphers of both versions");
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        Self(Arc::new(config))
    }
}

/// The client's own certificate.
#[derive(Debug)]
struct Identity {
    certificate: PathBuf,
    key: PathBuf,
    first: Arc<CertifiedKey>,
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let read = identity(&self.certificate, &self.key);
        Some(read.map_or_else(|_| Arc::clone(&self.first), Arc::new))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn identity(certificate: &Path, key: &Path) -> io::Result<CertifiedKey> {
    let chain = certificates(certificate)?;
    let der = PrivateKeyDer::from_pem_slice(&pem(key)?)
        .map_err(|error| unusable(key, format!("no private key in PEM format: {error}")))?;
    let made = CertifiedKey::from_der(chain, der, &ring::default_provider());
    let with_key = |error| format!("with the key in {}: {error}", key.display());
    made.map_err(|error| unusable(certificate, with_key(error)))
}

/// The certificates in a PEM file, at least one.
fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let parsed = CertificateDer::pem_slice_iter(&pem(path)?).collect::<Result<Vec<_>, _>>();
    let parsed = parsed.map_err(|error| unusable(path, error))?;
    if parsed.is_empty() {
        return Err(unusable(path, "it holds no certificate in PEM format"));
    }
    Ok(parsed)
}

fn pem(path: &Path) -> io::Result<Vec<u8>> {
    let found = fs::metadata(path).map_err(|error| unusable(path, error))?;
    if found.len() > FILE_BYTES_MAX {
        let why = format!("it is longer than {FILE_BYTES_MAX} bytes");
        return Err(unusable(path, why));
    }
    fs::read(path).map_err(|error| unusable(path, error))
}

fn unusable(path: &Path, why: impl fmt::Display) -> io::Error {
    let message = format!("{}: {why}", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, message)
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

/// The address of the server that a connection reaches; `None` if the system no longer knows it.
pub fn peer_address(connection: &Connection) -> Option<SocketAddr> {
    let mut extras = Extensions::new();
    connection.inner().connected().get_extras(&mut extras);
    extras.get().map(HttpInfo::remote_addr)
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
