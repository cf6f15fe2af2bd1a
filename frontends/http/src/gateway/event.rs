//! A request as an event of API Gateway's HTTP APIs: payload format 2.0.
//!
//! As there, header names are lower case, repeated headers are joined by commas, cookies are
//! separate, and a body that is not text is in base64. The raw path is the received one. Below
//! `/http` it begins with that prefix, which the context names as the stage: API Gateway gives the
//! path behind a named stage so, and frameworks strip it there. Path parameters are decoded.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    extract::Query,
    http::{HeaderMap, Uri, header, request::Parts, uri::Authority},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use functions::Routed;
use listener::Peer;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::{Stage, is_of_the_connection};
use crate::problem::Problem;

/// The event of a request. Errors: its query is malformed.
pub(super) fn encode(
    stage: &Stage,
    parts: &Parts,
    routed: &Routed,
    body: &Bytes,
    id: &str,
    caller: Option<Peer>,
) -> Result<Bytes, Problem> {
    let (uri, headers) = (&parts.uri, &parts.headers);
    let (body, is_base64_encoded) = encode_body(headers, body);
    let mut event = json!({
        "version": "2.0",
        "routeKey": routed.key,
        "rawPath": raw_path(uri),
        "rawQueryString": uri.query().unwrap_or_default(),
        "headers": forwarded(joined(headers), caller),
        "requestContext": context(stage, parts, routed, id, caller),
        "isBase64Encoded": is_base64_encoded,
    });
    let (cookies, query) = (cookies(headers), query(parts)?);
    if !cookies.is_empty() {
        event["cookies"] = cookies.into();
    }
    if !query.is_empty() {
        event["queryStringParameters"] = json!(query);
    }
    if !routed.parameters.is_empty() {
        event["pathParameters"] = json!(routed.parameters);
    }
    if let Some(body) = body {
        event["body"] = Value::String(body);
    }
    Ok(event.to_string().into())
}

/// The context of a request: its connection, its route and the time.
fn context(stage: &Stage, parts: &Parts, routed: &Routed, id: &str, caller: Option<Peer>) -> Value {
    let text = |name| {
        let value = parts.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap_or_default())
    };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ms = since_1970.unwrap_or_default().as_millis() as u64;
    let domain_name = text(header::HOST);
    let source_ip = caller.map(|peer| peer.address.ip().to_string());
    json!({
        "accountId": "000000000000",
        "apiId": "landfast",
        "domainName": domain_name,
        "domainPrefix": domain_name.split(['.', ':']).next(),
        "http": {
            "method": parts.method.as_str(),
            "path": raw_path(&parts.uri),
            "protocol": format!("{:?}", parts.version),
            "sourceIp": source_ip.unwrap_or_default(),
            "userAgent": text(header::USER_AGENT),
        },
        "requestId": id,
        "routeKey": routed.key,
        "stage": stage.name,
        "time": common_log_time(now_ms),
        "timeEpoch": now_ms,
    })
}

/// The path as it was received. A target without a path (`OPTIONS *`) is the root.
fn raw_path(uri: &Uri) -> &str {
    let path = uri.path();
    if path.starts_with('/') { path } else { "/" }
}

/// All headers but cookies and those of the connection. Bytes of a value that are not UTF-8 are
/// replaced.
fn joined(headers: &HeaderMap) -> BTreeMap<&str, String> {
    let mut joined: BTreeMap<&str, String> = BTreeMap::new();
    for (name, value) in headers {
        if *name == header::COOKIE || is_of_the_connection(name) {
            continue;
        }
        let value = String::from_utf8_lossy(value.as_bytes());
        join(&mut joined, name.as_str(), ",", &value);
    }
    joined
}

/// Adds a value to those of its name.
fn join<K: Ord>(values: &mut BTreeMap<K, String>, name: K, separator: &str, value: &str) {
    match values.entry(name) {
        Entry::Vacant(vacant) => drop(vacant.insert(value.to_owned())),
        Entry::Occupied(mut before) => before.get_mut().extend([separator, value]),
    }
}

