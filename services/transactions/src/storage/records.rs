//! What is stored, and how it is encoded.
//!
//! Every record starts with a version byte, so that a later build reads what an earlier one wrote; the encoding is
//! postcard's. Values of keys are stored as they came, in an attribute of their own: a byte in front of them would
//! cost a copy of each.

use bytes::{BufMut, Bytes, BytesMut};
use ports::DurabilityPoint;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::model::{After, Attempt, Key, NodeId, Position, Timestamp, TransactionId, Version};

/// The layout of the records below, and of the keys of `layout.rs`. A change of any of them raises it and, once a
/// version was released, adds a decoder for the old one.
pub const RECORD_VERSION: u8 = 1;

/// Encodes `record` behind its version byte.
pub fn encode<T: Serialize>(record: &T) -> Bytes {
    encode_behind(&[], record)
}

/// The same behind `head`: what is long is written once.
pub(crate) fn encode_behind<T: Serialize>(head: &[u8], record: &T) -> Bytes {
    let mut buffer = BytesMut::with_capacity(128);
    buffer.put_slice(head);
    buffer.put_u8(RECORD_VERSION);
    let writer = postcard::to_io(record, buffer.writer())
        .expect("records hold nothing that cannot be encoded");
    writer.into_inner().freeze()
}

/// Decodes what [`encode`] made.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], what: &'static str) -> ports::Result<T> {
    match bytes.split_first() {
        Some((&RECORD_VERSION, rest)) => postcard::from_bytes(rest)
            .map_err(|cause| ports::Error::corrupt(format!("decode {what}")).caused_by(cause)),
        Some((version, _)) => Err(ports::Error::corrupt(format!(
            "decode {what} of record version {version}, this build reads {RECORD_VERSION}"
        ))),
        None => Err(ports::Error::corrupt(format!("decode {what} from nothing"))),
    }
}

/// One key of a write set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The key.
    pub key: Key,
    /// Which of the attempt's writes it is.
    pub write: u32,
    /// Where its value is.
    pub place: Place,
}

impl Write {
    /// About how long it is encoded.
    pub fn bytes_len(&self) -> usize {
        32 + self.key.name().len()
    }

    /// How long its value is.
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
        /// How long it is.
        bytes: u32,
    },
    /// Nowhere: the key is deleted.
    Gone,
    /// In chunks of its own, under its attempt and write.
    Chunks {
        /// How long it is.
        bytes: u32,
        /// In how many chunks.
        chunks: u32,
        /// The CRC-32 of all of it.
        crc: u32,
    },
    /// In a pack, among the objects. The version item says in which, and where: it may move.
    Packed {
        /// How long it is.
        bytes: u32,
        /// The CRC-32 of it.
        crc: u32,
    },
}

impl Place {
    /// In how many chunks it is.
    pub fn chunks(self) -> u32 {
        match self {
            Self::Chunks { chunks, .. } => chunks,
            Self::Inline { .. } | Self::Gone | Self::Packed { .. } => 0,
        }
    }
}

/// The write set of an attempt as its slot and its row hold it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteSet {
    /// Itself, in the order of the keys.
    Inline(Vec<Write>),
    /// Too large for that: so many parts of their own.
    Parts(u32),
}

impl WriteSet {
    /// In how many parts it is.
    pub fn parts(&self) -> u32 {
        match self {
            Self::Inline(_) => 0,
            Self::Parts(parts) => *parts,
        }
    }

    /// About how long what is in itself is encoded.
    pub fn bytes_len(&self) -> usize {
        match self {
            Self::Inline(writes) => writes.iter().map(Write::bytes_len).sum(),
            Self::Parts(_) => 0,
        }
    }
}

/// What a decision row holds beside id and attempt once it is committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRecord {
    /// The version of all it wrote.
    pub version: Version,
    /// Where it was announced.
    pub position: Position,
    /// What it wrote.
    pub writes: WriteSet,
    /// How many effects it has.
    pub effects: u32,
}

impl StoredRecord {
    /// What its client carries; none if it wrote nothing.
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
    /// When it was written, by its writer's wall clock; for retention alone.
    pub written_ms: u64,
    /// The highest timestamp given up to here: a successor goes on above it.
    pub timestamp: Timestamp,
    /// What may leave something in the store.
    pub entries: Vec<Entry>,
}

/// What may leave something in the store, announced before or with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// A named begin takes its row.
    Began {
        /// Its name.
        id: TransactionId,
        /// The attempt.
        attempt: Attempt,
    },
    /// A commit writes its data, then its row.
    Committing {
        /// Its name.
        id: TransactionId,
        /// The attempt.
        attempt: Attempt,
        /// Whether the client chose the name: its row is there since the begin.
        named: bool,
        /// Its timestamp.
        timestamp: Timestamp,
        /// What it writes.
        writes: WriteSet,
    },
    /// An open transaction writes some of its values ahead. Confirmed before the first byte of them is written.
    Spilled {
        /// Its name.
        id: TransactionId,
        /// The attempt.
        attempt: Attempt,
        /// What is written ahead.
        writes: Vec<Write>,
    },
}

impl Entry {
    /// About how long it is encoded.
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
    /// Who wrote it: the sequencer, as long as nobody else has sealed the log.
    pub by: NodeId,
    /// The rows of all that is decided up to this slot say so.
    pub settled: u64,
    /// What commits in it, in this order.
    pub commits: Vec<SequencedCommit>,
    /// What never will: somebody wanted to know.
    pub closed: Vec<(TransactionId, Attempt)>,
}

/// A commit in the sequencer's log: that it stands there decides it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequencedCommit {
    /// Its name.
    pub id: TransactionId,
    /// The attempt.
    pub attempt: Attempt,
    /// What it wrote.
    pub writes: WriteSet,
    /// How many effects it has.
    pub effects: u32,
}

impl SequencedCommit {
    /// About how long it is encoded.
    pub fn bytes_len(&self) -> usize {
        48 + self.id.as_bytes().len() + self.writes.bytes_len()
    }

    /// What its row will say: it has this place within `slot`.
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

/// A committed attempt, as index entries and read sets share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRecord {
    /// Its name.
    pub id: TransactionId,
    /// The attempt that committed.
    pub attempt: Attempt,
    /// The version of all it wrote.
    pub version: Version,
    /// Where it was announced.
    pub position: Position,
    /// What it wrote, in the order of the keys; each key once.
    pub writes: Vec<Write>,
    /// In how many parts that is kept beside its row.
    pub parts: u32,
    /// It is durable once this point is.
    pub point: DurabilityPoint,
}

impl CommitRecord {
    /// What it wrote to `key`.
    pub fn write_of(&self, key: &Key) -> Option<&Write> {
        let place = self
            .writes
            .binary_search_by(|write| write.key.cmp(key))
            .ok()?;
        Some(&self.writes[place])
    }

    /// What its client carries; none if it wrote nothing.
    pub fn after(&self) -> Option<After> {
        (!self.writes.is_empty()).then_some(After {
            version: self.version,
            position: self.position,
        })
    }

    /// How long what it wrote to `key` is.
    pub fn value_bytes(&self, key: &Key) -> u64 {
        self.write_of(key).map_or(0, Write::value_bytes)
    }

    /// About how much memory it takes.
    pub fn bytes_len(&self) -> usize {
        200 + self
            .writes
            .iter()
            .map(|write| 64 + write.key.name().len())
            .sum::<usize>()
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
