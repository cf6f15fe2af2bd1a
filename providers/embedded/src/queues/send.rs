//! Sending: messages are appended unless their deduplication id is known.

use bytes::Bytes;
use ports::{
    Result,
    queue::{Message, Queued, Retention},
};

use super::{
    Queues, find,
    message_records::{StoredMessage, id_key, message_key, set_records},
    next,
    state::QueueState,
};
use crate::{
    records::{Record, overlay::ENTRY_BYTES},
    store::{Store, UseReserve, now_ms},
};

/// A send removes at most this many more expired ids than it has messages.
const FORGOTTEN_MORE: usize = 1_024;

impl Queues {
    /// Appends messages, except those with a known deduplication id (Q4).
    pub(crate) fn send(
        &mut self,
        store: &mut Store,
        name: &str,
        messages: Vec<Message>,
        window_ms: u64,
    ) -> Result<()> {
        let queue = find(&mut self.by_name, name)?;
        let bytes: usize = messages.iter().map(bound_of).sum();
        let is_transient = queue.options.retention == Retention::Transient;
        let has_ids = messages
            .iter()
            .any(|message| message.deduplication.is_some());
        let now = if has_ids { now_ms() } else { 0 };
        // More ids are removed than added, but one send does not pay for all that expired during a
        // pause.
        let (expired, gone) = expired_ids(queue, now, messages.len() + FORGOTTEN_MORE);
        if !is_transient || has_ids {
            store.reserve((bytes + gone) as u64, UseReserve::No)?;
        }
        forget_expired(queue, store, expired);
        let mut has_new = false;
        for message in messages {
            if let Some(id) = &message.deduplication {
                let known = queue
                    .deduplication
                    .get(id)
                    .is_some_and(|expires| *expires > now);
                if known {
                    continue;
                }
                remember_id(queue, store, id, now + window_ms);
            }
            let sequence = next(&mut self.next_sequence);
            let stored = StoredMessage {
                key: message_key(queue.id, &message.group, sequence.0),
                body: is_transient.then(|| message.body.clone()),
            };
            let queued = Queued::new(sequence, message.deduplication, stored);
            if !is_transient {
                set_records(store, &queued, message.body);
            }
            queue.change(|groups| groups.insert(message.group, queued));
            has_new = true;
        }
        if has_new && (!is_transient || has_ids) {
            store.order();
        }
        Ok(())
    }
}

/// An upper bound of the journal bytes of a message's records.
fn bound_of(message: &Message) -> usize {
    let group = message.group.len() + 80;
    let id = message
        .deduplication
        .as_ref()
        .map_or(0, |id| 2 * id.len() + 80 + group);
    message.body.len() + group + id
}

/// The number of ids that have expired by `now`, at most `count_max`, and the journal bytes of their deletion.
fn expired_ids(queue: &QueueState, now: u64, count_max: usize) -> (usize, usize) {
    queue
        .expiring
        .iter()
        .take_while(|(expires, _)| *expires <= now)
        .take(count_max)
        .fold((0, 0), |(count, bytes), (_, id)| {
            (count + 1, bytes + ENTRY_BYTES + 4 + id.len())
        })
}

fn remember_id(queue: &mut QueueState, store: &mut Store, id: &Bytes, expires: u64) {
    store.overlay.set(
        id_key(queue.id, id),
        Some(Record::Deduplication(expires)),
        false,
    );
    queue.deduplication.insert(id.clone(), expires);
    queue.expiring.push_back((expires, id.clone()));
}

fn forget_expired(queue: &mut QueueState, store: &mut Store, count: usize) {
    for (expires, id) in queue.expiring.drain(..count) {
        // A later send may have used the id again.
        if queue
            .deduplication
            .get(&id)
            .is_none_or(|given| *given == expires)
        {
            queue.deduplication.remove(&id);
            store.overlay.set(id_key(queue.id, &id), None, true);
        }
    }
}