/// The headers, and those that API Gateway adds about the connection. A proxy in front of the
/// server knows its client better, so its values stay. The address of the connection's other end is
/// appended, as every proxy does.
fn forwarded(mut headers: BTreeMap<&str, String>, caller: Option<Peer>) -> BTreeMap<&str, String> {
    if let Some(caller) = caller {
        let address = caller.address.ip().to_string();
        join(&mut headers, "x-forwarded-for", ", ", &address);
    }
    let is_encrypted = caller.is_some_and(|caller| caller.is_encrypted);
    let scheme = if is_encrypted { "https" } else { "http" };
    let is_https = headers
        .entry("x-forwarded-proto")
        .or_insert_with(|| scheme.to_owned())
        .eq_ignore_ascii_case("https");
    let host = headers.get("host").map(|host| host.parse::<Authority>());
    if let Some(Ok(host)) = host {
        let port = host.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let forwarded = headers.entry("x-forwarded-port");
        forwarded.or_insert_with(|| port.to_string());
    }
    headers
}

fn cookies(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(header::COOKIE).iter();
    let texts = lines.map(|line| String::from_utf8_lossy(line.as_bytes()).into_owned());
    let text = texts.collect::<Vec<_>>().join(";");
    let cookies = text.split(';').map(str::trim);
    cookies
        .filter(|cookie| !cookie.is_empty())
        .map(str::to_owned)
        .collect()
}

fn query(parts: &Parts) -> Result<BTreeMap<String, String>, Problem> {
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
    let pairs = pairs.map_err(|error| {
        Problem::invalid(format!("the query is malformed: {}", error.body_text()))
    })?;
    let mut joined: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in pairs.0 {
        join(&mut joined, name, ",", &value);
    }
    Ok(joined)
}

/// A body as a JSON string, and whether it is in base64.
fn encode_body(headers: &HeaderMap, body: &Bytes) -> (Option<String>, bool) {
    if body.is_empty() {
        return (None, false);
    }
    match std::str::from_utf8(body) {
        Ok(text) if says_text(headers) => (Some(text.to_owned()), false),
        _ => (Some(BASE64_STANDARD.encode(body)), true),
    }
}

/// Whether the headers declare the body as text. A body without a type is text if it is UTF-8.
fn says_text(headers: &HeaderMap) -> bool {
    const TEXTS: [&str; 3] = [
        "application/json",
        "application/javascript",
        "application/xml",
    ];
    if headers.contains_key(header::CONTENT_ENCODING) {
        return false;
    }
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return true;
    };
    let value = value.to_str().unwrap_or_default().to_ascii_lowercase();
    let kind = value.split(';').next().unwrap_or_default().trim();
    kind.starts_with("text/")
        || TEXTS.contains(&kind)
        || kind.ends_with("+json")
        || kind.ends_with("+xml")
}

