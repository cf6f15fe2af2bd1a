//! TLS for any TCP listener: the certificate from PEM files, and handshakes within a time limit.
//!
//! A certificate is replaced without a restart. A new connection has the files looked at, at most
//! once in [`LOOK_EVERY`]. Files that changed are loaded. If they do not load, the old certificate
//! stays in use, and the log says why. The next change of a file is the next attempt: programs
//! replace certificate and key one after the other. Open connections keep what they began with.
//!
//! Invariants
//! - A handshake ends within [`HANDSHAKE_MAX`].
//! - A subject is only known of a client certificate that the configured authority has signed.

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::distinguished_name;

/// A connection whose handshake is done.
pub type TlsStream = tokio_rustls::server::TlsStream<TcpStream>;

/// How long a peer may take for its handshake.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How often at most the files are looked at.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest PEM file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Whether clients present certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// A client without one is served too. One that does not verify is refused.
    Optional,
    /// A client without one is refused.
    Required,
}

/// The PEM files of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain, the server's own first.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The authorities that sign the certificates of clients. None: clients are not asked for one.
    pub client_ca: Option<(PathBuf, ClientCertificates)>,
    /// The name of the port, for the log.
    pub port: &'static str,
}

/// The TLS side of a listener. Clones share their certificate.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    files: TlsFiles,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// What the files were when they were last loaded, or failed to load.
    seen: Vec<Option<Stamp>>,
    looked: Instant,
}

/// A file's state: another content has another stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The peer closed the connection before the handshake was done: no fault of anyone.
    #[error("the peer disconnected during the handshake")]
    PeerGone,
    /// The handshake took longer than [`HANDSHAKE_MAX`], or than its listener allows.
    #[error("the TLS handshake took too long")]
    TimedOut,
    /// The first bytes are not TLS.
    #[error("the peer does not speak TLS; this port is for TLS alone")]
    NotTls,
    /// The two sides do not agree, such as about a certificate.
    #[error("the TLS handshake failed: {0}")]
    Failed(String),
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.files).finish()
    }
}

impl Tls {
    /// Loads the files.
    ///
    /// Errors: `InvalidInput` with the file and what is wrong with it.
    pub fn load(files: TlsFiles) -> io::Result<Self> {
        let seen = files.stamps();
        let config = files.load()?;
        let current = Mutex::new(Current {
            config,
            seen,
            looked: Instant::now(),
        });
        Ok(Self(Arc::new(Shared { files, current })))
    }

    /// The handshake with a new connection.
    ///
    /// Errors: it failed, or took longer than [`HANDSHAKE_MAX`]. The connection is closed then.
    pub async fn accept(&self, stream: TcpStream) -> Result<TlsStream, HandshakeError> {
        let acceptor = TlsAcceptor::from(self.config());
        match timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await {
            Ok(accepted) => accepted.map_err(|error| HandshakeError::of(&error)),
            Err(_elapsed) => Err(HandshakeError::TimedOut),
        }
    }

    /// The configuration for the next handshake.
    fn config(&self) -> Arc<ServerConfig> {
        let Shared { files, current } = &*self.0;
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now >= current.looked + LOOK_EVERY {
            current.looked = now;
            // Before the load, so that a change during it is loaded later.
            let seen = files.stamps();
            if seen != current.seen {
                current.seen = seen;
                match files.load() {
                    Ok(config) => {
                        current.config = config;
                        let certificate = files.certificate.display();
                        let port = files.port;
                        tracing::info!(port, "{certificate}: the new certificate is in use");
                    }
                    Err(error) => tracing::error!(
                        port = files.port,
                        "{error}; the old certificate stays in use: replace the files by a certificate and its key"
                    ),
                }
            }
        }
        Arc::clone(&current.config)
    }
}

/// The subject of the client's certificate, as [`distinguished_name`] writes it. None: it presented
/// none, or its subject cannot be read.
pub fn client_subject(stream: &TlsStream) -> Option<String> {
    let (_, session) = stream.get_ref();
    distinguished_name::of_subject(session.peer_certificates()?.first()?)
}

impl TlsFiles {
    fn stamps(&self) -> Vec<Option<Stamp>> {
        let client_ca = self.client_ca.as_ref().map(|(path, _)| path);
        let paths = [Some(&self.certificate), Some(&self.key), client_ca];
        let stamp = |path: &PathBuf| {
            let found = fs::metadata(path).ok()?;
            Some(Stamp {
                inode: found.ino(),
                bytes: found.size(),
                modified: (found.mtime(), found.mtime_nsec()),
            })
        };
        paths.into_iter().flatten().map(stamp).collect()
    }

    fn load(&self) -> io::Result<Arc<ServerConfig>> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?)
            .map_err(|error| unusable(&self.key, no_pem(&error, "private key")))?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&self.certificate, error))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some((path, clients)) => {
                let roots = Arc::new(roots(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = match clients {
                    ClientCertificates::Optional => verifier.allow_unauthenticated(),
                    ClientCertificates::Required => verifier,
                };
                let verifier = verifier.build().map_err(|error| unusable(path, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain, key).map_err(|error| {
            let key = self.key.display();
            unusable(&self.certificate, format!("with the key in {key}: {error}"))
        })?;
        Ok(Arc::new(config))
    }
}

impl HandshakeError {
    fn of(error: &io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        match inner {
            Some(rustls::Error::InvalidMessage(_)) => Self::NotTls,
            Some(inner) => Self::Failed(inner.to_string()),
            None => Self::PeerGone,
        }
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = read(path)?;
    let parsed = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let parsed = parsed.map_err(|error| unusable(path, no_pem(&error, "certificate")))?;
    if parsed.is_empty() {
        return Err(unusable(
            path,
            no_pem(&pem::Error::NoItemsFound, "certificate"),
        ));
    }
    Ok(parsed)
}

fn roots(path: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = roots.add(certificate);
        added.map_err(|error| unusable(path, error))?;
    }
    Ok(roots)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = fs::metadata(path)
        .map_err(|error| unusable(path, error))?
        .len();
    if bytes > FILE_BYTES_MAX {
        return Err(unusable(
            path,
            format!("it is longer than {FILE_BYTES_MAX} bytes"),
        ));
    }
    fs::read(path).map_err(|error| unusable(path, error))
}

fn no_pem(error: &pem::Error, what: &str) -> String {
    match error {
        pem::Error::NoItemsFound => format!("it holds no {what} in PEM format"),
        error => error.to_string(),
    }
}

fn unusable(path: &Path, why: impl fmt::Display) -> io::Error {
    let message = format!("{}: {why}", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
