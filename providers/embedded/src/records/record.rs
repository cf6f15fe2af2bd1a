//! Records: everything the store keeps, in one ordered key space.
//!
//! Items, lane cursors, queues and messages are records of one engine. One journal, one order and
//! one durability point therefore cover them all (Q7). A record is absolute state, never a
//! difference. Changes to one record within a group can therefore be coalesced, and replaying a
//! journal twice is harmless.
//!
//! Invariants
//! - [`Record::decode`] is the inverse of [`Record::encode`], and answers none for any other bytes.
//! - [`Record::encoded_bound`] is never below the encoded length, because changes
//!   reserve room by it (rule P6).

use std::sync::Arc;

use bytes::Bytes;
use ports::{
    key_value::{
        Item, Name, Value, Version,
        evaluate::{Memory, Stored},
    },
    queue::{DeadLetter, LetterId, OnFailure, QueueOptions, Retention, Sequence},
};

use super::codec::{Reader, Write, unzigzag, zigzag};

/// The kind of record that a key names; the first byte of the encoded key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Table {
    /// One record: the ends of earlier incarnations.
    Incarnations = 0,
    /// Key-value items.
    Item = 1,
    /// Cursors of ordered batches.
    Lane = 2,
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
            2 => Self::Lane,
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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueRecord {
    pub(crate) id: u32,
    pub(crate) options: QueueOptions,
}

/// How often a message was delivered and failed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Attempts {
    pub(crate) deliveries: u32,
    pub(crate) failures: u32,
    pub(crate) reason: String,
}

/// The state of one record. A clone shares the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    Incarnations(Arc<Vec<(u64, u64)>>),
    Item(Arc<StoredItem>),
    Lane(u64),
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
            Self::Lane(_) | Self::Deduplication(_) => 10,
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
            Self::Incarnations(ends) => {
                buffer.put_varint(ends.len() as u64);
                for (incarnation, end) in ends.iter() {
                    buffer.put_varint(*incarnation);
                    buffer.put_varint(*end);
                }
            }
            Self::Item(item) => encode_item(item, buffer),
            Self::Lane(number) | Self::Deduplication(number) => buffer.put_varint(*number),
            Self::Queue(queue) => {
                buffer.put_varint(u64::from(queue.id));
                buffer.put_varint(queue.options.visibility_timeout_ms);
                buffer.put_varint(u64::from(queue.options.attempts_max));
                buffer.push(match queue.options.on_failure {
                    OnFailure::Block => 0,
                    OnFailure::DeadLetter => 1,
                });
                buffer.push(match queue.options.retention {
                    Retention::Durable => 0,
                    Retention::Transient => 1,
                });
            }
            Self::Message(bytes) | Self::MessageId(bytes) => buffer.extend_from_slice(bytes),
            Self::Attempts(attempts) => {
                buffer.put_varint(u64::from(attempts.deliveries));
                buffer.put_varint(u64::from(attempts.failures));
                buffer.put_bytes(attempts.reason.as_bytes());
            }
            Self::DeadLetter(letter) => {
                buffer.extend_from_slice(&letter.id.0.to_le_bytes());
                buffer.put_bytes(&letter.group);
                buffer.put_varint(letter.sequence.0);
                buffer.put_varint(u64::from(letter.attempts));
                buffer.put_bytes(letter.reason.as_bytes());
                buffer.push(u8::from(letter.deduplication.is_some()));
                if let Some(id) = &letter.deduplication {
                    buffer.put_bytes(id);
                }
                buffer.extend_from_slice(&letter.body);
            }
        }
    }

    /// Decodes a record of `table` from `bytes`, which the payloads share; none if the bytes are no
    /// such record.
    pub(crate) fn decode(table: Table, bytes: Bytes) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let record = match table {
            Table::Incarnations => {
                let count = reader.count()?;
                let mut ends = Vec::with_capacity(count.min(4096));
                for _ in 0..count {
                    ends.push((reader.varint()?, reader.varint()?));
                }
                Self::Incarnations(Arc::new(ends))
            }
            Table::Item => Self::Item(Arc::new(decode_item(&mut reader)?)),
            Table::Lane => Self::Lane(reader.varint()?),
            Table::Deduplication => Self::Deduplication(reader.varint()?),
            Table::Queue => Self::Queue(Arc::new(decode_queue(&mut reader)?)),
            Table::Message => return Some(Self::Message(reader.rest())),
            Table::MessageId => return Some(Self::MessageId(reader.rest())),
            Table::Attempts => Self::Attempts(Arc::new(Attempts {
                deliveries: u32::try_from(reader.varint()?).ok()?,
                failures: u32::try_from(reader.varint()?).ok()?,
                reason: reader.text()?,
            })),
            Table::DeadLetter => {
                return decode_letter(reader).map(|letter| Self::DeadLetter(Arc::new(letter)));
            }
        };
        reader.is_empty().then_some(record)
    }
}

