//! A function's result, as API Gateway's HTTP APIs read it with payload format 2.0.
//!
//! An object with a `statusCode` sets status, headers, cookies and body. Everything else is the
//! body of a 200: a JSON string by its content, any other JSON and any other bytes as they are. API
//! Gateway does the same, and does not ask for JSON, although its documentation does.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use functions::{Members, Text};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::is_of_the_connection;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The default content type of a body: API Gateway's.
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Why a function's result cannot be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unfit {
    /// The reason for the caller, in words for the function's author. It contains nothing of the
    /// result.
    pub(super) why: &'static str,
    /// The part at fault, for the server's log.
    pub(super) detail: String,
}

impl From<&'static str> for Unfit {
    fn from(why: &'static str) -> Self {
        Self {
            why,
            detail: String::new(),
        }
    }
}

/// The response for `result`. Errors: why it is none.
pub(super) fn decode(result: Bytes) -> Result<Response, Unfit> {
    let json: Option<&RawValue> = serde_json::from_slice(&result).ok();
    let members = json.and_then(|json| serde_json::from_str::<Members<'_>>(json.get()).ok());
    if let Some(members) = members.filter(|members| members.contains_key("statusCode")) {
        return said_by(&members);
    }
    let text = json.and_then(|json| serde_json::from_str::<Text>(json.get()).ok());
    let body = match text {
        Some(Text(text)) => Body::from(text),
        None => Body::from(result),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    Ok(response)
}

/// The response that an object with a `statusCode` describes. Errors: why it is none.
pub(super) fn said_by(said: &Members<'_>) -> Result<Response, Unfit> {
    const NO_STATUS: &str = "the statusCode that it answered is not 200 to 599";
    const NO_BOOLEAN: &str = "the isBase64Encoded that it answered is no boolean";
    const NO_TEXT: &str = "the body that it answered is no string";
    const NO_LIST: &str = "the cookies that it answered are no list";
    let status: Option<Value> = member(said, "statusCode", NO_STATUS)?;
    let status = status.as_ref().and_then(status_code).ok_or(NO_STATUS)?;
    let is_base64: Option<bool> = member(said, "isBase64Encoded", NO_BOOLEAN)?;
    let body: Option<String> = member(said, "body", NO_TEXT)?;
    let mut body = body.unwrap_or_default().into_bytes();
    if is_base64 == Some(true) {
        body = BASE64_STANDARD.decode(body).map_err(|error| Unfit {
            why: "the body that it answered is no base64",
            detail: error.to_string(),
        })?;
    }
    let has_body = !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let body = if has_body {
        Body::from(body)
    } else {
        Body::empty()
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    set_fields(said, headers)?;
    if has_body {
        headers.entry(header::CONTENT_TYPE).or_insert(TEXT);
    }
    let cookies: Option<Vec<&RawValue>> = member(said, "cookies", NO_LIST)?;
    for cookie in cookies.unwrap_or_default() {
        let cookie = serde_json::from_str::<String>(cookie.get()).ok();
        let value = cookie.and_then(|cookie| HeaderValue::from_str(&cookie).ok());
        let value = value.ok_or("a cookie that it answered cannot be sent")?;
        headers.append(header::SET_COOKIE, value);
    }
    Ok(response)
}

/// The member of this name. `None`: it is absent or null. Errors: `otherwise`, if it has another
/// type.
fn member<'a, T: Deserialize<'a>>(
    said: &Members<'a>,
    name: &str,
    otherwise: &'static str,
) -> Result<Option<T>, Unfit> {
    let Some(member) = said.get(name) else {
        return Ok(None);
    };
    serde_json::from_str(member.get()).map_err(|error| Unfit {
        why: otherwise,
        detail: error.to_string(),
    })
}

fn set_fields(said: &Members<'_>, headers: &mut HeaderMap) -> Result<(), Unfit> {
    let no_object = "the headers that it answered are no object";
    let fields: Option<Members<'_>> = member(said, "headers", no_object)?;
    for (Text(name), value) in fields.unwrap_or_default() {
        let Some(text) = text(value).map_err(|why| Unfit {
            why,
            detail: name.clone(),
        })?
        else {
            continue;
        };
        let sendable = HeaderName::try_from(&name)
            .ok()
            .zip(HeaderValue::from_str(&text).ok());
        let (name, value) = sendable.ok_or(Unfit {
            why: "a header that it answered cannot be sent: its name has other letters than it may, or its value a line break",
            detail: name,
        })?;
        // The server sets the length and the transfer encoding.
        if name != header::CONTENT_LENGTH && !is_of_the_connection(&name) {
            headers.insert(name, value);
        }
    }
    Ok(())
}

/// 200 to 599, as a whole number (`200`, `200.0`) or in digits.
fn status_code(value: &Value) -> Option<StatusCode> {
    let code = match value {
        Value::String(digits) => digits.parse::<u16>().ok()?.into(),
        _ => value.as_f64()?,
    };
    let is_valid = (200.0..600.0).contains(&code) && code.fract() == 0.0;
    StatusCode::from_u16(code as u16).ok().filter(|_| is_valid)
}

/// The value of a header. `None`: it is left out. Errors: it is a list or an object.
fn text(value: &RawValue) -> Result<Option<String>, &'static str> {
    let json = value.get();
    match json.as_bytes().first() {
        Some(b'n') => Ok(None),
        Some(b'[' | b'{') => {
            Err("a header that it answered is a list or an object: join its values to one string")
        }
        _ => {
            let text = serde_json::from_str(json).map(|Text(text)| text);
            Ok(Some(text.unwrap_or_else(|_| json.to_owned())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(result: &'static str) -> Result<(u16, Vec<String>, Bytes), Unfit> {
        let response = decode(Bytes::from_static(result.as_bytes()))?;
        let (parts, body) = response.into_parts();
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = parts
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", text(value)));
        let body = axum::body::to_bytes(body, 1 << 20)
            .await
            .expect("a body in memory");
        Ok((parts.status.as_u16(), headers.collect(), body))
    }

    #[tokio::test]
    async fn an_object_with_a_status_determines_the_whole_response() {
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
            read(r#"{"statusCode":"404","body":"/w==","isBase64Encoded":true}"#)
                .await
                .expect("an answer");
        assert_eq!((status, &*body), (404, &b"\xff"[..]));
        let (status, _, body) = read(r#"{"statusCode":204}"#).await.expect("an answer");
        assert_eq!((status, &*body), (204, &b""[..]));
    }

    /// What a function returns, and the body of the 200. The authors of AWS's test tool for .NET
    /// tried most of these on API Gateway.
    #[tokio::test]
    async fn every_other_result_is_the_body() {
        for (result, expected) in [
            (r#""Hello""#, "Hello"),
            (r#""""#, ""),
            (r#""Special \"quoted\" text""#, r#"Special "quoted" text"#),
            (r#""{\"statusCode\":201}""#, r#"{"statusCode":201}"#),
            ("\"a\\nb \u{e4}\"", "a\nb \u{e4}"),
            ("{\"a\": 1}", "{\"a\": 1}"),
            ("{\"body\":\"x\"}", "{\"body\":\"x\"}"),
            (
                r#"{"headers":{"content-type":"text/html"},"body":"x"}"#,
                r#"{"headers":{"content-type":"text/html"},"body":"x"}"#,
            ),
            ("[1, 2]", "[1, 2]"),
            (r#"["statusCode"]"#, r#"["statusCode"]"#),
            ("null", "null"),
            ("true", "true"),
            ("42", "42"),
            ("1.50", "1.50"),
            // An executable may return anything.
            ("Hello, World!", "Hello, World!"),
            ("<p>no JSON</p>\n", "<p>no JSON</p>\n"),
            (
                r#"{"name": "John Doe", "age":"#,
                r#"{"name": "John Doe", "age":"#,
            ),
            ("", ""),
        ] {
            let answered = read(result).await.expect("an answer");
            let json = vec!["content-type: application/json".to_owned()];
            let expected = Bytes::from_static(expected.as_bytes());
            assert_eq!(answered, (200, json, expected), "{result}");
        }
    }

    #[tokio::test]
    async fn a_status_is_a_whole_number_or_its_digits() {
        for (status, expected) in [
            ("200", Some(200)),
            ("200.0", Some(200)),
            ("2.01e2", Some(201)),
            ("599", Some(599)),
            (r#""404""#, Some(404)),
            ("200.5", None),
            (r#""200.0""#, None),
            (r#""OK""#, None),
            ("0", None),
            ("199", None),
            ("600", None),
            ("65736", None),
            ("-200", None),
            ("1e999", None),
            ("null", None),
            ("true", None),
            ("[200]", None),
        ] {
            let result = format!(r#"{{"statusCode":{status},"body":"x"}}"#);
            let answered = read(result.leak()).await.map(|(status, ..)| status);
            assert_eq!(answered.as_ref().ok().copied(), expected, "{status}");
            if let Err(refused) = answered {
                assert!(refused.why.contains("statusCode"), "{status}: {refused:?}");
            }
        }
    }

    /// Format 2.0 has no `multiValueHeaders`; cookies have a list of their own.
    #[tokio::test]
    async fn headers_are_text_numbers_and_booleans() {
        let (_, headers, _) = read(
            r#"{"statusCode":200,"headers":{"A":"b, c","N":1.50,"T":true,"Z":null,"U":"\ud800"},
                "multiValueHeaders":{"M":["a","b"]},"cookies":null,"isBase64Encoded":null}"#,
        )
        .await
        .expect("an answer");
        assert_eq!(
            headers,
            [
                "a: b, c",
                "n: 1.50",
                "t: true",
                "u: \u{fffd}\u{fffd}\u{fffd}",
                "content-type: text/plain; charset=utf-8",
            ]
        );
    }

    /// Neither deep nesting nor huge numbers keep a result from being JSON.
    #[tokio::test]
    async fn json_that_few_can_read_is_passed_on() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        for odd in ["1e999", r#""\ud800""#, &nested(150), &nested(100_000)] {
            for result in [
                format!("[{odd}]"),
                format!("{{\"a\":{odd}}}"),
                format!("{{\"\\ud800\":{odd}}}"),
            ] {
                let result: &'static str = result.leak();
                let (status, _, body) = read(result).await.expect("an answer");
                assert!((status, &*body) == (200, result.as_bytes()), "{result:.50}");
            }
            for name in ["more", r"\ud800"] {
                let result = format!(r#"{{"statusCode":201,"body":"made","{name}":{odd}}}"#);
                let (status, _, body) = read(result.leak()).await.expect("an answer");
                assert_eq!((status, &*body), (201, &b"made"[..]), "{name}: {odd:.50}");
            }
        }
    }

    #[tokio::test]
    async fn a_result_that_cannot_be_a_response_is_refused_with_the_reason() {
        for (result, said) in [
            (r#"{"statusCode":200,"body":{"a":1}}"#, "no string"),
            (r#"{"statusCode":200,"body":["a"]}"#, "no string"),
            (r#"{"statusCode":200,"headers":{"a":["b"]}}"#, "a list"),
            (r#"{"statusCode":200,"headers":{"a":{"b":"c"}}}"#, "a list"),
            (
                r#"{"statusCode":200,"body":"?","isBase64Encoded":true}"#,
                "no base64",
            ),
            (
                r#"{"statusCode":200,"isBase64Encoded":"yes"}"#,
                "no boolean",
            ),
            (r#"{"statusCode":200,"headers":["a"]}"#, "no object"),
            (r#"{"statusCode":200,"headers":{"a b":"c"}}"#, "a header"),
            (
                r#"{"statusCode":200,"headers":{"a":"c\r\nd: e"}}"#,
                "a header",
            ),
            (r#"{"statusCode":200,"headers":{"\ud800":"c"}}"#, "a header"),
            (r#"{"statusCode":200,"cookies":["a\nb"]}"#, "a cookie"),
            (r#"{"statusCode":200,"cookies":[7]}"#, "a cookie"),
            (
                r#"{"statusCode":200,"cookies":"a=b"}"#,
                "the cookies that it answered are no list",
            ),
            (
                r#"{"statusCode":200,"cookies":{"a":"b"}}"#,
                "the cookies that it answered are no list",
            ),
            (r#"{"statusCode":200,"body":"\ud800"}"#, "no string"),
        ] {
            let refused = read(result).await.expect_err(result);
            assert!(refused.why.contains(said), "{result}: {refused:?}");
        }
        let refused = read(r#"{"statusCode":200,"headers":{"a b":"c"}}"#)
            .await
            .expect_err("no name");
        assert_eq!(refused.detail, "a b", "which one, for the log");
    }
}
