//! The stored records and their encoding.
//!
//! Every record starts with a version byte, so that a later build reads records of an earlier one.
//! The encoding is postcard's. Values of keys are stored unchanged, in an attribute of their own: a
//! byte in front of them would cost a copy of each.

use std::fmt;

use bytes::Bytes;
use ports::DurabilityPoint;
use primitives::RecordFormat;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error as _, SeqAccess, Visitor},
};

use crate::model::{After, Attempt, Key, NodeId, Position, Timestamp, TransactionId, Version};

/// The version of the records below, and of the keys of `layout.rs`. A change of any of them
/// increments it. Once a version was released, a change also adds a decoder for the old one.
pub const RECORD_VERSION: u8 = 1;

const FORMAT: RecordFormat = RecordFormat::new(RECORD_VERSION);

/// The approximate memory of the commits of an announcement, at most; larger ones are read in the
/// store.
pub(crate) const ANNOUNCED_MEMORY_MAX: usize = 16 << 20;

/// How long most records are at most, encoded.
const BYTES_LEN: usize = 128;

/// Encodes `record` after its version byte.
pub fn encode<T: Serialize>(record: &T) -> Bytes {
    FORMAT.encode(record, BYTES_LEN)
}

/// Encodes `record` after `head`, so that a long record is written once.
pub(crate) fn encode_behind<T: Serialize>(head: &[u8], record: &T) -> Bytes {
    FORMAT.encode_after(head, record, BYTES_LEN)
}

/// Decodes the output of [`encode`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8], what: &'static str) -> ports::Result<T> {
    FORMAT.decode(bytes, what)
}

/// Decodes a list whose items together take at most `bytes_max` of memory: the shortest encoding of
/// an item may be much smaller than the item.
pub(crate) fn bounded_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    bytes: D,
    bytes_max: usize,
    bytes_len: fn(&T) -> usize,
) -> Result<Vec<T>, D::Error> {
    struct Bounded<T>(usize, fn(&T) -> usize);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Bounded<T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list that takes at most {} bytes", self.0)
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let Self(mut left, bytes_len) = self;
            let mut items = Vec::new();
            while let Some(item) = list.next_element()? {
                let rest = left.checked_sub(bytes_len(&item));
                left = rest.ok_or_else(|| A::Error::custom("the list is too long"))?;
                items.push(item);
            }
            Ok(items)
        }
    }
    bytes.deserialize_seq(Bounded(bytes_max, bytes_len))
}

/// The writes of a record from another node.
fn bounded_writes<'de, D: Deserializer<'de>>(bytes: D) -> Result<Vec<Write>, D::Error> {
    bounded_list(bytes, ANNOUNCED_MEMORY_MAX, Write::memory_bytes)
}

/// One key of a write set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The key.
    pub key: Key,
    /// The number of the attempt's write.
    pub write: u32,
    /// Where its value is.
    pub place: Place,
}

impl Write {
    /// Its approximate encoded length in bytes.
    pub fn bytes_len(&self) -> usize {
        32 + self.key.name().len()
    }

    /// Its approximate size in memory.
    fn memory_bytes(&self) -> usize {
        64 + self.key.name().len()
    }

    /// The length of its value in bytes.
    pub fn value_bytes(&self) -> u64 {
        match self.place {
            Place::Inline { bytes } | Place::Chunks { bytes, .. } | Place::Packed { bytes, .. } => {
                u64::from(bytes)
            }
            Place::Gone => 0,
        }
    }
}

/// Where a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// In the version item.
    Inline {
        /// Its length in bytes.
        bytes: u32,
    },
    /// Nowhere: the key is deleted.
    Gone,
    /// In separate chunks, under its attempt and write.
    Chunks {
        /// Its length in bytes.
        bytes: u32,
        /// Its number of chunks.
        chunks: u32,
        /// The CRC-32 of all of it.
        crc: u32,
    },
    /// In a pack in the object store. The version item holds its pack and position, which may
    /// change.
    Packed {
        /// Its length in bytes.
        bytes: u32,
        /// The CRC-32 of it.
        crc: u32,
    },
}

