//! The types of volumes: keys, proposals, verdicts, and the parameters and results of calls.
//!
//! Clients send most of these types, so decoding checks the bounds of each key, range and name. The
//! bounds of a whole proposal are checked by [`Proposal::check`].

pub mod leases;
pub mod locks;
mod objects;
pub mod proposal;

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

pub use self::{
    leases::{LEASE, LEASE_POLL, Leased, Recall},
    locks::{Granted, Lock, LockBytes, LockFamily, LockMode, Owner, SessionId, Wait},
    objects::{CheckedObjects, ObjectFinding, Unreferenced},
    proposal::{
        Is, Patch, Predicate, Proposal, ProposalId, Refusal, StageId, Verdict, Write, Writes,
        encode_part,
    },
};
use crate::{Error, Result};

/// The longest group of a key, in bytes.
pub const GROUP_BYTES_MAX: usize = 16;
/// The longest name of a key within its group, in bytes. Escaped, it fits a sort key of any store,
/// so that keys are always stored in the order of their names.
pub const NAME_BYTES_MAX: usize = 480;
/// The longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 256 << 10;
/// The smallest block of a volume, in bytes.
pub const BLOCK_BYTES_MIN: u32 = 4 << 10;
/// The most keys that one call reads.
pub const KEYS_MAX: usize = 1_000;
/// The most bytes of keys and values in one answer. A call that would exceed it returns fewer. A
/// file's read of 1 MiB fits, with its attributes and whole blocks at both ends.
pub const PAGE_BYTES_MAX: usize = (1 << 20) + 2 * VALUE_BYTES_MAX;
/// The longest name of a pin, in bytes.
pub const PIN_NAME_BYTES_MAX: usize = 128;
/// How many numbers [`VolumeStore::reserve_numbers`](super::VolumeStore::reserve_numbers) gives out
/// at once.
pub const NUMBERS_RESERVED: u64 = 1_024;

/// A position in the log of one volume. A snapshot at a slot holds all commits up to it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Slot(pub u64);

/// A key of a volume: a group of 1 to [`GROUP_BYTES_MAX`] bytes, which places it, and a name of up
/// to [`NAME_BYTES_MAX`] bytes. Keys sort by group, then name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(Bytes, Bytes)")]
pub struct Key {
    group: Bytes,
    name: Bytes,
}

impl Key {
    /// The key `name` of `group`. Errors: `Invalid` if one of them has a wrong length.
    pub fn new(group: impl Into<Bytes>, name: impl Into<Bytes>) -> Result<Self> {
        let (group, name) = (group.into(), name.into());
        check_group(&group)?;
        check_name(&name)?;
        Ok(Self { group, name })
    }

    /// The group that places it.
    pub fn group(&self) -> &Bytes {
        &self.group
    }

    /// Its name within the group.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// The key of block `number` among the blocks at `self`: its name is followed by the number in
    /// eight bytes, so that blocks sort. Errors: `Invalid` if the name is too long for that.
    pub fn block(&self, number: u64) -> Result<Self> {
        let mut name = BytesMut::with_capacity(self.name.len() + 8);
        name.put_slice(&self.name);
        name.put_u64(number);
        Self::new(self.group.clone(), name)
    }

    /// Its approximate length in a record, in bytes.
    pub fn bytes_len(&self) -> usize {
        4 + self.group.len() + self.name.len()
    }
}

impl TryFrom<(Bytes, Bytes)> for Key {
    type Error = Error;

    fn try_from((group, name): (Bytes, Bytes)) -> Result<Self> {
        Self::new(group, name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (group, name) = (self.group.escape_ascii(), self.name.escape_ascii());
        write!(f, "{group}:{name}")
    }
}

/// The keys of one group from `from` (inclusive) to `until` (exclusive; none: to the group's end).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(Bytes, Bytes, Option<Bytes>)")]
pub struct KeyRange {
    group: Bytes,
    from: Bytes,
    until: Option<Bytes>,
}

impl KeyRange {
    /// The names of `group` from `from` to `until`. It may be empty. Errors: `Invalid` if a part
    /// has a wrong length.
    pub fn new(
        group: impl Into<Bytes>,
        from: impl Into<Bytes>,
        until: Option<Bytes>,
    ) -> Result<Self> {
        let (group, from) = (group.into(), from.into());
        check_group(&group)?;
        check_name(&from)?;
        check_name(until.as_ref().unwrap_or(&Bytes::new()))?;
        Ok(Self { group, from, until })
    }

    /// All names of `group`. Errors: `Invalid` if it has a wrong length.
    pub fn all(group: impl Into<Bytes>) -> Result<Self> {
        Self::new(group, Bytes::new(), None)
    }

    /// Its group.
    pub fn group(&self) -> &Bytes {
        &self.group
    }

    /// Its first name.
    pub fn from(&self) -> &Bytes {
        &self.from
    }

    /// The first name after it; `None`: it ends with its group.
    pub fn until(&self) -> Option<&Bytes> {
        self.until.as_ref()
    }

    /// The first key that it may hold.
    pub fn first(&self) -> Key {
        Key {
            group: self.group.clone(),
            name: self.from.clone(),
        }
    }

    /// Whether `key` is in it.
    pub fn contains(&self, key: &Key) -> bool {
        key.group == self.group && key.name >= self.from && !self.is_before(key)
    }

    /// Whether it ends at or before `key`.
    pub fn is_before(&self, key: &Key) -> bool {
        let is_past = |until: &Bytes| key.name >= *until;
        key.group > self.group
            || key.group == self.group && self.until.as_ref().is_some_and(is_past)
    }