/// An instant in the format of web server logs: `12/Mar/2020:19:03:58 +0000`.
fn common_log_time(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or_default();
    let Ok(time) = OffsetDateTime::from_unix_timestamp(seconds) else {
        return String::new();
    };
    let month = time.month().to_string();
    format!(
        "{:02}/{}/{}:{:02}:{:02}:{:02} +0000",
        time.day(),
        &month[..3],
        time.year(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn event(request: Request<&'static [u8]>) -> Value {
        event_at(&Stage::BELOW_PREFIX, request)
    }

    fn event_at(stage: &Stage, request: Request<&'static [u8]>) -> Value {
        let (parts, body) = request.into_parts();
        let parameters = [("id".to_owned(), "a/b".to_owned())].into();
        let routed = Routed {
            function: "f".into(),
            key: "POST /orders/{id}".into(),
            parameters,
            cors: None,
        };
        let caller = Some(Peer {
            address: ([127, 0, 0, 1], 40_000).into(),
            is_encrypted: false,
        });
        let body = Bytes::from_static(body);
        let encoded = encode(stage, &parts, &routed, &body, "the-id", caller);
        serde_json::from_slice(&encoded.expect("an event")).expect("JSON")
    }

    #[test]
    fn a_request_reads_as_that_of_api_gateway() {
        let request = Request::post("/http/orders/a%2Fb?x=1&y=%C3%A4+b&x=2&z")
            .header("Host", "localhost:7600")
            .header("User-Agent", "curl/8")
            .header("X-Several", "1")
            .header("x-several", "2")
            .header("Cookie", "a=b; c=d")
            .header("Cookie", "e=f")
            .header("Connection", "close")
            .header("Content-Type", "application/json; charset=utf-8")
            .body(&b"{\"n\":1}"[..])
            .expect("a request");
        let mut event = event(request);
        let context = event["requestContext"].take();
        assert_eq!(
            event,
            json!({
                "version": "2.0",
                "routeKey": "POST /orders/{id}",
                "rawPath": "/http/orders/a%2Fb",
                "rawQueryString": "x=1&y=%C3%A4+b&x=2&z",
                "cookies": ["a=b", "c=d", "e=f"],
                "headers": {
                    "host": "localhost:7600",
                    "user-agent": "curl/8",
                    "x-several": "1,2",
                    "content-type": "application/json; charset=utf-8",
                    "x-forwarded-for": "127.0.0.1",
                    "x-forwarded-port": "7600",
                    "x-forwarded-proto": "http",
                },
                "queryStringParameters": { "x": "1,2", "y": "ä b", "z": "" },
                "pathParameters": { "id": "a/b" },
                "requestContext": null,
                "body": "{\"n\":1}",
                "isBase64Encoded": false,
            })
        );
        assert_eq!(
            context["http"],
            json!({ "method": "POST", "path": "/http/orders/a%2Fb", "protocol": "HTTP/1.1", "sourceIp": "127.0.0.1", "userAgent": "curl/8" })
        );
        assert_eq!(
            (&context["stage"], &context["requestId"]),
            (&json!("http"), &json!("the-id"))
        );
        assert_eq!(
            (&context["domainName"], &context["domainPrefix"]),
            (&json!("localhost:7600"), &json!("localhost"))
        );
        assert!(
            context["timeEpoch"]
                .as_u64()
                .is_some_and(|ms| ms > 1_600_000_000_000),
            "{context}"
        );
    }

    /// API Gateway names the default stage so, and the path then has no prefix.
    #[test]
    fn on_the_listener_for_routes_a_request_is_of_the_default_stage() {
        for (target, path) in [
            ("/orders/7", "/orders/7"),
            ("/http/x", "/http/x"),
            ("/", "/"),
            ("*", "/"),
        ] {
            let request = Request::options(target).body(&b""[..]).expect("a request");
            let event = event_at(&Stage::ROOT, request);
            let context = &event["requestContext"];
            assert_eq!(
                (
                    &event["rawPath"],
                    &context["http"]["path"],
                    &context["stage"]
                ),
                (&json!(path), &json!(path), &json!("$default")),
                "{target}"
            );
        }
    }

    #[test]
    fn forwarded_headers_of_a_proxy_stay_and_its_address_is_appended() {
        let proxied = Request::get("/http/")
            .header("Host", "[::1]")
            .header("X-Forwarded-For", "203.0.113.7")
            .header("X-Forwarded-Proto", "https")
            .body(&b""[..]);
        let headers = event(proxied.expect("a request"))["headers"].take();
        assert_eq!(
            headers,
            json!({
                "host": "[::1]",
                "x-forwarded-for": "203.0.113.7, 127.0.0.1",
                "x-forwarded-port": "443",
                "x-forwarded-proto": "https",
            })
        );
    }

    #[test]
    fn absent_parts_are_left_out() {
        let event = event(Request::get("/http/").body(&b""[..]).expect("a request"));
        for absent in ["cookies", "queryStringParameters", "body"] {
            assert!(event.get(absent).is_none(), "{absent}: {event}");
        }
        assert!(
            event["headers"].get("x-forwarded-port").is_none(),
            "nobody named a port: {event}"
        );
        assert_eq!(
            (&event["rawPath"], &event["rawQueryString"]),
            (&json!("/http/"), &json!(""))
        );
    }

    #[test]
    fn a_body_that_is_no_text_travels_in_base64() {
        for (kind, encoding, body, expected, is_base64) in [
            (Some("text/plain"), None, &b"text"[..], "text", false),
            (None, None, b"text", "text", false),
            (Some("application/problem+json"), None, b"{}", "{}", false),
            (Some("TEXT/HTML"), None, b"<p>", "<p>", false),
            (Some("text/plain"), None, b"\xff", "/w==", true),
            (Some("text/plain"), Some("gzip"), b"text", "dGV4dA==", true),
            (
                Some("application/octet-stream"),
                None,
                b"text",
                "dGV4dA==",
                true,
            ),
            (
                Some("application/x-www-form-urlencoded"),
                None,
                b"a=b",
                "YT1i",
                true,
            ),
        ] {
            let mut request = Request::post("/http/");
            for (name, value) in [("content-type", kind), ("content-encoding", encoding)] {
                if let Some(value) = value {
                    request = request.header(name, value);
                }
            }
            let event = event(request.body(body).expect("a request"));
            assert_eq!(
                (&event["body"], &event["isBase64Encoded"]),
                (&json!(expected), &json!(is_base64)),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn an_instant_is_written_as_web_servers_log_it() {
        assert_eq!(
            common_log_time(1_584_039_838_390),
            "12/Mar/2020:19:03:58 +0000"
        );
    }
}
