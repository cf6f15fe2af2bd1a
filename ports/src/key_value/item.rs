//! Keys, items and their attributes.

use std::{borrow::Cow, fmt, sync::Arc};

use bytes::{BufMut, Bytes};
use serde::{Deserialize, Serialize};

/// The address of an item: a partition and a place in it.
///
/// Kept as one buffer (`partition length, big-endian u16 | partition | sort`). Making a key
/// therefore allocates once, and keys of one partition compare by sort key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Bytes);

impl Key {
    /// The longest partition that the encoding can hold. Providers allow less.
    const PARTITION_BYTES_MAX: usize = u16::MAX as usize;

    /// The key of `sort` in `partition`.
    ///
    /// # Panics
    /// If the partition is longer than 65,535 bytes, which every provider's limits refuse long
    /// before.
    pub fn new(partition: impl AsRef<[u8]>, sort: impl AsRef<[u8]>) -> Self {
        Self::within([partition.as_ref(), &[]], sort)
    }

    /// As [`Key::new`], of a partition in two parts.
    pub fn within([first, second]: [&[u8]; 2], sort: impl AsRef<[u8]>) -> Self {
        let (partition_len, sort) = (first.len() + second.len(), sort.as_ref());
        assert!(
            partition_len <= Self::PARTITION_BYTES_MAX,
            "partition of {partition_len} bytes"
        );
        let mut buffer = Vec::with_capacity(2 + partition_len + sort.len());
        buffer.put_u16(partition_len as u16);
        buffer.put_slice(first);
        buffer.put_slice(second);
        buffer.put_slice(sort);
        Self(buffer.into())
    }

    /// The partition, which places the item.
    pub fn partition(&self) -> &[u8] {
        &self.0[2..self.split()]
    }

    /// The length of the sort key in bytes.
    pub fn sort_len(&self) -> usize {
        self.0.len() - self.split()
    }

    /// The sort key, which orders the item within its partition.
    pub fn sort(&self) -> Bytes {
        self.0.slice(self.split()..)
    }

    /// The encoded form: keys of one partition are contiguous in its order.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The encoded key.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// Decodes a key. None if `bytes` do not encode one.
    pub fn from_bytes(bytes: Bytes) -> Option<Self> {
        let length = usize::from(u16::from_be_bytes([*bytes.first()?, *bytes.get(1)?]));
        (bytes.len() >= 2 + length).then_some(Self(bytes))
    }

    fn split(&self) -> usize {
        2 + usize::from(u16::from_be_bytes([self.0[0], self.0[1]]))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}",
            self.partition().escape_ascii(),
            self.sort().escape_ascii()
        )
    }
}

/// How often an item has changed. Zero stands for a missing item.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Version(pub u64);

/// An attribute's name. Services name theirs by constants, which cost no allocation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name(Cow<'static, str>);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&'static str> for Name {
    fn from(name: &'static str) -> Self {
        Self(Cow::Borrowed(name))
    }
}

impl From<String> for Name {
    fn from(name: String) -> Self {
        Self(Cow::Owned(name))
    }
}

/// An attribute's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    /// Opaque bytes.
    Bytes(Bytes),
    /// A signed integer. An addition that overflows is refused as invalid.
    Integer(i64),
    /// A list of opaque elements. Versions of an item that have the same list share it.
    List(Arc<[Bytes]>),
}

impl Value {
    /// Its size as limits count it.
    pub fn bytes_len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Integer(_) => 8,
            Self::List(elements) => elements.iter().map(|element| element.len() + 4).sum(),
        }
    }
}

/// An item as read: its version and its attributes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Item {
    /// How often it has changed.
    pub version: Version,
    /// Its attributes, sorted by name. They are few, so a sorted vector beats a map.
    attributes: Vec<(Name, Value)>,
}

impl Item {
    /// An item from parts that a provider reads back. Attributes may come in any order, each name
    /// once.
    pub fn from_parts(version: Version, mut attributes: Vec<(Name, Value)>) -> Self {
        attributes.sort_by(|left, right| left.0.cmp(&right.0));
        Self::from_sorted(version, attributes)
    }

    /// As [`Item::from_parts`], for attributes in the order of their names.
    pub(super) fn from_sorted(version: Version, attributes: Vec<(Name, Value)>) -> Self {
        Self {
            version,
            attributes,
        }
    }

    /// Its attributes in the order of their names.
    pub fn attributes(&self) -> &[(Name, Value)] {
        &self.attributes
    }

    /// The attribute `name`, if present. Attributes are few and their names differ in length, so a
    /// linear search beats a binary one.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        self.attributes
            .iter()
            .find(|(candidate, _)| candidate.as_str() == name)
            .map(|(_, value)| value)
    }

    /// The attribute `name` if it holds bytes.
    pub fn bytes(&self, name: &str) -> Option<&Bytes> {
        match self.attribute(name)? {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The attribute `name` if it holds an integer.
    pub fn integer(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            Value::Integer(integer) => Some(*integer),
            _ => None,
        }
    }

    /// The attribute `name` if it holds a list; empty otherwise.
    pub fn list(&self, name: &str) -> &[Bytes] {
        match self.attribute(name) {
            Some(Value::List(elements)) => elements,
            _ => &[],
        }
    }

    /// Its size as limits count it.
    pub fn bytes_len(&self) -> usize {
        self.attributes
            .iter()
            .map(|(name, value)| name.as_str().len() + value.bytes_len())
            .sum()
    }

    pub(super) fn set(&mut self, name: Name, value: Value) {
        match self.position(name.as_str()) {
            Ok(index) => self.attributes[index].1 = value,
            Err(index) => self.attributes.insert(index, (name, value)),
        }
    }

    pub(super) fn unset(&mut self, name: &str) {
        if let Ok(index) = self.position(name) {
            self.attributes.remove(index);
        }
    }

    pub(super) fn attribute_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.attributes
            .iter_mut()
            .find(|(candidate, _)| candidate.as_str() == name)
            .map(|(_, value)| value)
    }

    fn position(&self, name: &str) -> Result<usize, usize> {
        self.attributes
            .binary_search_by(|(candidate, _)| candidate.as_str().cmp(name))
    }
}
