//! The records.

use std::{collections::BTreeMap, fmt::Write as _};

use bytes::Bytes;
use ports::Timestamp;
use primitives::RecordFormat;
use serde::{Deserialize, Serialize};

use crate::{
    fragment::{Segment, Shape},
    function::Partition,
    model::{Attributes, ETags, Object, Upload, UploadId, UploadedPart, VersionId},
};

pub(crate) const FORMAT: RecordFormat = RecordFormat::new(1);

/// The id of a bucket. One that is deleted and made again has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct BucketId(pub(crate) u128);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BucketRow {
    pub(crate) id: BucketId,
    pub(crate) created: Timestamp,
    /// Whether a deletion looks for objects. A change that finds this ends the deletion.
    pub(crate) is_being_deleted: bool,
}

/// The MD5 of content, or that of the MD5s of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ETag {
    pub(crate) md5: [u8; 16],
    /// The number of parts; none: the object was put as a whole.
    pub(crate) parts: Option<u16>,
}

impl ETag {
    pub(crate) fn text(self) -> String {
        let mut text = hex(&self.md5);
        if let Some(parts) = self.parts {
            write!(text, "-{parts}").expect("a string takes all");
        }
        text
    }
}

/// `bytes` in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a string takes all");
    }
    text
}

/// The MD5 with these hexadecimal digits.
pub(crate) fn unhex(digits: &str) -> Option<[u8; 16]> {
    let number = (digits.len() == 32).then(|| u128::from_str_radix(digits, 16))?;
    number.ok().map(u128::to_be_bytes)
}

impl ETags {
    /// Whether an object with ETag `etag` satisfies it.
    pub(crate) fn include(&self, etag: &str) -> bool {
        match self {
            Self::Any => true,
            Self::OneOf(etags) => etags.iter().any(|one| one == etag),
        }
    }
}

/// The place of content: segments, and the rest in the row itself. Small content is all rest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Place {
    /// In order. Those of uploaded parts are one each.
    pub(crate) segments: Vec<Segment>,
    /// The content after the segments.
    pub(crate) rest: Bytes,
}

impl Place {
    pub(crate) fn bytes(&self) -> u64 {
        self.segment_bytes() + self.rest.len() as u64
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Adds content after this. Errors: this has a rest, so that it can be only the last.
    pub(crate) fn append(&mut self, next: &Self) -> Result<(), NotLast> {
        if !self.rest.is_empty() && next.bytes() > 0 {
            return Err(NotLast);
        }
        self.segments.extend_from_slice(&next.segments);
        if !next.rest.is_empty() {
            self.rest = next.rest.clone();
        }
        Ok(())
    }

    /// The sizes of its `count` parts.
    fn parts(&self, count: u16) -> Vec<u64> {
        let segments = self.segments.iter().map(|segment| segment.bytes);
        let rest = std::iter::once(self.rest.len() as u64);
        segments.chain(rest).take(count.into()).collect()
    }
}

/// Content that lies in a row is not the last of an object.
#[derive(Debug)]
pub(crate) struct NotLast;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectRow {
    pub(crate) version: VersionId,
    pub(crate) modified: Timestamp,
    pub(crate) etag: ETag,
    pub(crate) attributes: Attributes,
    pub(crate) place: Place,
}

impl ObjectRow {
    pub(crate) fn object(&self, key: &str) -> Object {
        let parts = match self.etag.parts {
            Some(count) => self.place.parts(count),
            None => Vec::new(),
        };
        Object {
            key: key.to_owned(),
            version: self.version,
            modified: self.modified,
            bytes: self.place.bytes(),
            etag: self.etag.text(),
            attributes: self.attributes.clone(),
            parts,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UploadRow {
    pub(crate) key: String,
    pub(crate) begun: Timestamp,
    pub(crate) attributes: Attributes,
    /// Once it was completed or aborted: the parts whose segments the object names. The rows of its
    /// parts are removed after that.
    pub(crate) ended: Option<Vec<u16>>,
}

impl UploadRow {
    pub(crate) fn upload(self, id: UploadId) -> Upload {
        Upload {
            id,
            key: self.key,
            begun: self.begun,
            attributes: self.attributes,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartRow {
    pub(crate) modified: Timestamp,
    pub(crate) md5: [u8; 16],
    pub(crate) checksums: BTreeMap<String, String>,
    pub(crate) place: Place,
}

impl PartRow {
    pub(crate) fn part(&self, number: u16) -> UploadedPart {
        UploadedPart {
            number,
            modified: self.modified,
            bytes: self.place.bytes(),
            etag: hex(&self.md5),
            checksums: self.checksums.clone(),
        }
    }
}

/// Segments that no other row names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingRow {
    pub(crate) segments: Vec<Segment>,
}

/// A server of a shared store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberRow {
    /// Where other servers reach its S3 listener.
    pub(crate) address: String,
    /// Differs after each renewal.
    pub(crate) beat: u64,
}

/// A fragment that is in function memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(u64, Shape, Partition, Timestamp)")]
pub(crate) struct ResidentRow {
    pub(crate) bytes: u64,
    pub(crate) shape: Shape,
    pub(crate) partition: Partition,
    pub(crate) since: Timestamp,
}

impl TryFrom<(u64, Shape, Partition, Timestamp)> for ResidentRow {
    type Error = &'static str;

    fn try_from(
        (bytes, shape, partition, since): (u64, Shape, Partition, Timestamp),
    ) -> Result<Self, Self::Error> {
        let row = Self {
            bytes,
            shape,
            partition,
            since,
        };
        let is_valid = (1..=shape.fragment_bytes()).contains(&bytes);
        is_valid.then_some(row).ok_or("no such fragment")
    }
}
