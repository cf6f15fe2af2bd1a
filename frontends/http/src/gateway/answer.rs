//! What a function answers, as API Gateway's HTTP APIs read it: an object with a `statusCode` says status, headers, cookies and
//! body; any other JSON is the body of a 200.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::{Map, Value};

use super::is_of_the_connection;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// What a body is that nobody says anything of: API Gateway's.
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Why what a function answered cannot be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unfit {
    /// What is said of it to whoever called, for who wrote the function; nothing of what that answered.
    pub(super) why: &'static str,
    /// What of it, for the server's log.
    pub(super) detail: String,
}

impl From<&'static str> for Unfit {
    fn from(why: &'static str) -> Self {
        Self { why, detail: String::new() }
    }
}

/// The answer that `result` stands for. Errors: what of it cannot be one.
pub(super) fn decode(result: Bytes) -> Result<Response, Unfit> {
    let value = serde_json::from_slice(&result)
        .map_err(|error| Unfit { why: "what it answered is no JSON", detail: error.to_string() })?;
    match value {
        Value::Object(mut said) if said.contains_key("statusCode") => said_by(&mut said),
        _ => {
            let mut response = Response::new(Body::from(result));
            response.headers_mut().insert(header::CONTENT_TYPE, JSON);
            Ok(response)
        }
    }
}

fn said_by(said: &mut Map<String, Value>) -> Result<Response, Unfit> {
    let is_base64 = match said.get("isBase64Encoded") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(is_base64)) => *is_base64,
        Some(_) => return Err("the isBase64Encoded that it answered is no boolean".into()),
    };
    let body = match said.remove("body") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) if is_base64 => BASE64_STANDARD.decode(text).map_err(|error| Unfit {
            why: "the body that it answered is no base64",
            detail: error.to_string(),
        })?,
        Some(Value::String(text)) => text.into_bytes(),
        Some(_) => return Err("the body that it answered is no string".into()),
    };
    let status =
        said.get("statusCode").and_then(status).ok_or("the statusCode that it answered is not 200 to 599")?;
    let has_body = !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let mut response = Response::new(if has_body { Body::from(body) } else { Body::empty() });
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in header_fields(said)?.into_iter().flatten() {
        let Some(text) = text(value) else { continue };
        let sendable = HeaderName::try_from(name).ok().zip(HeaderValue::from_str(&text).ok());
        let (name, value) = sendable.ok_or_else(|| Unfit {
            why: "a header that it answered cannot be sent: its name has other letters than it may, or its value a line break",
            detail: name.clone(),
        })?;
        // How long it is and how it is sent we know better.
        if name != header::CONTENT_LENGTH && !is_of_the_connection(&name) {
            headers.insert(name, value);
        }
    }
    if has_body {
        headers.entry(header::CONTENT_TYPE).or_insert(TEXT);
    }
    for cookie in said.get("cookies").and_then(Value::as_array).into_iter().flatten() {
        let value = cookie.as_str().and_then(|cookie| HeaderValue::from_str(cookie).ok());
        headers.append(header::SET_COOKIE, value.ok_or("a cookie that it answered cannot be sent")?);
    }
    Ok(response)
}

/// 200 to 599, as a number or in digits.
fn status(value: &Value) -> Option<StatusCode> {
    let code = match value {
        Value::String(digits) => digits.parse().ok(),
        _ => value.as_u64().and_then(|code| u16::try_from(code).ok()),
    };
    code.filter(|code| (200..600).contains(code)).and_then(|code| StatusCode::from_u16(code).ok())
}

fn header_fields(said: &Map<String, Value>) -> Result<Option<&Map<String, Value>>, Unfit> {
    match said.get("headers") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(fields)) => Ok(Some(fields)),
        Some(_) => Err("the headers that it answered are no object".into()),
    }
}

/// A header's value; none: it is left out.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(result: &'static str) -> Result<(u16, Vec<String>, Bytes), Unfit> {
        let response = decode(Bytes::from_static(result.as_bytes()))?;
        let (parts, body) = response.into_parts();
        let headers =
            parts.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().expect("text")));
        let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body in memory");
        Ok((parts.status.as_u16(), headers.collect(), body))
    }

    #[tokio::test]
    async fn an_object_with_a_status_says_all_of_the_answer() {
        let (status, headers, body) = read(
            r#"{"statusCode":201,"headers":{"Location":"/orders/7","X-Number":7,"X-None":null,"Content-Length":"1",
                "Connection":"close","Transfer-Encoding":"chunked"},"cookies":["a=b; Path=/","c=d"],"body":"made"}"#,
        )
        .await
        .expect("an answer");
        assert_eq!((status, &*body), (201, &b"made"[..]));
        assert_eq!(
            headers,
            [
                "location: /orders/7",
                "x-number: 7",
                "content-type: text/plain; charset=utf-8",
                "set-cookie: a=b; Path=/",
                "set-cookie: c=d",
            ]
        );
        let (status, _, body) =
            read(r#"{"statusCode":"404","body":"/w==","isBase64Encoded":true}"#).await.expect("an answer");
        assert_eq!((status, &*body), (404, &b"\xff"[..]));
        let (status, _, body) = read(r#"{"statusCode":204}"#).await.expect("an answer");
        assert_eq!((status, &*body), (204, &b""[..]));
    }

    #[tokio::test]
    async fn any_other_json_is_the_body_as_it_is() {
        for result in ["{\"a\": 1}", "[1, 2]", "\"text\"", "null", "7", "{\"body\":\"x\"}"] {
            let answered = read(result).await.expect("an answer");
            let json = vec!["content-type: application/json".to_owned()];
            assert_eq!(answered, (200, json, Bytes::from_static(result.as_bytes())));
        }
    }

    #[tokio::test]
    async fn what_cannot_be_an_answer_is_named() {
        for (result, said) in [
            ("no JSON", "no JSON"),
            ("", "no JSON"),
            (r#"{"statusCode":199}"#, "statusCode"),
            (r#"{"statusCode":600}"#, "statusCode"),
            (r#"{"statusCode":null}"#, "statusCode"),
            (r#"{"statusCode":65736}"#, "statusCode"),
            (r#"{"statusCode":200,"body":{"a":1}}"#, "no string"),
            (r#"{"statusCode":200,"body":"?","isBase64Encoded":true}"#, "no base64"),
            (r#"{"statusCode":200,"isBase64Encoded":"yes"}"#, "no boolean"),
            (r#"{"statusCode":200,"headers":["a"]}"#, "no object"),
            (r#"{"statusCode":200,"headers":{"a b":"c"}}"#, "a header"),
            (r#"{"statusCode":200,"headers":{"a":"c\r\nd: e"}}"#, "a header"),
            (r#"{"statusCode":200,"cookies":["a\nb"]}"#, "a cookie"),
            (r#"{"statusCode":200,"cookies":[7]}"#, "a cookie"),
        ] {
            let refused = read(result).await.expect_err(result);
            assert!(refused.why.contains(said), "{result}: {refused:?}");
        }
        let refused = read(r#"{"statusCode":200,"headers":{"a b":"c"}}"#).await.expect_err("no name");
        assert_eq!(refused.detail, "a b", "which one, for the log");
    }
}
