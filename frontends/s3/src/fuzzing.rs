//! Entry points for fuzzing: the decoders that are ours. s3s decodes XML, forms and signatures.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Uri, header::AUTHORIZATION};
use memory::model::{Attributes, Object, VersionId};
use s3s::{dto::Range, host::S3Host};

use crate::{
    access::{Hosts, check_signed, is_for_s3, is_version_2},
    checksums::{Algorithm, check_form},
    chunks::Chunks,
    errors::Refusal,
    lists::{from_token, to_token},
    range::{Slice, of_copy},
    repair::without_signature,
    tags, uploads,
};

const SIGNED: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const UNSIGNED: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

/// Passes bytes through the frames of `aws-chunked` in pieces, at least one byte each. The pieces
/// make no difference to the content. Returns whether the bytes are well formed without signatures.
pub fn chunks(bytes: &[u8], piece: usize) -> bool {
    let code = |refusal: Refusal| refusal.to_string();
    let (whole, piece) = (bytes.len().max(1), piece.max(1));
    for one in [whole, piece] {
        let passed = through(SIGNED, bytes, one);
        assert!(passed.is_err() || passed.is_ok_and(|passed| passed == bytes));
    }
    let each = through(UNSIGNED, bytes, 1).map_err(code);
    for one in [whole, piece] {
        // Cut byte by byte, what came of it has one form.
        let cut = through(UNSIGNED, bytes, one);
        let cut = cut.and_then(|cut| through(UNSIGNED, &cut, 1));
        assert_eq!(cut.map_err(code), each);
    }
    each.is_ok()
}

fn through(kind: &str, bytes: &[u8], piece: usize) -> Result<Vec<u8>, Refusal> {
    let mut passed = Vec::new();
    if let Some(mut chunks) = Chunks::of(kind) {
        for piece in bytes.chunks(piece) {
            passed.extend_from_slice(&chunks.receive(Bytes::copy_from_slice(piece))?);
        }
        chunks.finish()?;
    }
    Ok(passed)
}

/// Reads a text as each header, parameter and token of ours. Returns the number of those that accept
/// it.
pub fn text(text: &str) -> usize {
    let token = from_token(text).inspect(|key| assert_eq!(to_token(key), text.to_lowercase()));
    let upload = uploads::id(text).inspect(|id| {
        let again = uploads::id(&uploads::text(*id));
        assert_eq!(again.ok(), Some(*id));
    });
    let copy =
        of_copy(text, 10).inspect(|range| assert!(range.start < range.end && range.end <= 10));
    let tags = tags::of_header(text).inspect(|tags| assert!(tags.len() <= 10));
    let sums = ["CRC32", "CRC64NVME", "SHA256"].into_iter();
    let sums = sums.filter_map(|name| check_form(Algorithm::parse(name).ok()?, text).ok());
    let accepted = [
        token.is_ok(),
        upload.is_ok(),
        copy.is_ok(),
        tags.is_ok(),
        slices(text),
    ];
    request(text);
    accepted.into_iter().filter(|one| *one).count() + sums.count()
}

/// Whether the text names bytes of an object.
fn slices(text: &str) -> bool {
    let object = |bytes, parts| Object {
        key: "k".to_owned(),
        version: VersionId(1),
        modified: ports::Timestamp(0),
        bytes,
        etag: String::new(),
        attributes: Attributes::default(),
        parts,
    };
    let objects = [
        object(0, vec![]),
        object(10, vec![]),
        object(12, vec![5, 5, 2]),
    ];
    let (range, part) = (Range::parse(text).ok(), text.parse().ok());
    let found = objects.iter().filter(|object| {
        let slice = Slice::of(object, range, part);
        slice.is_ok_and(|slice| {
            assert!(slice.range.start <= slice.range.end && slice.range.end <= object.bytes);
            true
        })
    });
    found.count() > 0 && (range.is_some() || part.is_some())
}

/// Looks for signatures in the text as a query and as a header.
fn request(text: &str) {
    let _ = Hosts.parse_host_header(text);
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(AUTHORIZATION, value);
    }
    let uri = format!("/b/k?{text}")
        .parse()
        .unwrap_or_else(|_| Uri::from_static("/b/k"));
    let _ = is_version_2(&headers) || is_for_s3(&uri, &headers);
    headers.insert("x-amz-added", HeaderValue::from_static("1"));
    let is_covered = text.contains('%') || text.to_lowercase().contains("x-amz-added");
    if headers.contains_key(AUTHORIZATION) && !is_covered {
        assert!(check_signed(&uri, &headers).is_err());
    }
    if let Ok(kept) = without_signature(&uri) {
        assert!(!kept.query().unwrap_or_default().contains("&X-Amz-"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that depend on the seed alone.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.0 >> 33) as usize % end
        }

        /// Pieces of the list, one after the other.
        fn text(&mut self, pieces: &[&str]) -> String {
            let count = self.below(12);
            let piece = |_| pieces[self.below(pieces.len())];
            (0..count).map(piece).collect()
        }
    }

    #[test]
    fn frames_mean_the_same_however_they_arrive() {
        let pieces = [
            "3\r\nabc\r\n",
            "0\r\n",
            "\r\n",
            "a\r\n",
            "0123456789",
            "3;chunk-signature=00\r\n",
            "ffffffffffffffff\r\n",
            "x-amz-checksum-crc32:AAAAAA==\r\n\r\n",
            "\n",
            "-1",
            "1",
            "00000000000000000000000000000000000000000000",
        ];
        let mut random = Random(1);
        let (inputs, mut accepted) = (20_000, 0);
        for _ in 0..inputs {
            let text = random.text(&pieces);
            let piece = 1 + random.below(20);
            accepted += usize::from(chunks(text.as_bytes(), piece));
        }
        assert!((inputs / 50..inputs).contains(&accepted), "{accepted}");
    }

    #[test]
    fn every_text_is_read_or_refused() {
        let pieces = [
            "bytes=",
            "-",
            "0",
            "9",
            "18446744073709551615",
            "-2147483648",
            "a",
            "=",
            "&",
            "%",
            "%4",
            "%C3%BC",
            "ü",
            "+",
            "X-Amz-Signature",
            "X-Amz-SignedHeaders=",
            "host;x-amz-added",
            "X-Amz-Credential=",
            "/s3/aws4_request",
            "AWS ",
            "SignedHeaders=",
            ", ",
            ";",
            ".localhost",
            ":",
            "AAAAAA==",
            "00112233445566778899aabbccddeeff",
            "\u{0}",
            " ",
        ];
        let mut random = Random(2);
        let accepted: usize = (0..50_000).map(|_| text(&random.text(&pieces))).sum();
        assert!(accepted > 10_000, "{accepted}");
        for number in [i32::MIN, 0, 10_001, i32::MAX] {
            text(&number.to_string());
        }
    }
}
