//! The part of a file that a request asks for.

use axum::http::{HeaderMap, header};

use crate::{
    headers::single,
    problem::{Kind, Problem},
};

/// Bytes of a file: the first, and the one after the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) first: u64,
    pub(super) end: u64,
}

/// The part that `Range` names of a file with `size` bytes; `None`: the whole file.
///
/// Errors: `RangeNotSatisfiable` if the file ends before it; `InvalidRequest` for several ranges.
pub(super) fn asked(headers: &HeaderMap, size: u64) -> Result<Option<Part>, Problem> {
    let malformed =
        || Problem::invalid("Range takes one range: bytes=FIRST-LAST, FIRST- or -COUNT");
    let Some(text) = single(headers, &header::RANGE).map_err(|()| malformed())? else {
        return Ok(None);
    };
    let (first, last) = text
        .strip_prefix("bytes=")
        .and_then(|range| range.trim().split_once('-'))
        .ok_or_else(malformed)?;
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| text.parse().unwrap_or(u64::MAX));
        number.ok_or_else(malformed)
    };
    let part = match (first, last) {
        ("", count) => Part {
            first: size.saturating_sub(number(count)?),
            end: size,
        },
        (first, "") => Part {
            first: number(first)?,
            end: size,
        },
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(malformed());
            }
            Part {
                first,
                end: last.saturating_add(1).min(size),
            }
        }
    };
    if part.first >= part.end {
        let why = format!("the file has {size} bytes");
        return Err(Problem::new(Kind::RangeNotSatisfiable, why));
    }
    Ok(Some(part))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn of(range: &str, size: u64) -> Result<Option<(u64, u64)>, Kind> {
        let value = HeaderValue::try_from(range).expect("text");
        let headers = HeaderMap::from_iter([(header::RANGE, value)]);
        let part = asked(&headers, size).map_err(|problem| problem.kind())?;
        Ok(part.map(|part| (part.first, part.end)))
    }

    #[test]
    fn a_range_is_cut_to_the_file() {
        assert_eq!(asked(&HeaderMap::new(), 9).expect("none"), None);
        for (range, part) in [
            ("bytes=0-0", (0, 1)),
            ("bytes=2-5", (2, 6)),
            ("bytes=2-", (2, 9)),
            ("bytes=2-99999999999999999999", (2, 9)),
            ("bytes=-4", (5, 9)),
            ("bytes=-40", (0, 9)),
        ] {
            assert_eq!(of(range, 9), Ok(Some(part)), "{range}");
        }
        for range in ["bytes=9-", "bytes=9-10", "bytes=-0"] {
            assert_eq!(of(range, 9), Err(Kind::RangeNotSatisfiable), "{range}");
        }
        assert_eq!(of("bytes=0-", 0), Err(Kind::RangeNotSatisfiable));
        for range in [
            "bytes=3-2",
            "bytes=0-1,3-4",
            "bytes=-",
            "lines=1-2",
            "bytes=a-b",
        ] {
            assert_eq!(of(range, 9), Err(Kind::InvalidRequest), "{range}");
        }
    }
}
