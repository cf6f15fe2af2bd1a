//! TLS, the token of HTTP and the accounts of ZooKeeper, and where a server may listen with them.

use std::{
    collections::BTreeSet,
    env, fmt, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use anyhow::{Context as _, bail, ensure};
use listener::{ClientCertificates as Mode, TlsFiles};
use serde::Deserialize;
use zookeeper_frontend::authentication::Accounts;

use super::{Listen, Options};

/// The longest file of a token, in bytes.
const TOKEN_FILE_BYTES_MAX: u64 = 4096;
/// The longest file of accounts, in bytes.
const ACCOUNTS_FILE_BYTES_MAX: u64 = 1 << 20;

/// A port that may have TLS. ZooKeeper's is the secure one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    Http,
    Routes,
    S3,
    Zookeeper,
}

/// Whether the clients of each [`Port`] present certificates. None: they are not asked for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ClientCertificates([Option<Mode>; 4]);

impl Port {
    const NAMES: [&str; 4] = ["http", "routes", "s3", "zookeeper"];
}

impl Default for ClientCertificates {
    fn default() -> Self {
        Self([Some(Mode::Required); 4])
    }
}

impl FromStr for ClientCertificates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut modes = Self::default().0;
        let mut named = BTreeSet::new();
        for (index, part) in text.split(',').enumerate() {
            let (port, mode) = match part.split_once('=') {
                Some((port, mode)) => (Some(port), mode),
                None => (None, part),
            };
            let mode = match mode {
                "none" => None,
                "optional" => Some(Mode::Optional),
                "required" => Some(Mode::Required),
                _ => return Err(format!("{mode:?}: give required, optional or none")),
            };
            let Some(port) = port else {
                if index > 0 {
                    return Err(format!("{part}: the mode of all other ports comes first"));
                }
                modes = [mode; 4];
                continue;
            };
            let Some(position) = Port::NAMES.iter().position(|name| *name == port) else {
                let ports = Port::NAMES.join(", ");
                return Err(format!("{port:?}: the ports are {ports}"));
            };
            if !named.insert(position) {
                return Err(format!("{port}: give each port one mode"));
            }
            modes[position] = mode;
        }
        Ok(Self(modes))
    }
}

impl TryFrom<String> for ClientCertificates {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

/// The settings that make a server safe on a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Security {
    /// The certificate of every port with TLS. Use [`Security::tls_at`] for what a port asks for.
    pub(crate) tls: Option<TlsFiles>,
    client_certificates: ClientCertificates,
    /// The authorities of the other servers' certificates. None: those of the system.
    pub(crate) trusted: Option<PathBuf>,
    /// The token that HTTP requests must carry, and that this server sends to others of its store.
    pub(crate) token: Option<Secret>,
    /// Whether requests on loopback must carry it too.
    pub(crate) is_token_everywhere: bool,
    /// The port for ZooKeeper clients with TLS.
    pub(crate) zookeeper_secure: Listen,
    pub(crate) zookeeper_requires_authentication: bool,
    pub(crate) zookeeper_super_digest: Option<Secret>,
    /// The only accounts whose passwords are accepted. None: any password is, also a made-up one.
    pub(crate) zookeeper_accounts: Option<Accounts>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Security {
    /// The token that requests to an HTTP listener at this address must carry.
    pub(crate) fn token_at(&self, address: SocketAddr) -> Option<String> {
        let is_asked_for = self.is_token_everywhere || !address.ip().is_loopback();
        let token = self.token.as_ref().filter(|_| is_asked_for);
        token.map(|Secret(token)| token.clone())
    }

    /// The files of a port. None: it has no TLS.
    pub(crate) fn tls_at(&self, port: Port) -> Option<TlsFiles> {
        let files = self.tls.clone()?;
        let ClientCertificates(modes) = self.client_certificates;
        let client_ca = files.client_ca.clone();
        let client_ca = client_ca.and_then(|(path, _)| Some((path, modes[port as usize]?)));
        Some(TlsFiles {
            client_ca,
            port: Port::NAMES[port as usize],
            ..files
        })
    }

    /// Whether a port refuses clients without a verified certificate.
    pub(crate) fn requires_certificate(&self, port: Port) -> bool {
        let clients = self.tls_at(port).and_then(|files| files.client_ca);
        clients.is_some_and(|(_, mode)| mode == Mode::Required)
    }

    /// Refuses ports that others reach without TLS or without authentication.
    pub(super) fn check(
        &self,
        zookeeper: Listen,
        http: Listen,
        s3: Listen,
        routes: Listen,
    ) -> anyhow::Result<()> {
        let has_tls = self.tls.is_some();
        let tls = "give --tls-cert and --tls-key";
        let has_accounts = self.zookeeper_accounts.is_some();
        let identifies = (self.zookeeper_requires_authentication && has_accounts)
            || self.requires_certificate(Port::Zookeeper);
        let identified = "give --zookeeper-require-auth and --zookeeper-accounts-file, or --tls-client-ca and required certificates";
        // ZooKeeper's plain port never has TLS.
        let rules = [
            (
                "--zookeeper",
                zookeeper,
                false,
                "use --zookeeper-secure-listen for other machines",
            ),
            (
                "--zookeeper-secure-listen",
                self.zookeeper_secure,
                identifies,
                identified,
            ),
            ("--http", http, has_tls, tls),
            (
                "--http",
                http,
                self.token.is_some() || self.requires_certificate(Port::Http),
                "give --http-token-file or LANDFAST_TOKEN, or --tls-client-ca and required certificates",
            ),
            // Requests to S3 are always signed, and functions authenticate their own callers.
            ("--s3", s3, has_tls, tls),
            ("--routes", routes, has_tls, tls),
        ];
        for (flag, listen, is_safe, advice) in rules {
            if let Listen::At(address) = listen
                && !address.ip().is_loopback()
                && !is_safe
            {
                bail!(
                    "{flag} {address}: beyond this machine TLS and authentication are required: {advice}; or use a loopback \
                     address, or --insecure, upon which anyone on the network may read and change what this port serves"
                );
            }
        }
        Ok(())
    }
}

impl Options {
    pub(super) fn security(&self) -> anyhow::Result<Security> {
        let tls = self.tls_files()?;
        let zookeeper_secure = self.zookeeper_secure_listen.unwrap_or(Listen::Off);
        ensure!(
            zookeeper_secure == Listen::Off || tls.is_some(),
            "--zookeeper-secure-listen {zookeeper_secure}: it needs a certificate: give --tls-cert and --tls-key"
        );
        ensure!(
            zookeeper_secure == Listen::Off || self.zookeeper != Some(Listen::Off),
            "--zookeeper-secure-listen {zookeeper_secure}: it is a second port beside --zookeeper, which is off; give that \
             a loopback address"
        );
        let super_digest = self.zookeeper_super_digest.clone();
        ensure!(
            super_digest
                .as_deref()
                .is_none_or(|text| is_account(text) && text.starts_with("super:")),
            "--zookeeper-super-digest: give super: and the Base64 of the SHA-1 of super:PASSWORD, 28 characters"
        );
        let read = |path: &Option<PathBuf>| path.clone().filter(|_| !self.is_without_server);
        let accounts = read(&self.zookeeper_accounts_file);
        let zookeeper_accounts = accounts.as_deref().map(accounts_in).transpose()?;
        let in_file = read(&self.http_token_file);
        let in_file = in_file.as_deref().map(token_in).transpose()?;
        let is_token_everywhere = in_file.is_some();
        let in_environment = env::var("LANDFAST_TOKEN").unwrap_or_default();
        let in_environment = match in_environment.as_str() {
            "" => None,
            text => Some(token(text).context("LANDFAST_TOKEN")?),
        };
        let token = in_file.or(in_environment);
        Ok(Security {
            tls,
            client_certificates: self.tls_client_certificates.unwrap_or_default(),
            trusted: self.tls_ca.clone(),
            token,
            is_token_everywhere,
            zookeeper_secure,
            zookeeper_requires_authentication: self.zookeeper_require_auth == Some(true),
            zookeeper_super_digest: super_digest.map(Secret),
            zookeeper_accounts,
        })
    }

