//! Dead letters: list, redrive and purge.
//!
//! The key of a dead letter is the incarnation and position at which its message was given up. Dead
//! letters are therefore stored in that order, and the key is their id (Q13). There may be many and
//! few are ever read, so memory holds only their number.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use ports::{
    Error, Result,
    queue::{DeadLetter, LetterId, Queued, Retention},
};

use super::{
    Queues, find,
    message_records::{StoredMessage, message_key, set_records},
    next,
    state::QueueState,
};
use crate::{
    records::{
        Record, RecordKey, Table,
        overlay::{ENTRY_BYTES, entry_bound},
    },
    store::{Store, UseReserve},
};

const POSITION_BITS: u32 = 64;

/// How many of the oldest dead letters are removed for each one beyond the bound. Two, so that a
/// lowered bound is reached.
const LETTERS_GO_MAX: usize = 2;

impl QueueState {
    /// Lists the dead letters, oldest first, after the id `after`, whether or not that one exists.
    pub(crate) fn dead_letters(
        &self,
        store: &mut Store,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Result<Vec<DeadLetter>> {
        let id = self.id;
        let mut letters = Vec::new();
        if letters_max == 0 {
            return Ok(letters);
        }
        let from = after.map_or_else(
            || first(id),
            |after| letter_key(id, LetterId(after.0.saturating_add(1))),
        );
        store.range(&from, &first(id + 1), |key, entry| {
            letters.push(DeadLetter::clone(&*letter(&key, entry.record(&key)?)?));
            Ok(letters.len() < letters_max)
        })?;
        Ok(letters)
    }

    /// Removes dead letters.
    pub(crate) fn purge(&mut self, store: &mut Store, letters: &[LetterId]) -> Result<()> {
        for letter in letters {
            let key = letter_key(self.id, *letter);
            if store.record(&key)?.is_some() {
                // A purge may use the reserve, because nothing else removes dead letters.
                store.reserve(entry_bound(&key, None) as u64, UseReserve::Whole)?;
                store.overlay.set(key, None, true);
                self.dead_letter_count -= 1;
                store.order();
            }
        }
        Ok(())
    }
}

impl Queues {
    /// Sends dead letters again, even if their deduplication ids are known.
    pub(crate) fn redrive(
        &mut self,
        store: &mut Store,
        name: &str,
        letters: &[LetterId],
    ) -> Result<()> {
        let queue = find(&mut self.by_name, name)?;
        for id in letters {
            let key = letter_key(queue.id, *id);
            let Some(record) = store.record(&key)? else {
                continue;
            };
            let letter = letter(&key, record)?;
            let sequence = next(&mut self.next_sequence);
            let message_key = message_key(queue.id, &letter.group, sequence.0);
            let bytes = letter.body.len()
                + letter.deduplication.as_ref().map_or(0, Bytes::len)
                + 2 * (ENTRY_BYTES + message_key.len())
                + entry_bound(&key, None);
            store.reserve(bytes as u64, UseReserve::No)?;
            let is_transient = queue.options.retention == Retention::Transient;
            let stored = StoredMessage {
                key: message_key,
                body: is_transient.then(|| letter.body.clone()),
            };
            let message = Queued::new(sequence, letter.deduplication.clone(), stored);
            if !is_transient {
                set_records(store, &message, letter.body.clone());
            }
            store.overlay.set(key, None, true);
            queue.dead_letter_count -= 1;
            queue.change(|groups| groups.insert(letter.group.clone(), message));
            // Each is ordered by itself. If the room ends, those before are already sent again.
            store.order();
        }
        Ok(())
    }
}

fn letter(key: &RecordKey, record: Record) -> Result<Arc<DeadLetter>> {
    match record {
        Record::DeadLetter(letter) => Ok(letter),
        _ => Err(Error::corrupt(format!("read dead letter {key:?}"))),
    }
}

/// The oldest dead letters that must be removed if one more is added.
pub(super) fn too_many_with_one_more(
    queue: &QueueState,
    store: &mut Store,
    letters_max: u64,
) -> Result<Vec<RecordKey>> {
    let excess = (queue.dead_letter_count + 1).saturating_sub(letters_max) as usize;
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

/// The first key of a queue's dead letters.
fn first(queue: u32) -> RecordKey {
    RecordKey::new(
        Table::DeadLetter,
        Bytes::copy_from_slice(&queue.to_be_bytes()),
    )
}

/// The id of a letter that is given up now.
pub(super) fn next_id(store: &Store) -> LetterId {
    LetterId(u128::from(store.incarnation) << POSITION_BITS | u128::from(store.position))
}

pub(super) fn letter_key(queue: u32, letter: LetterId) -> RecordKey {
    let mut key = BytesMut::with_capacity(20);
    key.put_u32(queue);
    key.put_u128(letter.0);
    RecordKey::new(Table::DeadLetter, key.freeze())
}
