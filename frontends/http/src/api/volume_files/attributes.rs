//! Attributes of files in JSON and in headers.

use axum::http::{HeaderMap, HeaderValue, header};
use files::model::{Attributes, Kind, Time};
use serde::Serialize;
use time::OffsetDateTime;

use crate::segment;

/// An entry of a directory, or a file alone, which has no name.
#[derive(Serialize)]
pub(super) struct Shown {
    /// Percent-encoded as in a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    r#type: &'static str,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u64,
    ino: u64,
    mtime_ns: i128,
    ctime_ns: i128,
    #[serde(skip_serializing_if = "Option::is_none")]
    etag: Option<String>,
}

impl Shown {
    pub(super) fn new(name: Option<&[u8]>, attributes: &Attributes) -> Self {
        Self {
            name: name.map(segment::encode),
            r#type: match attributes.kind {
                Kind::File => "file",
                Kind::Directory => "directory",
                Kind::Symlink => "symlink",
                Kind::Fifo => "fifo",
                Kind::Socket => "socket",
                Kind::CharacterDevice => "character-device",
                Kind::BlockDevice => "block-device",
            },
            size: attributes.size,
            mode: attributes.access.mode,
            uid: attributes.access.uid,
            gid: attributes.access.gid,
            links: attributes.links,
            ino: attributes.ino.0,
            mtime_ns: nanoseconds(attributes.mtime),
            ctime_ns: nanoseconds(attributes.ctime),
            etag: (attributes.kind == Kind::File).then(|| etag(attributes)),
        }
    }
}

/// The ETag of a file. Times are in milliseconds, so it does not tell two changes within one
/// millisecond apart unless they change the length.
pub(super) fn etag(attributes: &Attributes) -> String {
    format!(
        "\"{:x}-{:x}-{:x}-{:x}\"",
        attributes.ino.0,
        attributes.size,
        nanoseconds(attributes.mtime),
        nanoseconds(attributes.ctime)
    )
}

/// The headers of a file: its ETag, its last change, and that ranges of it can be read.
pub(super) fn headers(attributes: &Attributes) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let text = |text: String| HeaderValue::try_from(text).expect("it is ASCII");
    headers.insert(header::ETAG, text(etag(attributes)));
    headers.extend(http_date(attributes.mtime).map(|date| (header::LAST_MODIFIED, text(date))));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers
}

/// A time as HTTP writes it. `None`: its year has no four digits.
fn http_date(time: Time) -> Option<String> {
    let date = OffsetDateTime::from_unix_timestamp(time.seconds).ok()?;
    let (day, month) = (date.weekday().to_string(), date.month().to_string());
    let year = Some(date.year()).filter(|year| (0..10_000).contains(year))?;
    Some(format!(
        "{}, {:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        day.get(..3)?,
        date.day(),
        month.get(..3)?,
        date.hour(),
        date.minute(),
        date.second()
    ))
}

fn nanoseconds(time: Time) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_http_writes_them() {
        let date = |seconds| {
            http_date(Time {
                seconds,
                nanoseconds: 0,
            })
        };
        assert_eq!(
            date(784_111_777).as_deref(),
            Some("Sun, 06 Nov 1994 08:49:37 GMT")
        );
        assert_eq!(date(-1).as_deref(), Some("Wed, 31 Dec 1969 23:59:59 GMT"));
        assert_eq!(date(i64::MAX), None);
    }
}
