//! Who may call: the one pair of keys, and functions with keys of their own to some buckets, by
//! signatures that cover all that matters.
//!
//! s3s computes the signatures. It does not demand, as S3 does, that they cover each `x-amz-` header
//! of the request. An observer of a signed request could then add some.

use std::{fmt, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{
    HeaderMap, Method, Request, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use percent_encoding::percent_decode_str;
use s3s::{
    S3Error, S3Result,
    access::{S3Access, S3AccessContext},
    auth::{S3Auth, SecretKey},
    dto::CopySource,
    host::{S3Host, VirtualHost},
    path::S3Path,
};
use sha2::Sha256;

use crate::{acl::OWNER, errors::Refusal};

/// A pair of keys.
#[derive(Clone)]
pub struct Credentials {
    /// The access key.
    pub access_key: String,
    /// The secret key.
    pub secret_key: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("access_key", &self.access_key)
            .finish_non_exhaustive()
    }
}

/// The longest life of a presigned URL, in seconds: a week.
const EXPIRES_MAX: u32 = 604_800;
/// The text before what a function's secret key is made of.
const OF_FUNCTIONS: &str = "landfast function\0";

impl Credentials {
    /// The keys of the function `name`, which are others once it is removed and deployed anew.
    #[must_use]
    pub fn of_function(&self, name: &str, incarnation: u64) -> Self {
        let access_key = format!("{name}.{incarnation:016x}");
        let mut mac = Hmac::<Sha256>::new_from_slice(self.secret_key.as_bytes())
            .expect("HMAC takes a key of any length");
        mac.update(OF_FUNCTIONS.as_bytes());
        mac.update(access_key.as_bytes());
        Self {
            access_key,
            secret_key: BASE64_STANDARD.encode(mac.finalize().into_bytes()),
        }
    }
}

/// The buckets that a function reaches.
#[derive(Debug, Clone)]
pub struct Grant {
    /// Differs once the function is removed and deployed anew.
    pub incarnation: u64,
    /// Their names.
    pub buckets: Vec<String>,
}

/// Knows the deployed functions.
pub trait Functions: fmt::Debug + Send + Sync {
    /// The buckets of the function `name`. None: it is not deployed.
    fn grant(&self, name: &str) -> Option<Grant>;
}

/// The keys that are accepted.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) own: Credentials,
    pub(crate) functions: Arc<dyn Functions>,
}

impl Keys {
    /// The function with this access key.
    fn of_function(&self, access_key: &str) -> Option<(Credentials, Grant)> {
        let (name, _) = access_key.rsplit_once('.')?;
        let grant = self.functions.grant(name)?;
        let keys = self.own.of_function(name, grant.incarnation);
        (keys.access_key == access_key).then_some((keys, grant))
    }

    /// Errors: the caller is a function, and the request names a bucket that is not one of its own.
    fn check_buckets(
        &self,
        access_key: &str,
        path: &S3Path,
        headers: &HeaderMap,
    ) -> Result<Option<Grant>, Refusal> {
        if access_key == self.own.access_key {
            return Ok(None);
        }
        let Some((_, grant)) = self.of_function(access_key) else {
            return Err(denied("Access Denied. The function was removed."));
        };
        let is_own = |bucket: &str| grant.buckets.iter().any(|own| own == bucket);
        let is_target_own = match path {
            S3Path::Root => true,
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => is_own(bucket),
        };
        let mut sources = headers.get_all("x-amz-copy-source").iter();
        let are_sources_own = sources.all(|source| {
            let source = source.to_str().ok().map(CopySource::parse);
            matches!(source, Some(Ok(CopySource::Bucket { bucket, .. })) if is_own(&bucket))
        });
        if is_target_own && are_sources_own {
            return Ok(Some(grant));
        }
        Err(denied(
            "Access Denied. The manifest of the function does not name the bucket in `objects`.",
        ))
    }
}

fn denied(message: &str) -> Refusal {
    Refusal::new("AccessDenied", http::StatusCode::FORBIDDEN, message)
}

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if access_key == self.own.access_key {
            return Ok(SecretKey::from(self.own.secret_key.as_str()));
        }
        if let Some((keys, _)) = self.of_function(access_key) {
            return Ok(SecretKey::from(keys.secret_key));
        }
        Err(Refusal::new(
            "InvalidAccessKeyId",
            http::StatusCode::FORBIDDEN,
            "The AWS Access Key Id you provided does not exist in our records.",
        )
        .into())
    }
}

/// Refuses requests without a signature, headers that it does not cover, and a function's requests
/// beyond its buckets.
#[derive(Debug, Clone)]
pub(crate) struct Access(pub(crate) Keys);

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let Some(credentials) = context.credentials() else {
            return Err(denied("Access Denied. Requests must be signed.").into());
        };
        let (access_key, path) = (&credentials.access_key, context.s3_path());
        let grant = self.0.check_buckets(access_key, path, context.headers());
        let grant = grant.map_err(S3Error::from)?;
        check_signed(context.uri(), context.headers()).map_err(S3Error::from)?;
        if let Some(grant) = grant {
            context.extensions_mut().insert(grant);
        }
        Ok(())
    }
}

