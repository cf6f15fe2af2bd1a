//! Headers that S3 ignores when it cannot read them, and that s3s refuses.
//!
//! RFC 9110 has a server ignore a malformed `Range` or condition on a time. They may be signed, so
//! that they can be dropped only after s3s has verified the signature. A route of s3s catches such a
//! request there. A second service, which asks for no signature, serves the rest of it.

use http::{
    Extensions, HeaderMap, HeaderName, Method, Request, Uri,
    header::{AUTHORIZATION, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, RANGE},
};
use s3s::{
    Body, S3Error, S3Request, S3Response, S3Result,
    dto::{Range, Timestamp, TimestampFormat},
    route::S3Route,
    service::S3Service,
};

use crate::{
    access::{Keys, check_signed},
    errors::{Refusal, from_service},
};

/// Catches reads with malformed headers.
pub(crate) struct Repair {
    /// Serves without a look at signatures: for requests that are verified already.
    pub(crate) verified: S3Service,
    pub(crate) keys: Keys,
}

#[async_trait::async_trait]
impl S3Route for Repair {
    fn is_match(&self, method: &Method, _: &Uri, headers: &HeaderMap, _: &mut Extensions) -> bool {
        let is_read = *method == Method::GET || *method == Method::HEAD;
        is_read && malformed(headers).next().is_some()
    }

    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        let Some(credentials) = &request.credentials else {
            let message = "Access Denied. Requests must be signed.";
            return Err(Refusal::new("AccessDenied", http::StatusCode::FORBIDDEN, message).into());
        };
        // The service below knows neither the caller nor its buckets.
        if credentials.access_key != self.keys.own.access_key {
            return Err(Refusal::bad("InvalidArgument", "A header is malformed.").into());
        }
        check_signed(&request.uri, &request.headers).map_err(S3Error::from)
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let mut repaired = Request::new(Body::empty());
        *repaired.method_mut() = request.method;
        *repaired.uri_mut() = without_signature(&request.uri)?;
        let broken: Vec<_> = malformed(&request.headers).collect();
        *repaired.headers_mut() = request.headers;
        for name in broken {
            repaired.headers_mut().remove(name);
        }
        repaired.headers_mut().remove(AUTHORIZATION);
        let response = self.verified.call(repaired).await;
        let response = response.map_err(|error| {
            let why = format!("{error:?}");
            from_service(memory::Error::Unavailable(why.into()))
        })?;
        let (parts, body) = response.into_parts();
        let mut response = S3Response::with_status(body, parts.status);
        response.headers = parts.headers;
        Ok(response)
    }
}

/// The headers that cannot be read.
fn malformed(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> + '_ {
    let is_range = |text: &str| Range::parse(text).is_ok();
    let is_time = |text: &str| Timestamp::parse(TimestampFormat::HttpDate, text).is_ok();
    let is_broken = move |name: &HeaderName| {
        headers.get(name).is_some_and(|value| {
            let text = value.to_str().unwrap_or("");
            !text.is_empty()
                && if *name == RANGE {
                    !is_range(text)
                } else {
                    !is_time(text)
                }
        })
    };
    [RANGE, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE]
        .into_iter()
        .filter(is_broken)
}

/// The query without the fields of a presigned request.
pub(crate) fn without_signature(uri: &Uri) -> Result<Uri, S3Error> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let fields = ["X-Amz-", "AWSAccessKeyId=", "Signature=", "Expires="];
    let is_kept = |pair: &&str| !fields.iter().any(|field| pair.starts_with(field));
    let kept: Vec<_> = pairs.filter(is_kept).collect();
    let path_and_query = format!("{}?{}", uri.path(), kept.join("&"));
    path_and_query
        .parse()
        .map_err(|_| Refusal::bad("InvalidURI", "Couldn't parse the specified URI.").into())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn broken(name: HeaderName, value: &'static str) -> bool {
        let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
        malformed(&headers).next().is_some()
    }

    #[test]
    fn only_headers_that_cannot_be_read_are_dropped() {
        for value in ["bytes=5-2", "bytes=a-b", "items=0-1", "bytes=0-1,3-4"] {
            assert!(broken(RANGE, value), "{value}");
        }
        for value in ["bytes=0-1", "bytes=9-", "bytes=-4"] {
            assert!(!broken(RANGE, value), "{value}");
        }
        assert!(broken(IF_MODIFIED_SINCE, "yesterday"));
        assert!(!broken(IF_MODIFIED_SINCE, "Wed, 21 Oct 2015 07:28:00 GMT"));
    }

    #[test]
    fn the_signature_leaves_the_query_and_the_rest_stays() {
        let uri = Uri::from_static("/b/a%20b?X-Amz-Date=1&partNumber=2&X-Amz-Signature=0");
        let kept = without_signature(&uri).expect("a uri");
        assert_eq!(kept.to_string(), "/b/a%20b?partNumber=2");
        let uri =
            Uri::from_static("/b/a?AWSAccessKeyId=a&Signature=s&Expires=1&response-expires=x");
        let kept = without_signature(&uri).expect("a uri");
        assert_eq!(kept.to_string(), "/b/a?response-expires=x");
    }
}
