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