impl Place {
    /// Its number of chunks.
    pub fn chunks(self) -> u32 {
        match self {
            Self::Chunks { chunks, .. } => chunks,
            Self::Inline { .. } | Self::Gone | Self::Packed { .. } => 0,
        }
    }
}

/// The write set of an attempt in its slot and its row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteSet {
    /// The writes themselves, in the order of the keys.
    Inline(Vec<Write>),
    /// Too large for that: the number of separate parts.
    Parts(u32),
}

impl WriteSet {
    /// Its number of parts.
    pub fn parts(&self) -> u32 {
        match self {
            Self::Inline(_) => 0,
            Self::Parts(parts) => *parts,
        }
    }

    /// The approximate encoded length of the inline part.
    pub fn bytes_len(&self) -> usize {
        match self {
            Self::Inline(writes) => writes.iter().map(Write::bytes_len).sum(),
            Self::Parts(_) => 0,
        }
    }
}

/// The contents of a committed decision row beside id and attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRecord {
    /// The version of all its writes.
    pub version: Version,
    /// The slot that announced it.
    pub position: Position,
    /// Its writes.
    pub writes: WriteSet,
    /// The number of its effects.
    pub effects: u32,
}

impl StoredRecord {
    /// The record as memory shares it: `attempt` of `id` made these `writes`.
    pub(crate) fn with(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        writes: Vec<Write>,
        point: DurabilityPoint,
    ) -> CommitRecord {
        CommitRecord {
            id: id.clone(),
            attempt,
            version: self.version,
            position: self.position,
            writes,
            parts: self.writes.parts(),
            point,
        }
    }

    /// The token for its client; `None` if it wrote nothing.
    pub fn after(&self) -> Option<After> {
        let wrote_nothing = matches!(&self.writes, WriteSet::Inline(writes) if writes.is_empty());
        (!wrote_nothing).then_some(After {
            version: self.version,
            position: self.position,
        })
    }
}

/// A slot of a node's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSlot {
    /// When it was written, by its writer's wall clock; only for retention.
    pub written_ms: u64,
    /// The highest timestamp given up to here, which a successor exceeds.
    pub timestamp: Timestamp,
    /// The attempts that may leave data in the store.
    pub entries: Vec<Entry>,
}

/// An attempt that may leave data in the store, announced before or with that data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// A begin of a client id, which takes its row.
    Began {
        /// Its id.
        id: TransactionId,
        /// The attempt.
        attempt: Attempt,
    },
    /// A commit that writes its data, then its row.
    Committing {
        /// Its id.
        id: TransactionId,
        /// The attempt.
        attempt: Attempt,
        /// Whether it has a client id, whose row exists since the begin.
        named: bool,
        /// Its timestamp.
        timestamp: Timestamp,
        /// Its writes.
        writes: WriteSet,
    },
    /// An open transaction that spills some values. Confirmed before their first byte is written.
    Spilled {
        /// Its id.
        id: TransactionId,
        /// The attempt.
        attempt: Attempt,
        /// The spilled writes.
        writes: Vec<Write>,
    },
}

impl Entry {
    /// Its approximate encoded length in bytes.
    pub fn bytes_len(&self) -> usize {
        let writes = match self {
            Self::Committing { writes, .. } => writes.bytes_len(),
            Self::Spilled { writes, .. } => writes.iter().map(Write::bytes_len).sum(),
            Self::Began { .. } => 0,
        };
        let (Self::Began { id, .. } | Self::Committing { id, .. } | Self::Spilled { id, .. }) =
            self;
        48 + id.as_bytes().len() + writes
    }
}

/// A slot of the sequencer's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequencedSlot {
    /// When it was written, by its writer's wall clock.
    pub written_ms: u64,
    /// The node that wrote it: the sequencer, until another node seals the log.
    pub by: NodeId,
    /// The rows of all decisions up to this slot are settled.
    pub settled: u64,
    /// Its commits, in order.
    pub commits: Vec<SequencedCommit>,
    /// Attempts that never commit, closed because a node asked for their outcome.
    pub closed: Vec<(TransactionId, Attempt)>,
}

