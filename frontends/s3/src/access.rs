//! Who may call: the one pair of keys, by signatures that cover all that matters.
//!
//! s3s computes the signatures. It does not demand, as S3 does, that they cover each `x-amz-` header
//! of the request. An observer of a signed request could then add some.

use std::fmt;

use http::{HeaderMap, Uri, header::AUTHORIZATION};
use percent_encoding::percent_decode_str;
use s3s::{
    S3Error, S3Result,
    access::{S3Access, S3AccessContext},
    auth::{S3Auth, SecretKey},
    host::{S3Host, VirtualHost},
};

use crate::{acl::OWNER, errors::Refusal};

/// The one pair of keys.
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

fn denied(message: &str) -> Refusal {
    Refusal::new("AccessDenied", http::StatusCode::FORBIDDEN, message)
}

#[async_trait::async_trait]
impl S3Auth for Credentials {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if access_key == self.access_key {
            return Ok(SecretKey::from(self.secret_key.as_str()));
        }
        Err(Refusal::new(
            "InvalidAccessKeyId",
            http::StatusCode::FORBIDDEN,
            "The AWS Access Key Id you provided does not exist in our records.",
        )
        .into())
    }
}

/// Refuses requests without a signature, and headers that it does not cover.
#[derive(Debug, Clone)]
pub(crate) struct Access;

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        if context.credentials().is_none() {
            return Err(denied("Access Denied. Requests must be signed.").into());
        }
        check_signed(context.uri(), context.headers()).map_err(S3Error::from)
    }
}

/// Errors: `AccessDenied` with the first header that is not signed, or for another owner's request.
pub(crate) fn check_signed(uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    let owner = headers.get("x-amz-expected-bucket-owner");
    if owner.is_some_and(|owner| owner.as_bytes() != OWNER.as_bytes()) {
        return Err(denied("Access Denied. The bucket has another owner."));
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
pub(crate) mod tests {
    use super::*;

    pub(crate) fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| {
                (
                    name.parse().expect("a name"),
                    value.parse().expect("a value"),
                )
            })
            .collect()
    }

    #[test]
    fn a_secret_key_is_in_no_debug_output() {
        let credentials = Credentials {
            access_key: "open".into(),
            secret_key: "hidden".into(),
        };
        assert!(!format!("{credentials:?}").contains("hidden"));
    }

    #[test]
    fn an_unsigned_header_that_matters_is_refused() {
        const SIGNED: &str =
            "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-date, Signature=0";
        let uri = Uri::from_static("/b/k");
        let request = headers(&[
            ("authorization", SIGNED),
            ("host", "h"),
            ("x-amz-date", "d"),
        ]);
        assert!(check_signed(&uri, &request).is_ok());
        let mut more = request;
        more.insert("x-amz-acl", http::HeaderValue::from_static("private"));
        let refused = check_signed(&uri, &more).expect_err("not signed");
        assert!(refused.to_string().contains("x-amz-acl"));
    }

    #[test]
    fn a_presigned_request_names_its_headers_in_the_query() {
        let uri =
            Uri::from_static("/b/k?X-Amz-SignedHeaders=host%3Bx-amz-meta-a&X-Amz-Signature=0");
        let request = headers(&[("host", "h"), ("x-amz-meta-a", "1")]);
        assert!(check_signed(&uri, &request).is_ok());
        let request = headers(&[("host", "h"), ("x-amz-meta-b", "1")]);
        assert!(check_signed(&uri, &request).is_err());
    }

    /// The holder of a presigned URL must not choose the list of signed headers.
    #[test]
    fn a_presigned_url_covers_no_header_that_its_holder_adds() {
        let added = [("host", "h"), ("x-amz-copy-source", "/other/key")];
        let signed =
            "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-copy-source, Signature=0";
        let with_header = headers(&[added[0], added[1], ("authorization", signed)]);
        let plain = Uri::from_static("/b/k?X-Amz-SignedHeaders=host&X-Amz-Signature=0");
        assert!(check_signed(&plain, &with_header).is_err());
        for disguised in [
            "/b/k?X-Amz-%53ignedHeaders=host&X-Amz-Signature=0",
            "/b/k?X-Amz-%53ignedHeaders=host&X-Amz-%53ignature=0",
            "/b/k?X-Amz-Signature=0",
        ] {
            let uri = Uri::from_static(disguised);
            assert!(check_signed(&uri, &headers(&added)).is_err(), "{disguised}");
        }
    }

    #[test]
    fn version_2_is_told_by_its_header() {
        let of = |value| is_version_2(&headers(&[("authorization", value)]));
        assert!(of("AWS a:b"));
        assert!(!of("AWS4-HMAC-SHA256 x"));
        assert!(!is_version_2(&HeaderMap::new()));
    }

    #[test]
    fn a_name_under_localhost_is_a_bucket() {
        let parse = |host: &'static str| {
            let parsed = Hosts.parse_host_header(host).expect("a host");
            parsed.bucket().map(str::to_owned)
        };
        assert_eq!(parse("photos.localhost:9000").as_deref(), Some("photos"));
        assert_eq!(parse("localhost:9000"), None);
        assert_eq!(parse("storage.example.org"), None);
    }
}
