//! The terms of the service: buckets, objects, uploads in parts, conditions and lists.

use std::{collections::BTreeMap, io, pin::Pin};

use bytes::Bytes;
use futures_util::Stream;
use ports::Timestamp;
use serde::{Deserialize, Serialize};

/// The longest key in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// The largest object.
pub const OBJECT_BYTES_MAX: u64 = 5 << 40;
/// The largest single PUT, part or copy.
pub const SEGMENT_BYTES_MAX: u64 = 5 << 30;
/// The smallest part of a completed upload, but for the last.
pub const PART_BYTES_MIN: u64 = 5 << 20;
/// The parts of an upload are numbered from 1 to this.
pub const PART_NUMBER_MAX: u16 = 10_000;
/// The most keys in a page of a list.
pub const LIST_ITEMS_MAX: usize = 1000;

/// The content of a PUT as it arrives. An error ends it, and nothing is stored.
pub type Body = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;
/// The content of an object on its way to a reader.
pub type Content = Pin<Box<dyn Stream<Item = crate::Result<Bytes>> + Send>>;

/// The id of one version of an object. No other version of any object has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VersionId(pub u128);

/// The id of an upload in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UploadId(pub u128);

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: Timestamp,
}

/// What a client stored beside the content. The service gives it back as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Attributes {
    /// Headers such as `content-type`, by their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The user's metadata, by names in lower case and without `x-amz-meta-`.
    pub metadata: BTreeMap<String, String>,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// Checksums as the client sees them, by their headers: `x-amz-checksum-crc32` and so on.
    pub checksums: BTreeMap<String, String>,
}

/// One version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its key.
    pub key: String,
    /// This version.
    pub version: VersionId,
    /// When it was committed.
    pub modified: Timestamp,
    /// Its size in bytes.
    pub bytes: u64,
    /// The MD5 of the content in hexadecimal digits, or that of the parts' MD5s with `-N`.
    pub etag: String,
    /// The client's attributes. Empty in lists.
    pub attributes: Attributes,
    /// The sizes of its parts in order, if it was uploaded in parts.
    pub parts: Vec<u64>,
}

/// Conditions on the present version of an object, checked when a change is decided or a read
/// begins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conditions {
    /// The object is there with one of these ETags.
    pub if_match: Option<ETags>,
    /// The object is not there, or has none of these ETags.
    pub if_none_match: Option<ETags>,
}

/// The value of a condition on ETags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ETags {
    /// `*`: any version.
    Any,
    /// One of these, without quotes.
    OneOf(Vec<String>),
}

/// A request for a page of keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct List {
    /// The beginning of every key.
    pub prefix: String,
    /// Keys that share the text up to the first delimiter after the prefix are shown as one common
    /// prefix.
    pub delimiter: Option<String>,
    /// Only keys and common prefixes after this one, in the order of their bytes.
    pub after: Option<String>,
    /// The most keys and common prefixes in the page: up to [`LIST_ITEMS_MAX`].
    pub items_max: usize,
}

/// A page of keys in the order of their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// Objects, without attributes.
    pub objects: Vec<Object>,
    /// Common prefixes.
    pub prefixes: Vec<String>,
    /// The `after` of the next page; none: this is the last.
    pub next: Option<String>,
}

/// An upload in parts that is not completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// Its id.
    pub id: UploadId,
    /// The key of the object that it will be.
    pub key: String,
    /// When it began.
    pub begun: Timestamp,
    /// The attributes of the object that it will be.
    pub attributes: Attributes,
}

/// An uploaded part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadedPart {
    /// Its number.
    pub number: u16,
    /// When it was uploaded.
    pub modified: Timestamp,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its MD5 in hexadecimal digits.
    pub etag: String,
    /// Its checksums, as in [`Attributes::checksums`].
    pub checksums: BTreeMap<String, String>,
}

/// A part as a completion names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPart {
    /// Its number.
    pub number: u16,
    /// The ETag that the client knows, without quotes.
    pub etag: String,
}