    /// The rest of it, from `name` on. Errors: `Invalid` if `name` has a wrong length.
    pub fn starting_at(&self, name: Bytes) -> Result<Self> {
        Self::new(self.group.clone(), name, self.until.clone())
    }
}

impl TryFrom<(Bytes, Bytes, Option<Bytes>)> for KeyRange {
    type Error = Error;

    fn try_from((group, from, until): (Bytes, Bytes, Option<Bytes>)) -> Result<Self> {
        Self::new(group, from, until)
    }
}

/// A number, as keys store it: eight bytes, big-endian.
pub fn number_bytes(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

/// The number that a value stores; a missing value is zero. `None` if the value is no number.
pub fn number_in(value: Option<&Bytes>) -> Option<u64> {
    match value {
        None => Some(0),
        Some(value) => Some(u64::from_be_bytes(value[..].try_into().ok()?)),
    }
}

/// The moment of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum At {
    /// After every commit that was answered before the call.
    Tail,
    /// As of a slot, from [`VolumeStore::snapshot`](super::VolumeStore::snapshot) or another read.
    Slot(Slot),
}

/// A consistent state of the volume. It is readable for 60 s after the last call that names it, and
/// for 15 minutes in all. A pin keeps it longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its slot.
    pub slot: Slot,
}

/// The answer to a read of several keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Values {
    /// The slot at which they were read.
    pub slot: Slot,
    /// The values in the order of the keys; `None` for a key that is absent. Shorter than the
    /// request if [`PAGE_BYTES_MAX`] was reached; the first key is always answered.
    pub found: Vec<Option<Bytes>>,
}

/// The bounds of one page of a scan. A store lowers them to [`KEYS_MAX`] and [`PAGE_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageLimits {
    /// The most entries; at least 1.
    pub keys_max: usize,
    /// The most bytes of names and values. The first entry is returned even if it is longer.
    pub bytes_max: usize,
}

impl Default for PageLimits {
    fn default() -> Self {
        Self {
            keys_max: KEYS_MAX,
            bytes_max: PAGE_BYTES_MAX,
        }
    }
}

impl PageLimits {
    /// Whether a page with `keys` entries of `bytes` in all has room for another of `more` bytes.
    pub fn admit(self, keys: usize, bytes: usize, more: usize) -> bool {
        let bytes_max = self.bytes_max.min(PAGE_BYTES_MAX);
        keys == 0 || keys < self.keys_max.min(KEYS_MAX) && bytes + more <= bytes_max
    }
}

/// A key that a scan found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name; the scan names the group.
    pub name: Bytes,
    /// Its value.
    pub value: Bytes,
}

/// A page of a scan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The slot at which it was read.
    pub slot: Slot,
    /// The present keys in the order of their names.
    pub entries: Vec<Entry>,
    /// The name at which the next page starts; `None` at the end of the range.
    pub next: Option<Bytes>,
}

/// The groups that a caller wants to know about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Groups {
    /// All of them.
    All,
    /// Those in the list, which has at most [`KEYS_MAX`].
    Of(Vec<Bytes>),
}

impl Groups {
    /// Whether `key` is in one of them.
    pub fn contain(&self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Of(groups) => groups.contains(key.group()),
        }
    }
}

/// The answer to [`VolumeStore::changed_since`](super::VolumeStore::changed_since).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Changed {
    /// These keys, each once and sorted, were written after the slot, up to `to`.
    Keys {
        /// The slot up to which this is known.
        to: Slot,
        /// The keys.
        keys: Vec<Key>,
    },
    /// Any key may have changed: the slot is too old, or more keys changed than an answer holds.
    Everything {
        /// The slot up to which this is known.
        to: Slot,
    },
}

/// The size of a volume's blocks: a power of two from 4 KiB to 256 KiB, fixed when it is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32")]
pub struct BlockBytes(u32);

impl BlockBytes {
    /// Errors: `Invalid` unless `bytes` is a power of two in the range.
    pub fn new(bytes: u32) -> Result<Self> {
        let is_allowed =
            bytes.is_power_of_two() && (BLOCK_BYTES_MIN..=VALUE_BYTES_MAX as u32).contains(&bytes);
        if is_allowed {
            Ok(Self(bytes))
        } else {
            Err(Error::Invalid(
                "blocks have a power of two of bytes, from 4 KiB to 256 KiB",
            ))
        }
    }

    /// The size in bytes.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for BlockBytes {
    type Error = Error;

    fn try_from(bytes: u32) -> Result<Self> {
        Self::new(bytes)
    }
}

/// The space that a volume takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of names and newest values. Freed bytes count until they are collected.
    pub bytes: u64,
    /// Present keys.
    pub keys: u64,
    /// The most bytes that it may take; `None`: no bound.
    pub quota_bytes: Option<u64>,
}

/// The name of a pin: 1 to [`PIN_NAME_BYTES_MAX`] bytes of text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct PinName(String);

impl PinName {
    /// Errors: `Invalid` if `name` has a wrong length.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        if (1..=PIN_NAME_BYTES_MAX).contains(&name.len()) {
            Ok(Self(name))
        } else {
            Err(Error::Invalid("the name of a pin has 1 to 128 bytes"))
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for PinName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

fn check_group(group: &Bytes) -> Result<()> {
    if (1..=GROUP_BYTES_MAX).contains(&group.len()) {
        Ok(())
    } else {
        Err(Error::Invalid("the group of a key has 1 to 16 bytes"))
    }
}

fn check_name(name: &Bytes) -> Result<()> {
    if name.len() <= NAME_BYTES_MAX {
        Ok(())
    } else {
        Err(Error::Invalid("the name of a key has at most 480 bytes"))
    }
}