fn decode_letter(mut reader: Reader) -> Option<DeadLetter> {
    Some(DeadLetter {
        id: LetterId(u128::from_le_bytes(reader.take(16)?[..].try_into().ok()?)),
        group: reader.bytes()?,
        sequence: Sequence(reader.varint()?),
        attempts: u32::try_from(reader.varint()?).ok()?,
        reason: reader.text()?,
        deduplication: match reader.byte()? {
            0 => None,
            1 => Some(reader.bytes()?),
            _ => return None,
        },
        body: reader.rest(),
    })
}

fn decode_queue(reader: &mut Reader) -> Option<QueueRecord> {
    Some(QueueRecord {
        id: u32::try_from(reader.varint()?).ok()?,
        options: QueueOptions {
            visibility_timeout_ms: reader.varint()?,
            attempts_max: u32::try_from(reader.varint()?).ok()?,
            on_failure: match reader.byte()? {
                0 => OnFailure::Block,
                1 => OnFailure::DeadLetter,
                _ => return None,
            },
            retention: match reader.byte()? {
                0 => Retention::Durable,
                1 => Retention::Transient,
                _ => return None,
            },
        },
    })
}

/// The encoded length of an item's operation memory.
fn memory_bytes(stored: &Stored) -> usize {
    let bytes = |memory: &Memory| postcard::experimental::serialized_size(memory).expect(ENCODES);
    stored.memory.as_deref().map_or(0, bytes)
}

const ENCODES: &str = "a memory is plain numbers, which always encode";

const HAS_ITEM: u8 = 1;
const HAS_MEMORY: u8 = 2;

fn encode_item(item: &StoredItem, buffer: &mut Vec<u8>) {
    let stored = &item.stored;
    let flags =
        u8::from(stored.item.is_some()) * HAS_ITEM + u8::from(stored.memory.is_some()) * HAS_MEMORY;
    buffer.push(flags);
    buffer.put_varint(stored.version.0);
    match &stored.item {
        None => buffer.put_varint(item.expires_ms),
        Some(present) => {
            buffer.put_varint(present.version.0);
            buffer.put_varint(present.attributes().len() as u64);
            for (name, value) in present.attributes() {
                buffer.put_bytes(name.as_str().as_bytes());
                encode_value(value, buffer);
            }
        }
    }
    if let Some(memory) = &stored.memory {
        let memory = postcard::to_stdvec(&**memory).expect(ENCODES);
        buffer.extend_from_slice(&memory);
    }
}

fn encode_value(value: &Value, buffer: &mut Vec<u8>) {
    match value {
        Value::Bytes(bytes) => {
            buffer.push(0);
            buffer.put_bytes(bytes);
        }
        Value::Integer(integer) => {
            buffer.push(1);
            buffer.put_varint(zigzag(*integer));
        }
        Value::List(elements) => {
            buffer.push(2);
            buffer.put_varint(elements.len() as u64);
            for element in elements.iter() {
                buffer.put_bytes(element);
            }
        }
    }
}

fn decode_item(reader: &mut Reader) -> Option<StoredItem> {
    let flags = reader.byte()?;
    let version = Version(reader.varint()?);
    let (mut item, mut expires_ms) = (None, 0);
    if flags & HAS_ITEM == 0 {
        expires_ms = reader.varint()?;
    } else {
        let item_version = Version(reader.varint()?);
        let count = reader.count()?;
        let mut attributes = Vec::with_capacity(count);
        for _ in 0..count {
            attributes.push((Name::from(reader.text()?), decode_value(reader)?));
        }
        item = Some(Arc::new(Item::from_parts(item_version, attributes)));
    }
    let mut memory = None;
    if flags & HAS_MEMORY != 0 {
        let bytes = std::mem::replace(reader, Reader::new(Bytes::new())).rest();
        memory = Some(Box::new(postcard::from_bytes::<Memory>(&bytes).ok()?));
    }
    Some(StoredItem {
        stored: Stored {
            item,
            version,
            memory,
        },
        expires_ms,
    })
}

fn decode_value(reader: &mut Reader) -> Option<Value> {
    Some(match reader.byte()? {
        0 => Value::Bytes(reader.bytes()?),
        1 => Value::Integer(unzigzag(reader.varint()?)),
        2 => {
            let count = reader.count()?;
            let mut elements = Vec::with_capacity(count.min(4096));
            for _ in 0..count {
                elements.push(reader.bytes()?);
            }
            Value::List(elements.into())
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
