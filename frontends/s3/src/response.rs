//! The last touch on each response: request ids, errors as S3 writes them, and empty bodies.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt;
use s3s::{Body, S3Error};

use crate::{buckets::REGION, content::wrong_payload_hash, errors::Refusal};

/// The longest error that is rewritten.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// Odd, so that ids repeat only after all of them, and large, so that two in a row look different.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Ids that differ between requests, and between runs.
#[derive(Debug)]
pub(crate) struct Ids {
    next: AtomicU64,
}

impl Ids {
    pub(crate) fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let nanoseconds = now.map_or(0, |now| now.as_nanos() as u64);
        Self {
            next: nanoseconds.wrapping_mul(STEP).into(),
        }
    }

    pub(crate) fn next(&self) -> String {
        let id = self.next.fetch_add(STEP, Ordering::Relaxed);
        format!("{id:016X}")
    }
}

/// What of a request its response depends on.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) id: String,
    pub(crate) method: Method,
    pub(crate) path: String,
    /// Whether the client sent the SHA-256 of its payload.
    pub(crate) is_hashed: bool,
    /// Whether the body is longer than XML may be.
    pub(crate) is_long: bool,
}

/// Completes the response of s3s. `trouble` is why the body could not be read.
pub(crate) async fn finish(
    response: Response<Body>,
    about: &About,
    trouble: Option<Refusal>,
) -> Response<Body> {
    let mut response = response;
    if is_error(response.status()) {
        response = rewritten(response, about, trouble).await;
    }
    let is_partial = response.headers().contains_key(header::CONTENT_RANGE);
    if about.method == Method::HEAD && response.status() == StatusCode::OK && is_partial {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    if let Ok(id) = HeaderValue::from_str(&about.id) {
        response.headers_mut().insert("x-amz-request-id", id);
    }
    response
}

/// A response to a request that s3s never saw.
pub(crate) async fn refused(refusal: Refusal, about: &About) -> Response<Body> {
    finish(of(refusal), about, None).await
}

pub(crate) fn of(refusal: Refusal) -> Response<Body> {
    let response = S3Error::from(refusal).to_http_response();
    response.unwrap_or_else(|_| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}

fn is_error(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error() || status == StatusCode::NOT_MODIFIED
}

async fn rewritten(
    response: Response<Body>,
    about: &About,
    trouble: Option<Refusal>,
) -> Response<Body> {
    let response = trouble.map_or(response, of);
    let (mut parts, mut body) = response.into_parts();
    let bytes = match body.take_bytes() {
        Some(bytes) => bytes,
        None => match http_body_util::Limited::new(body, ERROR_BYTES_MAX)
            .collect()
            .await
        {
            Ok(collected) => collected.to_bytes(),
            Err(_) => bytes::Bytes::new(),
        },
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if let Some(refusal) = corrected(&text, about) {
        return Box::pin(refused(refusal, about)).await;
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    if about.method == Method::HEAD || parts.status == StatusCode::NOT_MODIFIED {
        parts.headers.remove(header::CONTENT_TYPE);
        return Response::from_parts(parts, Body::empty());
    }
    Response::from_parts(parts, Body::from(completed(&text, about)))
}

/// What S3 answers where s3s has another code.
fn corrected(text: &str, about: &About) -> Option<Refusal> {
    // s3s has no message for a body that it could not read, and ours all have one.
    let is_unread = text.contains("<Code>InternalError</Code>") && !text.contains("<Message>");
    if is_unread && about.is_long {
        let message = "Your request was too big.";
        return Some(Refusal::bad("MaxMessageLengthExceeded", message));
    }
    if is_unread && about.is_hashed {
        return Some(wrong_payload_hash());
    }
    if text.contains("<Code>InvalidPolicyDocument</Code>") && text.contains("Policy condition") {
        let message = "Invalid according to Policy: a policy condition failed.";
        return Some(Refusal::new("AccessDenied", StatusCode::FORBIDDEN, message));
    }
    // s3cmd learns the region from this error, and signs again.
    text.contains("invalid credential region").then(|| {
        let message = format!(
            "The authorization header is malformed; the region is wrong; expecting '{REGION}'"
        );
        Refusal::bad("AuthorizationHeaderMalformed", message)
    })
}

/// The error with a message, the path of its request, and its id.
fn completed(text: &str, about: &About) -> String {
    let Some(start) = text.strip_suffix("</Error>") else {
        return text.to_owned();
    };
    let mut text = start.to_owned();
    if !text.contains("<Message>") {
        let code = text
            .split_once("<Code>")
            .and_then(|(_, rest)| rest.split_once("</Code>"));
        let message = message(code.map_or("", |(code, _)| code));
        text.push_str(&element("Message", message));
    }
    if text.contains("<Code>AuthorizationHeaderMalformed</Code>") {
        text.push_str(&element("Region", REGION));
    }
    text.push_str(&element("Resource", &about.path));
    text.push_str(&element("RequestId", &about.id));
    text + "</Error>"
}

fn element(name: &str, text: &str) -> String {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    format!("<{name}>{text}</{name}>")
}

/// For the codes that s3s sends without a message.
fn message(code: &str) -> &'static str {
    match code {
        "SignatureDoesNotMatch" => {
            "The request signature we calculated does not match the signature you provided. Check your key and signing method."
        }
        "InvalidBucketName" => "The specified bucket is not valid.",
        "KeyTooLongError" => "Your key is too long.",
        "InvalidURI" => "Couldn't parse the specified URI.",
        "MalformedXML" => {
            "The XML you provided was not well-formed or did not validate against our published schema."
        }
        "MissingContentLength" => "You must provide the Content-Length HTTP header.",
        "MissingRequestBodyError" => "Request body is empty.",
        "MaxMessageLengthExceeded" => "Your request was too big.",
        "IncompleteBody" => {
            "You did not provide the number of bytes specified by the Content-Length HTTP header."
        }
        "MethodNotAllowed" => "The specified method is not allowed against this resource.",
        "InternalError" => "We encountered an internal error. Please try again.",
        _ => "The request was refused.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(method: Method) -> About {
        About {
            id: "0A".into(),
            method,
            path: "/b/<k>".into(),
            is_hashed: true,
            is_long: false,
        }
    }

    async fn text(response: Response<Body>) -> String {
        let body = response.into_body().collect().await.expect("a body");
        String::from_utf8(body.to_bytes().to_vec()).expect("text")
    }

    #[tokio::test]
    async fn an_error_has_its_path_and_the_id_of_its_response() {
        let error = S3Error::new(s3s::S3ErrorCode::KeyTooLongError);
        let response = error.to_http_response().expect("a response");
        let response = finish(response, &about(Method::PUT), None).await;
        assert_eq!(response.headers()["x-amz-request-id"], "0A");
        let text = text(response).await;
        for part in [
            "<Message>Your key is too long.</Message>",
            "<Resource>/b/&lt;k&gt;</Resource>",
            "<RequestId>0A</RequestId>",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[tokio::test]
    async fn a_head_and_a_304_have_no_body() {
        for (method, code) in [(Method::HEAD, "NoSuchKey"), (Method::GET, "NotModified")] {
            let code = s3s::S3ErrorCode::from_bytes(code.as_bytes()).expect("a code");
            let response = S3Error::new(code).to_http_response().expect("a response");
            let response = finish(response, &about(method), None).await;
            assert_eq!(text(response).await, "");
        }
    }

    #[tokio::test]
    async fn the_true_reason_of_a_broken_body_is_told() {
        let internal = || S3Error::new(s3s::S3ErrorCode::InternalError);
        let response = internal().to_http_response().expect("a response");
        let cut = finish(response, &about(Method::POST), Some(Refusal::incomplete())).await;
        assert_eq!(cut.status(), StatusCode::BAD_REQUEST);
        assert!(text(cut).await.contains("<Code>IncompleteBody</Code>"));
        let response = internal().to_http_response().expect("a response");
        let hash = finish(response, &about(Method::POST), None).await;
        assert!(
            text(hash)
                .await
                .contains("<Code>XAmzContentSHA256Mismatch</Code>")
        );
    }

    #[tokio::test]
    async fn a_region_that_no_region_is_named_like_is_corrected_by_the_client() {
        let message = "invalid credential region: invalid region: \"US\"";
        let error = S3Error::with_message(s3s::S3ErrorCode::InvalidRequest, message);
        let response = error.to_http_response().expect("a response");
        let text = text(finish(response, &about(Method::PUT), None).await).await;
        assert!(
            text.contains("<Code>AuthorizationHeaderMalformed</Code>"),
            "{text}"
        );
        assert!(text.contains("<Region>us-east-1</Region>"), "{text}");
    }

    #[test]
    fn ids_differ() {
        let ids = Ids::new();
        assert_ne!(ids.next(), ids.next());
        assert_eq!(ids.next().len(), 16);
    }
}
