//! The authorities whose certificates a client accepts from `https` servers.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use crate::error::{Error, ErrorKind, Result};

/// Those of the system. If it has none, every server is refused.
pub(crate) fn in_system() -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    config(roots)
}

/// None.
pub(crate) fn in_none() -> Arc<ClientConfig> {
    config(RootCertStore::empty())
}

/// Those in a PEM file. Errors: it holds none.
pub(crate) fn in_file(path: &Path) -> Result<Arc<ClientConfig>> {
    let refuse = |why: String| {
        let what = format!("trust the authorities in {}", path.display());
        Error::new(ErrorKind::InvalidRequest, what, why)
    };
    let found = CertificateDer::pem_file_iter(path).map_err(|error| refuse(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in found {
        let certificate = certificate.map_err(|error| refuse(error.to_string()))?;
        let added = roots.add(certificate);
        added.map_err(|error| refuse(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(refuse("it holds no certificate in PEM format".to_owned()));
    }
    Ok(config(roots))
}

fn config(roots: RootCertStore) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has the ciphers of both versions");
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}