/// A commit in the sequencer's log: its presence there decides it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequencedCommit {
    /// Its id.
    pub id: TransactionId,
    /// The attempt.
    pub attempt: Attempt,
    /// Its writes.
    pub writes: WriteSet,
    /// The number of its effects.
    pub effects: u32,
}

impl SequencedCommit {
    /// Its approximate encoded length in bytes.
    pub fn bytes_len(&self) -> usize {
        48 + self.id.as_bytes().len() + self.writes.bytes_len()
    }

    /// The record for its row, given its index `place` within `slot`.
    pub fn record(&self, slot: u64, place: u32) -> StoredRecord {
        StoredRecord {
            version: Version::sequenced(slot, place),
            position: Position {
                log: NodeId::SEQUENCER,
                slot,
            },
            writes: self.writes.clone(),
            effects: self.effects,
        }
    }
}

/// A committed attempt, as index entries and read sets share it, and as nodes announce it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// Its id.
    pub id: TransactionId,
    /// The attempt that committed.
    pub attempt: Attempt,
    /// The version of all its writes.
    pub version: Version,
    /// The slot that announced it.
    pub position: Position,
    /// Its writes, in the order of the keys; each key once.
    #[serde(deserialize_with = "bounded_writes")]
    pub writes: Vec<Write>,
    /// The number of separate parts of its write set.
    pub parts: u32,
    /// It is durable once this point is. Nothing is announced before it is durable.
    #[serde(skip)]
    pub point: DurabilityPoint,
}

impl CommitRecord {
    /// Its write to `key`.
    pub fn write_of(&self, key: &Key) -> Option<&Write> {
        let place = self
            .writes
            .binary_search_by(|write| write.key.cmp(key))
            .ok()?;
        Some(&self.writes[place])
    }

    /// The token for its client; `None` if it wrote nothing.
    pub fn after(&self) -> Option<After> {
        (!self.writes.is_empty()).then_some(After {
            version: self.version,
            position: self.position,
        })
    }

    /// The length of its value of `key`.
    pub fn value_bytes(&self, key: &Key) -> u64 {
        self.write_of(key).map_or(0, Write::value_bytes)
    }

    /// Its approximate size in memory.
    pub fn bytes_len(&self) -> usize {
        200 + self.writes.iter().map(Write::memory_bytes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_read_back_as_it_was_written() {
        let (node, key) = (NodeId(3), Key::new("k").expect("short"));
        let attempt = Attempt { node, sequence: 4 };
        let id = TransactionId::new("order-1").expect("a name");
        let writes = WriteSet::Inline(vec![Write {
            key,
            write: 1,
            place: Place::Gone,
        }]);
        let timestamp = Timestamp(77);
        let committing = Entry::Committing {
            id: id.clone(),
            attempt,
            named: true,
            timestamp,
            writes,
        };
        let place = Place::Chunks {
            bytes: u32::MAX,
            chunks: u32::MAX,
            crc: u32::MAX,
        };
        let writes = vec![
            Write {
                key: Key::new("l").expect("short"),
                write: u32::MAX,
                place
            };
            3
        ];
        let spilled = Entry::Spilled {
            id: id.clone(),
            attempt,
            writes,
        };
        let slot = StoredSlot {
            written_ms: 5,
            timestamp,
            entries: vec![
                Entry::Began { id, attempt },
                spilled.clone(),
                committing.clone(),
            ],
        };
        let bytes = encode(&slot);
        assert_eq!(
            decode::<StoredSlot>(&bytes, "a slot").expect("decodes"),
            slot
        );
        for entry in [spilled, committing] {
            assert!(encode(&entry).len() <= entry.bytes_len());
        }
    }

    #[test]
    fn a_record_of_another_version_is_refused_by_number() {
        let mut bytes = encode(&Timestamp(5)).to_vec();
        assert_eq!(
            decode::<Timestamp>(&bytes, "a timestamp").expect("decodes"),
            Timestamp(5)
        );
        bytes[0] = 9;
        let refused = decode::<Timestamp>(&bytes, "a timestamp").expect_err("refused");
        assert!(refused.to_string().contains("version 9"), "{refused}");
        assert!(decode::<Timestamp>(&[], "a timestamp").is_err());
    }
}
