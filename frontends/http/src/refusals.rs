//! Refusals that no route gives: of what is no request, and of connections beyond the limit.
//!
//! What it cannot read hyper answers with a bare status. [`in_place_of`] gives the problem document that leaves instead, so that
//! every refusal has its name (T15). Bytes of a route's answer may look like anything; only a connection knows that none of those
//! are under way ([`crate::connection`]).

use axum::http::StatusCode;

use crate::problem::{Kind, Problem};

/// The longest head that hyper writes for a refusal, in bytes, several times over.
const BARE_HEAD_BYTES_MAX: usize = 512;

/// What leaves in place of `bytes`, if they are hyper's own refusal.
pub(crate) fn in_place_of(bytes: &[u8]) -> Option<Vec<u8>> {
    if bytes.len() > BARE_HEAD_BYTES_MAX || !bytes.starts_with(b"HTTP/1.1 4") {
        return None;
    }
    let head = std::str::from_utf8(bytes).ok()?.strip_suffix("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let mut date = None;
    let mut is_empty = false;
    for line in lines {
        let (name, value) = line.split_once(": ")?;
        is_empty |= name.eq_ignore_ascii_case("content-length") && value == "0";
        if name.eq_ignore_ascii_case("date") {
            date = Some(line);
        }
    }
    is_empty.then(|| written(&why(status), date))
}

/// Why hyper refused.
fn why(status: u16) -> Problem {
    match StatusCode::from_u16(status) {
        Ok(StatusCode::URI_TOO_LONG) => Problem::new(
            Kind::InvalidRequest,
            "the path is too long; a key has at most 1,024 bytes",
        ),
        Ok(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE) => Problem::new(
            Kind::TooLarge,
            "the request has more than 100 headers, or too long a head or body",
        ),
        _ => Problem::new(
            Kind::InvalidRequest,
            "this is no HTTP/1.1 request, or its headers contradict each other",
        ),
    }
}

/// The answer to a connection for which there is no place.
pub(crate) fn no_place(connections_max: usize) -> Vec<u8> {
    let detail = format!("the server has the {connections_max} connections that it takes");
    written(&Problem::new(Kind::Unavailable, detail), None)
}

/// The answer to whoever begins with HTTP/2: nothing was agreed on but HTTP/1.1.
pub(crate) fn http_2() -> Vec<u8> {
    written(
        &Problem::new(Kind::HttpVersionNotSupported, "speak HTTP/1.1"),
        None,
    )
}

/// A whole answer, after which the connection ends.
fn written(problem: &Problem, date: Option<&str>) -> Vec<u8> {
    let (status, body) = problem.document();
    let mut answer = format!("HTTP/1.1 {status}\r\n");
    let retry_after = (status == StatusCode::SERVICE_UNAVAILABLE).then_some("retry-after: 1");
    let length = format!("content-length: {}", body.len());
    let always = [
        "content-type: application/problem+json",
        "cache-control: no-store",
        "connection: close",
    ];
    for line in always
        .into_iter()
        .chain([&length[..]])
        .chain(retry_after)
        .chain(date)
    {
        answer.push_str(line);
        answer.push_str("\r\n");
    }
    answer.push_str("\r\n");
    [answer.into_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bare_head_of_a_refusal_is_replaced() {
        let bare = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: D\r\n\r\n";
        let answer =
            String::from_utf8(in_place_of(bare.as_bytes()).expect("it is hyper's")).expect("text");
        assert!(
            answer.starts_with("HTTP/1.1 413 Payload Too Large\r\n"),
            "{answer}"
        );
        assert!(
            answer.contains("\r\ndate: D\r\n") && answer.contains(r#""type":"too-large""#),
            "{answer}"
        );
        for other in [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 10\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\nmore",
            "HTTP/1.1 4",
            "",
        ] {
            assert_eq!(in_place_of(other.as_bytes()), None, "{other}");
        }
    }
}
