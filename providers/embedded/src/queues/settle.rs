//! Settling: a consumer acknowledges a message, gives it back, or gives it up.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{
    Result,
    queue::{Handle, OnFailure, Sequence},
};

use super::{
    Queues, dead_letters, find,
    message_records::{body_of, remove_records},
    state::QueueState,
};
use crate::{
    records::{Attempts, Record, RecordKey, Table, overlay::entry_bound},
    store::{Store, UseReserve},
};

/// When a given-up message is delivered again if there was no room for a dead letter.
const NO_ROOM_DELAY: Duration = Duration::from_secs(1);

impl Queues {
    /// Removes delivered messages.
    pub(crate) fn acknowledge(
        &mut self,
        store: &mut Store,
        name: &str,
        handles: &[Handle],
    ) -> Result<()> {
        let queue = find(&mut self.by_name, name)?;
        if queue.has_records {
            let reserved: usize = handles
                .iter()
                .map(|handle| 3 * (handle.group.len() + 40))
                .sum();
            // An acknowledgement may use the reserve, because nothing else removes messages.
            store.reserve(reserved as u64, UseReserve::Whole)?;
        }
        let mut has_records = false;
        for handle in handles {
            if let Some(message) = queue.change(|groups| groups.acknowledge(handle)) {
                has_records |= message.stored.body.is_none();
                remove_records(store, message);
            }
        }
        if has_records {
            store.order();
        }
        Ok(())
    }

    /// Releases a delivered message with those after it, if the handle is current. It is delivered
    /// again after `delay`, up to the attempts of its queue; none: it is given up.
    pub(crate) fn release(
        &mut self,
        store: &mut Store,
        name: &str,
        handle: &Handle,
        delay: Option<Duration>,
        reason: &str,
        now: Duration,
    ) -> Result<()> {
        let queue = find(&mut self.by_name, name)?;
        let again = now + delay.unwrap_or(NO_ROOM_DELAY);
        if !queue.change(|groups| groups.release(handle, reason, again)) {
            return Ok(());
        }
        let message = (&handle.group, handle.sequence);
        failed(
            queue,
            store,
            message,
            self.dead_letters_max,
            delay.is_none(),
        )
    }
}

impl QueueState {
    /// Applies the deadlines that have passed.
    pub(crate) fn expire(
        &mut self,
        store: &mut Store,
        dead_letters_max: u64,
        now: Duration,
    ) -> Result<()> {
        while let Some((group, head)) = self.change(|groups| groups.expire(now)) {
            failed(self, store, (&group, head), dead_letters_max, false)?;
        }
        Ok(())
    }
}

/// Records the failure of a message that is no longer with a consumer. A permanently failed message
/// becomes a dead letter (Q5).
pub(super) fn failed(
    queue: &mut QueueState,
    store: &mut Store,
    (group, sequence): (&Bytes, Sequence),
    dead_letters_max: u64,
    is_given_up: bool,
) -> Result<()> {
    let Some(message) = queue.groups.get_mut(group, sequence) else {
        return Ok(());
    };
    let options = &queue.options;
    if is_given_up || options.on_failure == OnFailure::DeadLetter && message.has_failed(options) {
        return dead_letter(queue, store, (group, sequence), dead_letters_max);
    }
    if message.stored.body.is_some() {
        return Ok(());
    }
    let attempts = Record::Attempts(Arc::new(Attempts {
        deliveries: message.attempts,
        failures: message.failures,
        reason: message.reason.to_string(),
    }));
    let key = RecordKey::new(Table::Attempts, message.stored.key.clone());
    let bytes = entry_bound(&key, Some(&attempts)) as u64;
    // A failure must count even without room. Memory alone then holds the count.
    if store.reserve(bytes, UseReserve::No).is_ok() {
        store.overlay.set(key, Some(attempts), message.failures > 1);
        store.order();
    }
    Ok(())
}

/// Makes a message a dead letter, and removes the oldest ones beyond the bound. Without room the
/// message stays, and becomes a dead letter at a later failure.
fn dead_letter(
    queue: &mut QueueState,
    store: &mut Store,
    (group, sequence): (&Bytes, Sequence),
    dead_letters_max: u64,
) -> Result<()> {
    let Some(message) = queue.groups.get_mut(group, sequence) else {
        return Ok(());
    };
    let id = dead_letters::next_id(store);
    let letter = message.letter(id, group.clone(), body_of(store, message)?);
    let message_key = RecordKey::new(Table::Message, message.stored.key.clone());
    let key = dead_letters::letter_key(queue.id, id);
    let record = Record::DeadLetter(Arc::new(letter));
    // This read may fail, so it comes before anything is set. Otherwise the message could be both
    // in the queue and a dead letter.
    let oldest = dead_letters::too_many_with_one_more(queue, store, dead_letters_max)?;
    let bytes = entry_bound(&key, Some(&record))
        + 3 * entry_bound(&message_key, None)
        + oldest.len() * entry_bound(&key, None);
    if store.reserve(bytes as u64, UseReserve::No).is_err() {
        return Ok(());
    }
    queue.dead_letter_count += 1;
    queue.dead_letter_count -= oldest.len() as u64;
    store.overlay.set(key, Some(record), false);
    for key in oldest {
        store.overlay.set(key, None, true);
    }
    if let Some(message) = queue.change(|groups| groups.give_up(group, sequence)) {
        remove_records(store, message);
    }
    store.order();
    Ok(())
}