/// Errors: `AccessDenied` with the first header that is not signed, or for another owner's request;
/// `AuthorizationQueryParametersError` for a URL that lives for more than a week.
pub(crate) fn check_signed(uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    let owner = headers.get("x-amz-expected-bucket-owner");
    if owner.is_some_and(|owner| owner.as_bytes() != OWNER.as_bytes()) {
        return Err(denied("Access Denied. The bucket has another owner."));
    }
    let expires = Query::of(uri).value("X-Amz-Expires").map(str::parse);
    if expires.is_some_and(|seconds| !seconds.is_ok_and(|seconds: u32| seconds <= EXPIRES_MAX)) {
        let message = "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than 604800 seconds";
        return Err(Refusal::bad("AuthorizationQueryParametersError", message));
    }
    let Some(signed) = signed_headers(uri, headers) else {
        // A form, whose policy covers its fields, or a URL of version 2, which covers all headers.
        return Ok(());
    };
    let is_signed = |name: &str| signed.iter().any(|one| one.eq_ignore_ascii_case(name));
    let names = headers.keys().map(http::HeaderName::as_str);
    // Presigned requests may carry the hash of their payload, which only narrows what they do.
    let mut matter = names.filter(|name| {
        *name == "host" || (name.starts_with("x-amz-") && *name != "x-amz-content-sha256")
    });
    match matter.find(|name| !is_signed(name)) {
        None => Ok(()),
        Some(name) => Err(denied(&format!(
            "There were headers present in the request which were not signed: {name}"
        ))),
    }
}

/// The headers that the signature in use covers. None: it is of version 2, which covers all that
/// matter, or of a form, whose policy covers its fields. A signature without a readable list covers
/// none.
fn signed_headers(uri: &Uri, headers: &HeaderMap) -> Option<Vec<String>> {
    let list = |text: &str| text.split(';').map(str::to_owned).collect();
    let query = Query::of(uri);
    // The same order as in s3s: a signature in the query wins over one in the header.
    if query.value("X-Amz-Signature").is_some() {
        let signed = query.value("X-Amz-SignedHeaders");
        return Some(signed.map(list).unwrap_or_default());
    }
    if let Some(authorization) = headers.get(AUTHORIZATION) {
        let fields = authorization.to_str().unwrap_or_default().split([',', ' ']);
        let mut lists = fields.filter_map(|field| field.trim().strip_prefix("SignedHeaders="));
        return Some(lists.next().map(list).unwrap_or_default());
    }
    None
}

/// The parameters of a query by their decoded names, as s3s reads them.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(uri: &Uri) -> Self {
        let decoded = |text: &str| {
            let text = text.replace('+', " ");
            percent_decode_str(&text).decode_utf8_lossy().into_owned()
        };
        let pairs = uri.query().unwrap_or_default().split('&').map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        });
        Self(pairs.collect())
    }

    fn value(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(one, _)| one == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Whether a signature for S3, of any version, is on a request to a listener that serves more.
pub(crate) fn is_for_s3(uri: &Uri, headers: &HeaderMap) -> bool {
    const SCOPE: &str = "/s3/aws4_request";
    let query = Query::of(uri);
    let scope = query.value("X-Amz-Credential");
    let header = headers.get(AUTHORIZATION).and_then(|one| one.to_str().ok());
    scope.is_some_and(|scope| scope.ends_with(SCOPE))
        || header.is_some_and(|header| header.contains(SCOPE))
        || query.value("AWSAccessKeyId").is_some()
}

/// Whether the request is a form, whose signature is in its fields.
pub(crate) fn is_form<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    let kind = kind.map(|kind| kind.as_bytes().to_ascii_lowercase());
    let is_form = kind.is_some_and(|kind| kind.starts_with(b"multipart/form-data"));
    *request.method() == Method::POST && is_form
}

/// Whether the header has a signature of version 2, which leaves out most of a request. URLs of
/// that version are served, because boto3 makes them unless it is told otherwise.
pub(crate) fn is_version_2(headers: &HeaderMap) -> bool {
    let authorization = headers.get(AUTHORIZATION);
    authorization.is_some_and(|value| value.as_bytes().starts_with(b"AWS "))
}

/// Clients address `bucket.localhost` when they are given `localhost`, and IP addresses by paths.
#[derive(Debug)]
pub(crate) struct Hosts;

impl S3Host for Hosts {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        Ok(match name.strip_suffix(".localhost") {
            Some(bucket) => VirtualHost::new(name).with_bucket(bucket),
            None => VirtualHost::new(name),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
