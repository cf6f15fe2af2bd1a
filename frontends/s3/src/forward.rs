//! Requests for a key that another server of the store owns. The whole request goes to that server,
//! and its response comes back, both as streams.
//!
//! The path, the `Host` and all signed headers stay as they are, so the owner verifies the client's
//! signature. A header with a code that only servers with the same keys can make says that a request
//! was forwarded. It is served where it arrives, so requests never go in circles.
//!
//! Any server may serve any request. If the owner cannot be connected to, this one serves the request
//! itself.

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_client::{Failure, StreamingClient, Trust};
use percent_encoding::percent_decode_str;
use s3s::Body;
use sha2::Sha256;

use crate::{access::Credentials, errors::Refusal, ingress::RequestBody};

/// The header of a forwarded request.
const FORWARDED: HeaderName = HeaderName::from_static("landfast-forwarded");
/// What the code signs.
const PURPOSE: &[u8] = b"landfast forwarded request";
/// The time for making a connection to the owner.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// How long an unused connection is kept: less than the owner keeps it.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// Headers that concern one connection alone.
const OF_CONNECTIONS: [HeaderName; 2] = [header::CONNECTION, header::TRANSFER_ENCODING];

/// Sends requests to the servers that own their keys.
#[derive(Debug)]
pub(crate) struct Forwarding {
    service: memory::Service,
    client: StreamingClient,
    scheme: &'static str,
    code: HeaderValue,
}

/// The outcome for a request.
pub(crate) enum Forwarded {
    /// The owner's response.
    Answered(Response<Body>),
    /// The owner may have served the request, and gave no response.
    Lost(Refusal),
    /// This server serves it.
    Here(Request<RequestBody>),
}

impl Forwarding {
    /// With `trust`, the other servers have TLS, as this one.
    pub(crate) fn new(service: memory::Service, keys: &Credentials, trust: Option<Trust>) -> Self {
        let scheme = if trust.is_some() { "https" } else { "http" };
        let client = StreamingClient::new(http_client::Config {
            connect_timeout: CONNECT_MAX,
            idle_timeout: IDLE_MAX,
            trust: trust.unwrap_or_default(),
            ..http_client::Config::default()
        });
        let mut mac = Hmac::<Sha256>::new_from_slice(keys.secret_key.as_bytes())
            .expect("HMAC takes a key of any length");
        mac.update(PURPOSE);
        let code = BASE64_STANDARD.encode(mac.finalize().into_bytes());
        let mut code = HeaderValue::try_from(code).expect("base64 is a value");
        code.set_sensitive(true);
        Self {
            service,
            client,
            scheme,
            code,
        }
    }

    /// Sends the request to the owner of its key, unless that is this server.
    pub(crate) async fn forward(&self, mut request: Request<RequestBody>) -> Forwarded {
        let was_forwarded = request.headers_mut().remove(FORWARDED) == Some(self.code.clone());
        let owner = object_of(request.uri(), request.headers())
            .filter(|_| !was_forwarded)
            .and_then(|(bucket, key)| self.service.owner(&bucket, &key));
        let Some(owner) = owner else {
            return Forwarded::Here(request);
        };
        let Some(uri) = at(self.scheme, &owner, request.uri()) else {
            return Forwarded::Here(request);
        };
        let own = std::mem::replace(request.uri_mut(), uri);
        let _ = OF_CONNECTIONS.map(|name| request.headers_mut().remove(name));
        request.headers_mut().insert(FORWARDED, self.code.clone());
        let sent = tokio::select! {
            biased;
            sent = self.client.send(request) => sent,
            () = self.service.lapsed(&owner) => return Forwarded::Lost(lost()),
        };
        match sent {
            Ok(response) => {
                let mut response = response.map(Body::http_body_unsync);
                let _ = OF_CONNECTIONS.map(|name| response.headers_mut().remove(name));
                Forwarded::Answered(response)
            }
            Err(Failure::NotSent(request, error)) => {
                tracing::debug!(%error, owner, "the owner of a key cannot be reached");
                let mut request = *request;
                *request.uri_mut() = own;
                request.headers_mut().remove(FORWARDED);
                Forwarded::Here(request)
            }
            Err(Failure::Lost(error)) => {
                tracing::debug!(%error, owner, "the owner of a key gave no response");
                Forwarded::Lost(lost())
            }
        }
    }
}

fn lost() -> Refusal {
    Refusal::new(
        "ServiceUnavailable",
        StatusCode::SERVICE_UNAVAILABLE,
        "The server that owns the key did not answer. The request may have taken effect. Try again.",
    )
}

/// The same path at another server.
fn at(scheme: &str, owner: &str, uri: &Uri) -> Option<Uri> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let built = Uri::builder().scheme(scheme).authority(owner);
    built.path_and_query(path).build().ok()
}

/// The bucket and the key of a request for an object.
fn object_of(uri: &Uri, headers: &HeaderMap) -> Option<(String, String)> {
    let path = percent_decode_str(uri.path()).decode_utf8_lossy();
    let path = path.strip_prefix('/')?;
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let host = host.unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let (bucket, key) = match name.strip_suffix(".localhost") {
        Some(bucket) => (bucket, path),
        None => path.split_once('/')?,
    };
    (!key.is_empty()).then(|| (bucket.to_owned(), key.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_of_a_request_is_named_by_its_path_or_its_host() {
        let object = |uri: &'static str, host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(host));
            object_of(&Uri::from_static(uri), &headers)
        };
        let one = |bucket: &str, key: &str| Some((bucket.to_owned(), key.to_owned()));
        assert_eq!(object("/b/a%2Fc?partNumber=1", "h:1"), one("b", "a/c"));
        assert_eq!(object("/b//c", "h"), one("b", "/c"));
        assert_eq!(object("/a/c", "b.localhost:7601"), one("b", "a/c"));
        for uri in ["/", "/b", "/b/", "/b?list-type=2"] {
            assert_eq!(object(uri, "h"), None, "{uri}");
        }
    }

    #[test]
    fn a_forwarded_request_keeps_its_path() {
        let uri = Uri::from_static("/b//a%2Fc/../d?x=%20&y");
        let there = at("https", "10.0.0.1:7601", &uri).expect("a URI");
        assert_eq!(there, "https://10.0.0.1:7601/b//a%2Fc/../d?x=%20&y");
    }
}
