//! The port on the client of `object_store`.

use std::{
    sync::{Arc, Once},
    time::Duration,
};

use object_store::{
    BackoffConfig, ClientOptions, PutResult, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder},
    prefix::PrefixStore,
};
use ports::{
    decorate::ObjectsDecorator,
    objects::{
        ObjectError, ObjectLimits, ObjectPath, ObjectStore, ObjectStoreExt as _, PutMode,
        PutOptions, PutPayload, Result,
    },
};

use crate::config::{Config, Keys};

/// The limits of S3: an object put at once has up to 5 GiB. hyper reads pieces of up to twice its buffer of 408 KiB.
pub const LIMITS: ObjectLimits = ObjectLimits {
    object_bytes_max: 5 << 30,
    takes_parts: true,
    piece_bytes_max: 1 << 20,
};

/// The time for a connection. Callers serve clients meanwhile.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// The time for one request, its body included.
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// The requests after a failed one, and the time in which they begin.
const RETRIES_MAX: usize = 3;
const RETRY_MAX: Duration = Duration::from_secs(10);
/// The creates of one object that meet another one under way.
const CREATES_MAX: usize = 5;

/// The first caller installs the cryptography of TLS, and others wait for it: the second installation of a race fails before the
/// first is done.
static CRYPTOGRAPHY: Once = Once::new();

/// The client cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("the client for S3 cannot be made")]
pub struct OpenError(#[from] ObjectError);

/// The objects of a bucket. Sends no request yet.
pub fn open(config: &Config, keys: &Keys) -> Result<Arc<dyn ObjectStore>, OpenError> {
    CRYPTOGRAPHY.call_once(|| {
        // Fails if another part of the process has installed one, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    let region = config.region.as_ref().unwrap_or(&keys.region);
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&config.bucket)
        .with_region(region)
        .with_access_key_id(&keys.access_key)
        .with_secret_access_key(&keys.secret_key)
        .with_client_options(
            ClientOptions::new()
                .with_connect_timeout(CONNECT_MAX)
                .with_timeout(REQUEST_MAX),
        )
        .with_retry(RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: RETRIES_MAX,
            retry_timeout: RETRY_MAX,
        });
    if let Some(endpoint) = &config.endpoint {
        let is_plain = endpoint.starts_with("http://");
        builder = builder.with_endpoint(endpoint).with_allow_http(is_plain);
    }
    if let Some(token) = &keys.session_token {
        builder = builder.with_token(token);
    }
    let inner = PrefixStore::new(builder.build()?, config.prefix.as_str());
    Ok(Bucket { inner }.into_objects())
}

#[derive(Debug)]
struct Bucket {
    inner: PrefixStore<AmazonS3>,
}

impl ObjectsDecorator for Bucket {
    fn inner(&self) -> &dyn ObjectStore {
        &self.inner
    }

    /// S3 refuses a create with 409 while another one is under way, which may fail. The client takes
    /// that for an object that exists, so this asks whether there is one (O2).
    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let is_create = options.mode == PutMode::Create;
        for _ in 1..CREATES_MAX {
            let put = self
                .inner
                .put_opts(path, payload.clone(), options.clone())
                .await;
            if !is_create || !matches!(put, Err(ObjectError::AlreadyExists { .. })) {
                return put;
            }
            match self.inner.head(path).await {
                Err(ObjectError::NotFound { .. }) => {}
                Err(error) => return Err(error),
                Ok(_) => return put,
            }
        }
        self.inner.put_opts(path, payload, options).await
    }
}
