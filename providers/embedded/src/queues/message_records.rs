//! The records of a message in the store, and their keys.

use bytes::{BufMut, Bytes, BytesMut};
use ports::{Error, Result, queue::Queued};

use crate::{
    records::{Record, RecordKey, Table},
    store::Store,
};

/// The stored part of a message.
#[derive(Debug)]
pub(crate) struct StoredMessage {
    /// The key of its records.
    pub(crate) key: Bytes,
    /// The body, if the message has no record because its queue is transient.
    pub(crate) body: Option<Bytes>,
}

pub(crate) fn body_of(store: &mut Store, message: &Queued<StoredMessage>) -> Result<Bytes> {
    if let Some(body) = &message.stored.body {
        return Ok(body.clone());
    }
    let key = RecordKey::new(Table::Message, message.stored.key.clone());
    match store.record(&key)? {
        Some(Record::Message(body)) => Ok(body),
        _ => Err(Error::corrupt(format!("read {:?}", message.sequence))),
    }
}

/// Sets the records of a message that is not transient.
pub(super) fn set_records(store: &mut Store, message: &Queued<StoredMessage>, body: Bytes) {
    let key = &message.stored.key;
    if let Some(id) = &message.deduplication {
        let key = RecordKey::new(Table::MessageId, key.clone());
        store
            .overlay
            .set(key, Some(Record::MessageId(id.clone())), false);
    }
    let key = RecordKey::new(Table::Message, key.clone());
    store.overlay.set(key, Some(Record::Message(body)), false);
}

pub(super) fn remove_records(store: &mut Store, message: Queued<StoredMessage>) {
    let StoredMessage { key, body } = message.stored;
    if body.is_some() {
        return;
    }
    if message.deduplication.is_some() {
        store
            .overlay
            .set(RecordKey::new(Table::MessageId, key.clone()), None, true);
    }
    if message.failures > 0 {
        store
            .overlay
            .set(RecordKey::new(Table::Attempts, key.clone()), None, true);
    }
    store
        .overlay
        .set(RecordKey::new(Table::Message, key), None, true);
}

/// `queue id | group length | group | sequence`, which sorts a queue's messages by group and then
/// by sequence.
pub(super) fn message_key(queue: u32, group: &[u8], sequence: u64) -> Bytes {
    let mut key = BytesMut::with_capacity(13 + group.len());
    key.put_u32(queue);
    key.put_u8(group.len() as u8);
    key.put_slice(group);
    key.put_u64(sequence);
    key.freeze()
}

/// The queue, group and sequence of a message's key.
pub(super) fn parse_message_key(key: &Bytes) -> Option<(u32, Bytes, u64)> {
    let queue = u32::from_be_bytes(key.get(..4)?.try_into().ok()?);
    let length = usize::from(*key.get(4)?);
    let sequence = u64::from_be_bytes(key.get(5 + length..)?.try_into().ok()?);
    Some((queue, key.slice(5..5 + length), sequence))
}

/// `queue id | deduplication id`.
pub(super) fn id_key(queue: u32, id: &[u8]) -> RecordKey {
    let mut key = BytesMut::with_capacity(4 + id.len());
    key.put_u32(queue);
    key.put_slice(id);
    RecordKey::new(Table::Deduplication, key.freeze())
}
