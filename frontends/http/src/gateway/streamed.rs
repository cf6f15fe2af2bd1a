//! The result of a function that streams its response, as Lambda's function URLs read it.
//!
//! `awslambda.HttpResponseStream` writes status, headers and cookies as JSON, then eight zero
//! bytes, then the body. JSON has no zero bytes, so no other result looks like that.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use bytes::Bytes;
use functions::{Members, Text};
use serde_json::value::RawValue;

use super::result::{self, Unfit};

const END_OF_HEAD: [u8; 8] = [0; 8];
const STATUS: &str = "statusCode";
/// The content type of a body without one.
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// The response for `result`, streamed or not. Errors: why it is none.
pub(super) fn decode(result: Bytes) -> Result<Response, Unfit> {
    let Some(length) = head_length(&result) else {
        return result::decode(result);
    };
    let Ok(mut head) = serde_json::from_slice::<Members<'_>>(&result[..length]) else {
        return result::decode(result);
    };
    let ok: &RawValue = serde_json::from_str("200").expect("a number is JSON");
    head.entry(Text(STATUS.to_owned())).or_insert(ok);
    let has_type = has_content_type(&head);
    let mut response = result::said_by(&head)?;
    let has_body = !matches!(
        response.status(),
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
    );
    if has_body {
        *response.body_mut() = Body::from(result.slice(length + END_OF_HEAD.len()..));
        if !has_type {
            response.headers_mut().insert(header::CONTENT_TYPE, BYTES);
        }
    }
    Ok(response)
}

/// The length of the JSON before the first zero bytes; none: there are none.
fn head_length(result: &[u8]) -> Option<usize> {
    // `contains` is fast, which matters for long results.
    if !result.contains(&0) {
        return None;
    }
    result
        .windows(END_OF_HEAD.len())
        .position(|window| window == END_OF_HEAD)
}

fn has_content_type(head: &Members<'_>) -> bool {
    let fields = head
        .get("headers")
        .and_then(|fields| serde_json::from_str::<Members<'_>>(fields.get()).ok());
    let is_type = |Text(name): &Text| {
        HeaderName::try_from(name).is_ok_and(|name| name == header::CONTENT_TYPE)
    };
    fields.is_some_and(|fields| fields.keys().any(is_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(result: &'static [u8]) -> (u16, Vec<String>, Bytes) {
        let response = decode(Bytes::from_static(result)).expect("an answer");
        let (parts, body) = response.into_parts();
        let headers = parts
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().expect("text")))
            .collect();
        let body = axum::body::to_bytes(body, 1 << 20)
            .await
            .expect("a body in memory");
        (parts.status.as_u16(), headers, body)
    }

    /// A6.
    #[tokio::test]
    async fn the_head_of_a_streamed_response_sets_status_headers_and_cookies() {
        let result =
            b"{\"statusCode\":201,\"headers\":{\"Content-Type\":\"text/html\",\"X-Own\":\"yes\"},\
            \"cookies\":[\"a=1\"]}\0\0\0\0\0\0\0\0<p>\0</p>";
        let (status, headers, body) = read(result).await;
        assert_eq!((status, &*body), (201, &b"<p>\0</p>"[..]));
        assert_eq!(
            headers,
            ["content-type: text/html", "x-own: yes", "set-cookie: a=1"]
        );
        let (status, headers, body) = read(b"{}\0\0\0\0\0\0\0\0body").await;
        assert_eq!((status, &*body), (200, &b"body"[..]));
        assert_eq!(headers, ["content-type: application/octet-stream"]);
        let (status, _, body) = read(b"{\"statusCode\":204}\0\0\0\0\0\0\0\0body").await;
        assert_eq!((status, &*body), (204, &b""[..]));
    }

    #[tokio::test]
    async fn any_other_result_is_read_as_one_that_is_not_streamed() {
        let (status, _, body) = read(b"{\"statusCode\":201,\"body\":\"whole\"}").await;
        assert_eq!((status, &*body), (201, &b"whole"[..]));
    }
}
