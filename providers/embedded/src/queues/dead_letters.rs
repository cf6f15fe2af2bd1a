//! Dead letters: list, redrive and purge.
//!
//! The key of a dead letter is the incarnation and position at which its message was given up. Dead
//! letters are therefore stored in that order, and the key is their id (Q13). There may be many and
//! few are ever read, so memory holds only their number.

use bytes::{BufMut, Bytes, BytesMut};
use ports::{
    Error, Result,
    queue::{DeadLetter, LetterId, Retention, Sequence},
};

use super::{
    Queues, bump,
    group::QueuedMessage,
    message_records::{message_key, set_records},
    state::QueueState,
    unknown,
};
use crate::{
    records::{Record, RecordKey, Table, overlay::entry_bound},
    store::{Store, UseReserve},
};

const POSITION_BITS: u32 = 64;

/// How many of the oldest dead letters are removed for each one beyond the bound. Two, so that a
/// lowered bound is reached.
const LETTERS_GO_MAX: usize = 2;

impl Queues {
    /// Lists the dead letters of a queue, oldest first, after the id `after`, whether or not that
    /// one exists.
    pub(crate) fn dead_letters(
        &self,
        store: &mut Store,
        name: &str,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        let id = self.get(name)?.id;
        let mut letters = Vec::new();
        if letters_max == 0 {
            return Ok(letters);
        }
        let from = after.map_or_else(
            || first(id),
            |after| letter_key(id, LetterId(after.0.saturating_add(1))),
        );
        store.range(&from, &first(id + 1), |key, entry| {
            let (Record::DeadLetter(letter), Some(id)) = (entry.record(&key)?, letter_id(&key))
            else {
                return Err(Error::corrupt(format!("read dead letter {key:?}")));
            };
            letters.push(DeadLetter {
                id,
                group: letter.group.clone(),
                sequence: Sequence(letter.sequence),
                deduplication: letter.id.clone(),
                body: letter.body.clone(),
                attempts: letter.attempts,
                reason: letter.reason.clone(),
            });
            Ok(letters.len() < letters_max)
        })?;
        Ok(letters)
    }

    /// Sends dead letters again, even if their deduplication ids are known.
    pub(crate) fn redrive(
        &mut self,
        store: &mut Store,
        name: &str,
        letters: &[LetterId],
    ) -> Result<()> {
        let queue = self.by_name.get_mut(name).ok_or_else(|| unknown(name))?;
        for letter in letters {
            let key = letter_key(queue.id, *letter);
            let Some(record) = store.record(&key)?.value else {
                continue;
            };
            let Record::DeadLetter(letter) = record else {
                return Err(Error::corrupt(format!("read dead letter {key:?}")));
            };
            let sequence = bump(&mut self.next_sequence);
            let message = message_key(queue.id, &letter.group, sequence);
            let mut queued = QueuedMessage::new(sequence, message.clone(), letter.id.clone());
            let body = letter.body.clone();
            let records = [
                (Table::Message, Some(Record::Message(body.clone()))),
                (Table::MessageId, letter.id.clone().map(Record::MessageId)),
            ];
            let bytes = records.iter().map(|(table, record)| {
                entry_bound(&RecordKey::new(*table, message.clone()), record.as_ref())
            });
            store.reserve(
                (bytes.sum::<usize>() + entry_bound(&key, None)) as u64,
                UseReserve::No,
            )?;
            if queue.options.retention == Retention::Transient {
                queued.body = Some(body);
            } else {
                set_records(store, &queued, body);
            }
            store.set(key, None, true);
            queue.dead_letters -= 1;
            queue.append(letter.group.clone(), queued);
            // Each is ordered by itself. If the room ends, those before are already sent again.
            store.order();
        }
        Ok(())
    }

    /// Removes dead letters.
    pub(crate) fn purge(
        &mut self,
        store: &mut Store,
        name: &str,
        letters: &[LetterId],
    ) -> Result<()> {
        let queue = self.by_name.get_mut(name).ok_or_else(|| unknown(name))?;
        for letter in letters {
            let key = letter_key(queue.id, *letter);
            if store.record(&key)?.value.is_some() {
                // A purge may use the reserve, because nothing else removes dead letters.
                store.reserve(entry_bound(&key, None) as u64, UseReserve::Yes)?;
                store.set(key, None, true);
                queue.dead_letters -= 1;
                store.order();
            }
        }
        Ok(())
    }
}

/// The oldest dead letters that must be removed if one more is added.
pub(super) fn too_many_with_one_more(
    queue: &QueueState,
    store: &mut Store,
) -> Result<Vec<RecordKey>> {
    let excess = (queue.dead_letters + 1).saturating_sub(queue.dead_letters_max) as usize;
    let mut oldest = Vec::new();
    if excess == 0 {
        return Ok(oldest);
    }
    store.range(&first(queue.id), &first(queue.id + 1), |key, _| {
        oldest.push(key);
        Ok(oldest.len() < excess.min(LETTERS_GO_MAX))
    })?;
    Ok(oldest)
}

/// Adds a dead letter and removes the `oldest`. The caller has reserved room, and orders the
/// change.
pub(super) fn put(
    queue: &mut QueueState,
    store: &mut Store,
    (key, letter): (RecordKey, Record),
    oldest: Vec<RecordKey>,
) {
    queue.dead_letters += 1;
    queue.dead_letters -= oldest.len() as u64;
    store.set(key, Some(letter), false);
    for key in oldest {
        store.set(key, None, true);
    }
}

/// The first key of a queue's dead letters.
fn first(queue: u32) -> RecordKey {
    RecordKey::new(
        Table::DeadLetter,
        Bytes::copy_from_slice(&queue.to_be_bytes()),
    )
}

pub(super) fn dead_letter_key(queue: u32, incarnation: u64, position: u64) -> RecordKey {
    letter_key(
        queue,
        LetterId(u128::from(incarnation) << POSITION_BITS | u128::from(position)),
    )
}

fn letter_key(queue: u32, letter: LetterId) -> RecordKey {
    let mut key = BytesMut::with_capacity(20);
    key.put_u32(queue);
    key.put_u128(letter.0);
    RecordKey::new(Table::DeadLetter, key.freeze())
}

fn letter_id(key: &RecordKey) -> Option<LetterId> {
    Some(LetterId(u128::from_be_bytes(
        key.key.get(4..)?.try_into().ok()?,
    )))
}
