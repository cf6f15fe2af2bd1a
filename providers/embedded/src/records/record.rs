//! Records: everything the store keeps, in one ordered key space.
//!
//! Items, queues and messages are records of one engine. One journal, one order and one durability
//! point therefore cover them all (Q7). A record is absolute state, never a difference. Changes to
//! one record within a group can therefore be coalesced, and replaying a journal twice is harmless.
//!
//! Invariants
//! - [`Record::decode`] is the inverse of [`Record::encode`], and answers none for any other bytes.
//! - [`Record::encoded_bound`] is never below the encoded length, because changes
//!   reserve room by it (rule P6).

use std::sync::Arc;

use bytes::Bytes;
use ports::{
    key_value::{
        Item,
        evaluate::{Memory, Stored},
    },
    queue::{DeadLetter, QueueOptions},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The kind of record that a key names; the first byte of the encoded key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Table {
    /// One record: the ends of earlier incarnations.
    Incarnations = 0,
    /// Key-value items.
    Item = 1,
    /// Queues by name.
    Queue = 3,
    /// Messages by queue, group and sequence.
    Message = 4,
    /// Failed deliveries of a message, under the message's key.
    Attempts = 5,
    /// Deduplication ids by queue.
    Deduplication = 6,
    /// Dead letters by queue and order of death.
    DeadLetter = 7,
    /// The deduplication id of a message that has one, under the message's key.
    MessageId = 8,
}

impl Table {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Incarnations,
            1 => Self::Item,
            3 => Self::Queue,
            4 => Self::Message,
            5 => Self::Attempts,
            6 => Self::Deduplication,
            7 => Self::DeadLetter,
            8 => Self::MessageId,
            _ => return None,
        })
    }
}

/// The key of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RecordKey {
    pub(crate) table: Table,
    pub(crate) key: Bytes,
}

impl RecordKey {
    pub(crate) fn new(table: Table, key: Bytes) -> Self {
        Self { table, key }
    }

    /// Appends the encoded key: the table's byte, then the key.
    pub(crate) fn write(&self, buffer: &mut Vec<u8>) {
        buffer.push(self.table as u8);
        buffer.extend_from_slice(&self.key);
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (table, key) = bytes.split_first()?;
        Some(Self {
            table: Table::from_byte(*table)?,
            key: Bytes::copy_from_slice(key),
        })
    }
}

/// An item with its operation memory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct StoredItem {
    pub(crate) stored: Stored,
    /// When a deleted item that remembers operations expires, in milliseconds since the epoch.
    pub(crate) expires_ms: u64,
}

impl StoredItem {
    /// Whether only an operation memory is left, and it has expired.
    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.stored.item.is_none() && self.expires_ms <= now_ms
    }

    pub(crate) fn bytes_len(&self) -> usize {
        self.stored.item.as_deref().map_or(0, Item::bytes_len)
    }
}

/// A queue's definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueueRecord {
    pub(crate) id: u32,
    pub(crate) options: QueueOptions,
}

/// How often a message was delivered and failed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Attempts {
    pub(crate) deliveries: u32,
    pub(crate) failures: u32,
    pub(crate) reason: String,
}

/// The state of one record. A clone shares the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    Incarnations(Arc<Vec<(u64, u64)>>),
    Item(StoredItem),
    Queue(Arc<QueueRecord>),
    Message(Bytes),
    Attempts(Arc<Attempts>),
    Deduplication(u64),
    DeadLetter(Arc<DeadLetter>),
    MessageId(Bytes),
}

impl Record {
    /// An upper bound of the encoded length.
    pub(crate) fn encoded_bound(&self) -> usize {
        match self {
            Self::Incarnations(ends) => 8 + ends.len() * 20,
            Self::Item(item) => {
                let attributes = item
                    .stored
                    .item
                    .as_deref()
                    .map_or(&[][..], Item::attributes);
                48 + item.bytes_len() + attributes.len() * 20 + memory_bytes(&item.stored)
            }
            Self::Deduplication(_) => 10,
            Self::Queue(_) => 40,
            Self::Message(bytes) | Self::MessageId(bytes) => bytes.len(),
            Self::Attempts(attempts) => 20 + attempts.reason.len(),
            Self::DeadLetter(letter) => {
                let id = letter.deduplication.as_ref().map_or(0, Bytes::len);
                66 + letter.group.len() + letter.body.len() + letter.reason.len() + id
            }
        }
    }

    /// Appends the encoded form.
    pub(crate) fn encode(&self, buffer: &mut Vec<u8>) {
        match self {
            Self::Incarnations(ends) => put(ends, buffer),
            Self::Item(item) => put(item, buffer),
            Self::Deduplication(expires) => put(expires, buffer),
            Self::Queue(queue) => put(queue, buffer),
            Self::Message(bytes) | Self::MessageId(bytes) => buffer.extend_from_slice(bytes),
            Self::Attempts(attempts) => put(attempts, buffer),
            Self::DeadLetter(letter) => put(letter, buffer),
        }
    }

    /// Decodes a record of `table` from `bytes`, which a message's body shares; none if the bytes
    /// are no such record.
    pub(crate) fn decode(table: Table, bytes: Bytes) -> Option<Self> {
        Some(match table {
            Table::Incarnations => Self::Incarnations(read(&bytes)?),
            Table::Item => Self::Item(read(&bytes)?),
            Table::Deduplication => Self::Deduplication(read(&bytes)?),
            Table::Queue => Self::Queue(read(&bytes)?),
            Table::Message => Self::Message(bytes),
            Table::MessageId => Self::MessageId(bytes),
            Table::Attempts => Self::Attempts(read(&bytes)?),
            Table::DeadLetter => Self::DeadLetter(read(&bytes)?),
        })
    }
}

const ENCODES: &str = "records hold only values that postcard encodes";

/// Appends the encoded form of `value`.
pub(crate) fn put<T: Serialize>(value: &T, buffer: &mut Vec<u8>) {
    postcard::to_io(value, buffer).expect(ENCODES);
}

/// The value that `bytes` encode, if they encode nothing else.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}

/// The encoded length of an item's operation memory.
fn memory_bytes(stored: &Stored) -> usize {
    let bytes = |memory: &Memory| postcard::experimental::serialized_size(memory).expect(ENCODES);
    stored.memory.as_deref().map_or(0, bytes)
}

#[cfg(test)]
mod tests;