    fn tls_files(&self) -> anyhow::Result<Option<TlsFiles>> {
        let asks = self.tls_client_certificates.unwrap_or_default();
        ensure!(
            self.tls_client_ca.is_some()
                || self.tls_client_certificates.is_none()
                || asks == ClientCertificates([None; 4]),
            "--tls-client-certificates: give the authority that signs them, by --tls-client-ca"
        );
        let (certificate, key) = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => (certificate.clone(), key.clone()),
            (None, None) => {
                ensure!(
                    self.tls_client_ca.is_none(),
                    "--tls-client-ca: it needs a certificate: give --tls-cert and --tls-key"
                );
                return Ok(None);
            }
            (Some(_), None) => bail!("--tls-cert: give its key too, by --tls-key"),
            (None, Some(_)) => bail!("--tls-key: give its certificate too, by --tls-cert"),
        };
        let client_ca = self.tls_client_ca.clone();
        Ok(Some(TlsFiles {
            certificate,
            key,
            client_ca: client_ca.map(|path| (path, Mode::Required)),
            port: "",
        }))
    }
}

/// The token in a file: one line of visible characters.
fn token_in(path: &Path) -> anyhow::Result<Secret> {
    let named = format!("--http-token-file {}", path.display());
    let text = short_text(path, TOKEN_FILE_BYTES_MAX, &named)?;
    token(text.trim()).context(named)
}

/// Errors: it does not fit in a header.
fn token(text: &str) -> anyhow::Result<Secret> {
    ensure!(
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()),
        "give one line of visible ASCII characters without spaces"
    );
    Ok(Secret(text.to_owned()))
}

/// The accounts in a file, one a line. Errors name the line and not what is on it.
fn accounts_in(path: &Path) -> anyhow::Result<Accounts> {
    let named = format!("--zookeeper-accounts-file {}", path.display());
    let text = short_text(path, ACCOUNTS_FILE_BYTES_MAX, &named)?;
    let mut accounts = BTreeSet::new();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        ensure!(
            is_account(line),
            "{named}: line {number}: give USER: and the Base64 of the SHA-1 of USER:PASSWORD, 28 characters"
        );
        accounts.insert(line.to_owned());
    }
    ensure!(!accounts.is_empty(), "{named}: it names no account");
    Ok(Accounts(Arc::new(accounts)))
}

fn short_text(path: &Path, bytes_max: u64, named: &str) -> anyhow::Result<String> {
    let bytes = fs::metadata(path).with_context(|| named.to_owned())?.len();
    ensure!(bytes <= bytes_max, "{named}: longer than {bytes_max} bytes");
    fs::read_to_string(path).with_context(|| named.to_owned())
}

/// Whether it is an account's name and digest, as ZooKeeper generates them.
fn is_account(text: &str) -> bool {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/".contains(&byte);
    text.split_once(':').is_some_and(|(user, digest)| {
        let is_digest = digest.len() == 28 && digest.ends_with('=');
        !user.is_empty() && is_digest && digest.bytes().take(27).all(is_base64)
    })
}
