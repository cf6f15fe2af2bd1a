//! Path segments as bytes. A key or an id is one segment, percent-encoded, and is decoded exactly
//! once. So every byte string has a path: `%2F` is a slash within a key, `%25` a percent sign, `+`
//! is itself.

use std::fmt::Write as _;

use axum::http::Uri;

use crate::problem::Problem;

/// The bytes of the path's segment number `place`, from zero. Errors: a percent sign without two
/// hexadecimal digits after it. Lenient decoders keep it, and then two paths mean one key.
pub(crate) fn bytes(uri: &Uri, place: usize) -> Result<Vec<u8>, Problem> {
    // The path begins with a slash, so the first part is empty and no segment.
    let segment = uri.path().split('/').nth(place + 1).unwrap_or_default();
    let why = "in a path, % is followed by two hexadecimal digits; write % as %25";
    decode(segment).ok_or_else(|| Problem::invalid(why))
}

/// The bytes of `segment`. `None`: it is malformed.
pub(crate) fn decode(segment: &str) -> Option<Vec<u8>> {
    let mut encoded = segment.bytes();
    let mut decoded = Vec::with_capacity(segment.len());
    while let Some(byte) = encoded.next() {
        decoded.push(match byte {
            b'%' => digit(encoded.next()?)? << 4 | digit(encoded.next()?)?,
            plain => plain,
        });
    }
    Some(decoded)
}

/// The path that its sender may have meant by `path`, which has no route: one whose last segment, a
/// key or the name of a queue or a function, has slashes in it. None: it is no such path.
pub(crate) fn with_slashes_encoded(path: &str) -> Option<String> {
    let segments: Vec<_> = path.strip_prefix('/')?.split('/').collect();
    let before = match segments[..] {
        ["v1", "state", _, _, ..] => 2,
        [
            "v1",
            "transactions",
            _,
            "keys" | "messages" | "invocations",
            _,
            _,
            ..,
        ]
        | ["v1", "workflows", _, "state", _, _, ..] => 4,
        _ => return None,
    };
    let (before, key) = segments.split_at(before);
    Some(format!("/{}/{}", before.join("/"), key.join("%2F")))
}

/// `bytes` as a segment. Dots alone are encoded too, because proxies resolve a plain `..`.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let is_dots = bytes.iter().all(|byte| *byte == b'.');
    let mut encoded = String::with_capacity(bytes.len());
    for &byte in bytes {
        let is_plain =
            byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) || (byte == b'.' && !is_dots);
        if is_plain {
            encoded.push(byte.into());
        } else {
            write!(encoded, "%{byte:02X}").expect("a string takes all");
        }
    }
    encoded
}

fn digit(letter: u8) -> Option<u8> {
    char::from(letter).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_string_has_a_segment_and_is_read_back() {
        let all: Vec<u8> = (0..=255).collect();
        let encoded = all
            .iter()
            .map(|byte| format!("%{byte:02x}"))
            .collect::<Vec<_>>()
            .concat();
        assert_eq!(decode(&encoded).as_ref(), Some(&all));
        assert_eq!(decode(&encode(&all)), Some(all));
        assert_eq!(
            [encode(b"a/b.c%~"), encode(b".."), encode(b"")],
            ["a%2Fb.c%25~", "%2E%2E", ""]
        );
        assert_eq!(decode("a+b~%2F%25%2f"), Some(b"a+b~/%/".to_vec()));
        assert_eq!(decode(""), Some(Vec::new()));
        // Once, not twice.
        assert_eq!(decode("%2541"), Some(b"%41".to_vec()));
    }

    #[test]
    fn a_path_with_a_plain_slash_in_its_key_is_recognised() {
        for (path, meant) in [
            ("/v1/state/orders/17", "/v1/state/orders%2F17"),
            ("/v1/state/a/b/", "/v1/state/a%2Fb%2F"),
            ("/v1/state//a", "/v1/state/%2Fa"),
            (
                "/v1/transactions/t/keys/a/b",
                "/v1/transactions/t/keys/a%2Fb",
            ),
            (
                "/v1/transactions/t/messages/a/b",
                "/v1/transactions/t/messages/a%2Fb",
            ),
            ("/v1/workflows/w/state/a/b", "/v1/workflows/w/state/a%2Fb"),
        ] {
            assert_eq!(with_slashes_encoded(path).as_deref(), Some(meant));
        }
        for other in [
            "/",
            "",
            "/v1",
            "/v1/state/a",
            "/v1/nothing/a/b",
            "/v1/workflows/w/runs/a/b",
        ] {
            assert_eq!(with_slashes_encoded(other), None, "{other}");
        }
    }

    #[test]
    fn a_percent_sign_alone_is_refused() {
        for hostile in ["%", "%4", "a%", "%zz", "%+1", "%%41", "%4%31", "%é0"] {
            assert_eq!(decode(hostile), None, "{hostile}");
        }
    }

    #[test]
    fn segments_are_counted_from_the_first_slash() {
        let uri: Uri = "http://localhost/v1/state/%00?q=/x/y"
            .parse()
            .expect("a target");
        assert_eq!(bytes(&uri, 2).expect("a segment"), b"\0");
        let empty: Uri = "/v1/state/".parse().expect("a target");
        assert!(bytes(&empty, 2).expect("a segment").is_empty());
    }
}
