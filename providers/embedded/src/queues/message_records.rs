//! The records of a message in the store, and their keys.

use bytes::{BufMut, Bytes, BytesMut};
use ports::{Error, Result};

use super::group::QueuedMessage;
use crate::{
    records::{Record, RecordKey, Table},
    store::Store,
};

pub(crate) fn body_of(store: &mut Store, message: &QueuedMessage) -> Result<Bytes> {
    if let Some(body) = &message.body {
        return Ok(body.clone());
    }
    match store
        .record(&RecordKey::new(Table::Message, message.key.clone()))?
        .value
    {
        Some(Record::Message(body)) => Ok(body),
        _ => Err(Error::corrupt(format!("read message {}", message.sequence))),
    }
}

/// Sets the records of a message that is not transient.
pub(super) fn set_records(store: &mut Store, message: &QueuedMessage, body: Bytes) {
    if let Some(id) = &message.id {
        let key = RecordKey::new(Table::MessageId, message.key.clone());
        store.set(key, Some(Record::MessageId(id.clone())), false);
    }
    store.set(
        RecordKey::new(Table::Message, message.key.clone()),
        Some(Record::Message(body)),
        false,
    );
}

pub(super) fn remove_records(store: &mut Store, message: QueuedMessage) {
    if message.body.is_some() {
        return;
    }
    if message.id.is_some() {
        store.set(
            RecordKey::new(Table::MessageId, message.key.clone()),
            None,
            true,
        );
    }
    if message.failures > 0 {
        store.set(
            RecordKey::new(Table::Attempts, message.key.clone()),
            None,
            true,
        );
    }
    store.set(RecordKey::new(Table::Message, message.key), None, true);
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
