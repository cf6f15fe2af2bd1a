//! The bytes of an object that a read asks for: by range, or by the number of a part.

use std::ops::Range;

use http::{HeaderMap, HeaderValue, StatusCode, header::CONTENT_RANGE};
use memory::model::Object;
use s3s::{S3Error, dto};

use crate::errors::{Refusal, invalid_argument, invalid_request};

/// What of an object is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) range: Range<u64>,
    /// `Content-Range`, if the response is a partial one.
    pub(crate) content_range: Option<String>,
    /// How many parts the object has, if one was asked for by its number.
    pub(crate) parts_count: Option<i32>,
}

impl Slice {
    /// Errors: `InvalidRange`, `InvalidPartNumber`, and `InvalidRequest` for both at once.
    pub(crate) fn of(
        object: &Object,
        range: Option<dto::Range>,
        part: Option<i32>,
    ) -> Result<Self, S3Error> {
        match (range, part) {
            (None, None) => Ok(Self {
                range: 0..object.bytes,
                content_range: None,
                parts_count: None,
            }),
            (Some(range), None) => {
                let range = resolve(range, object.bytes)?;
                Ok(Self::partial(object, range, None))
            }
            (None, Some(number)) => {
                let range = of_part(object, number)?;
                let count = i32::try_from(object.parts.len()).ok();
                Ok(Self::partial(object, range, count.filter(|n| *n > 0)))
            }
            (Some(_), Some(_)) => Err(invalid_request(
                "Cannot specify both Range header and partNumber query parameter",
            )),
        }
    }

    fn partial(object: &Object, range: Range<u64>, parts_count: Option<i32>) -> Self {
        let (first, bytes) = (range.start, object.bytes);
        let content_range =
            (!range.is_empty()).then(|| format!("bytes {first}-{}/{bytes}", range.end - 1));
        Self {
            range,
            content_range,
            parts_count,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Errors: `InvalidRange` if no byte of the object is in the range.
fn resolve(range: dto::Range, bytes: u64) -> Result<Range<u64>, S3Error> {
    let resolved = range.check(bytes).ok().filter(|range| !range.is_empty());
    resolved.ok_or_else(|| {
        let message = "The requested range is not satisfiable";
        let refusal = Refusal::new("InvalidRange", StatusCode::RANGE_NOT_SATISFIABLE, message);
        let mut error = S3Error::from(refusal);
        if let Ok(value) = HeaderValue::from_str(&format!("bytes */{bytes}")) {
            error.set_headers(HeaderMap::from_iter([(CONTENT_RANGE, value)]));
        }
        error
    })
}

fn of_part(object: &Object, number: i32) -> Result<Range<u64>, S3Error> {
    let index = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
    let Some(index) = index.filter(|_| number <= 10_000) else {
        return Err(invalid_argument(
            "Part number must be an integer between 1 and 10000, inclusive",
        ));
    };
    if object.parts.is_empty() && index == 0 {
        return Ok(0..object.bytes);
    }
    let Some(bytes) = object.parts.get(index) else {
        return Err(Refusal::new(
            "InvalidPartNumber",
            StatusCode::RANGE_NOT_SATISFIABLE,
            "The requested partnumber is not satisfiable",
        )
        .into());
    };
    let start: u64 = object.parts[..index].iter().sum();
    Ok(start..start + bytes)
}

/// The range of the source of a part that is copied: `bytes=FIRST-LAST`, inside of the source.
///
/// Errors: `InvalidArgument`.
pub(crate) fn of_copy(header: &str, bytes: u64) -> Result<Range<u64>, S3Error> {
    let parsed = dto::Range::parse(header).ok();
    let Some(dto::Range::Int {
        first,
        last: Some(last),
    }) = parsed
    else {
        return Err(invalid_argument(
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the zero-based offsets of the first and last bytes to copy",
        ));
    };
    if last >= bytes {
        let message = format!("Range specified is not valid for source object of size: {bytes}");
        return Err(invalid_argument(message));
    }
    Ok(first..last + 1)
}

#[cfg(test)]
mod tests {
    use memory::model::{Attributes, VersionId};

    use super::*;

    fn object(bytes: u64, parts: &[u64]) -> Object {
        Object {
            key: "k".into(),
            version: VersionId(1),
            modified: ports::Timestamp(0),
            bytes,
            etag: "e".into(),
            attributes: Attributes::default(),
            parts: parts.to_vec(),
        }
    }

    fn slice(bytes: u64, range: &str) -> Result<(Range<u64>, Option<String>), String> {
        let range = dto::Range::parse(range).expect("a range");
        let slice = Slice::of(&object(bytes, &[]), Some(range), None);
        let slice = slice.map_err(|error| error.code().as_str().to_owned())?;
        Ok((slice.range, slice.content_range))
    }

    #[test]
    fn ranges_are_cut_to_the_object() {
        let cases = [
            ("bytes=0-0", 0..1, "bytes 0-0/10"),
            ("bytes=2-", 2..10, "bytes 2-9/10"),
            ("bytes=5-99", 5..10, "bytes 5-9/10"),
            ("bytes=-3", 7..10, "bytes 7-9/10"),
            ("bytes=-99", 0..10, "bytes 0-9/10"),
        ];
        for (range, expected, header) in cases {
            let found = slice(10, range).expect(range);
            assert_eq!(found, (expected, Some(header.to_owned())), "{range}");
        }
    }

    #[test]
    fn a_range_without_a_byte_of_the_object_is_refused() {
        for (bytes, range) in [
            (10, "bytes=10-"),
            (10, "bytes=-0"),
            (0, "bytes=0-"),
            (0, "bytes=-5"),
        ] {
            assert_eq!(
                slice(bytes, range),
                Err("InvalidRange".to_owned()),
                "{bytes} {range}"
            );
        }
    }

    #[test]
    fn a_part_is_found_by_its_number() {
        let object_in_parts = object(12, &[5, 5, 2]);
        let part = |number| Slice::of(&object_in_parts, None, Some(number));
        let third = part(3).expect("the third");
        assert_eq!((third.range, third.parts_count), (10..12, Some(3)));
        assert_eq!(
            part(4).expect_err("the fourth").code().as_str(),
            "InvalidPartNumber"
        );
        assert_eq!(
            part(0).expect_err("none").code().as_str(),
            "InvalidArgument"
        );
        let whole = Slice::of(&object(7, &[]), None, Some(1)).expect("the only");
        assert_eq!((whole.range, whole.parts_count), (0..7, None));
    }

    #[test]
    fn a_copied_range_lies_inside_of_its_source() {
        assert_eq!(of_copy("bytes=2-4", 5).expect("inside"), 2..5);
        for header in ["bytes=2-5", "bytes=2-", "bytes=-2", "2-4"] {
            let error = of_copy(header, 5).expect_err(header);
            assert_eq!(error.code().as_str(), "InvalidArgument", "{header}");
        }
    }
}
