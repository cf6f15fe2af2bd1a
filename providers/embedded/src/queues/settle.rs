//! Settling: a consumer acknowledges a message, gives it back, or gives it up.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{
    Result,
    queue::{Handle, OnFailure},
};

use super::{
    Queues,
    dead_letters::{self, dead_letter_key},
    group::Phase,
    message_records::{body_of, remove_records},
    state::QueueState,
    unknown,
};
use crate::{
    records::{Attempts, DeadLetterRecord, Record, RecordKey, Table, overlay::entry_bound},
    store::{Store, UseReserve},
};

/// The bytes that are kept of a failure's reason.
const REASON_BYTES_MAX: usize = 1024;
/// When a given-up message is delivered again if there was no room for a dead letter.
const NO_ROOM_DELAY_MS: u64 = 1_000;

impl Queues {
    /// Removes delivered messages.
    pub(crate) fn acknowledge(
        &mut self,
        store: &mut Store,
        name: &str,
        handles: &[Handle],
        now: Duration,
    ) -> Result<()> {
        let queue = self.by_name.get_mut(name).ok_or_else(|| unknown(name))?;
        if queue.has_records {
            let reserved: usize = handles
                .iter()
                .map(|handle| 3 * (handle.group.len() + 40))
                .sum();
            // An acknowledgement may use the reserve, because nothing else removes messages.
            store.reserve(reserved as u64, UseReserve::Yes)?;
        }
        let mut has_records = false;
        for handle in handles {
            let Some(group) = queue.groups.get_mut(&handle.group) else {
                continue;
            };
            let Some(index) = group.delivered(handle, self.incarnation) else {
                continue;
            };
            let message = group.messages.remove(index).expect("it was found there");
            has_records |= message.body.is_none();
            remove_records(store, message);
            queue.shrink_flight(&handle.group, 1, now, &mut self.next_deadline);
        }
        if has_records {
            store.order();
        }
        Ok(())
    }

    /// Releases a delivered message with those after it, or gives it up, if the handle is current.
    pub(crate) fn release(
        &mut self,
        store: &mut Store,
        name: &str,
        handle: &Handle,
        retry: Retry,
        reason: &str,
        now: Duration,
    ) -> Result<()> {
        let queue = self.by_name.get_mut(name).ok_or_else(|| unknown(name))?;
        let Some(group) = queue.groups.get_mut(&handle.group) else {
            return Ok(());
        };
        let Some(index) = group.delivered(handle, self.incarnation) else {
            return Ok(());
        };
        let Phase::InFlight { count, .. } = group.phase else {
            return Ok(());
        };
        let failed = fail(queue, store, &handle.group, index, (reason, retry))?;
        let group = queue
            .groups
            .get_mut(&handle.group)
            .expect("the flight is over no sooner than below");
        if failed != FailureOutcome::DeadLettered {
            let delay_ms = match retry {
                Retry::After { delay_ms } => delay_ms,
                Retry::Never => NO_ROOM_DELAY_MS,
            };
            group.not_before = now + Duration::from_millis(delay_ms);
        }
        // The failed message and all after it leave the flight, whether or not it is still in the
        // queue.
        let left = usize::from(failed == FailureOutcome::DeadLettered);
        queue.shrink_flight(
            &handle.group,
            count - left - index,
            now,
            &mut self.next_deadline,
        );
        if failed != FailureOutcome::InMemory {
            store.order();
        }
        Ok(())
    }
}

/// Whether a released message may be delivered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// After the delay, up to the attempts of its queue.
    After { delay_ms: u64 },
    /// Never: it is given up even if its queue allows more attempts.
    Never,
}

/// The effect of a failure on its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureOutcome {
    /// The message stays, and its failure is a record.
    Recorded,
    /// The message stays, and only memory knows of the failure: the queue is transient or there was
    /// no room.
    InMemory,
    /// The message became a dead letter.
    DeadLettered,
}

/// Counts a failure of the message at `index`. A permanently failed message may become a dead
/// letter (Q5).
pub(super) fn fail(
    queue: &mut QueueState,
    store: &mut Store,
    name: &Bytes,
    index: usize,
    (reason, retry): (&str, Retry),
) -> Result<FailureOutcome> {
    let reason = &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)];
    let options = &queue.options;
    let group = queue
        .groups
        .get_mut(name)
        .expect("the caller holds a group of this queue");
    let message = &mut group.messages[index];
    message.failures += 1;
    message.reason = Some(Arc::from(reason));
    let has_failed =
        message.failures >= options.attempts_max && options.on_failure == OnFailure::DeadLetter;
    if has_failed || retry == Retry::Never {
        return dead_letter(queue, store, name, index, reason);
    }
    if message.body.is_some() {
        return Ok(FailureOutcome::InMemory);
    }
    let attempts = Record::Attempts(Arc::new(Attempts {
        deliveries: message.deliveries,
        failures: message.failures,
        reason: reason.to_owned(),
    }));
    let key = RecordKey::new(Table::Attempts, message.key.clone());
    // A failure must count even without room. Memory alone then holds the count.
    if store
        .reserve(entry_bound(&key, Some(&attempts)) as u64, UseReserve::No)
        .is_err()
    {
        return Ok(FailureOutcome::InMemory);
    }
    store.set(key, Some(attempts), message.failures > 1);
    Ok(FailureOutcome::Recorded)
}

/// Makes the message at `index` a dead letter, if there is room for one.
fn dead_letter(
    queue: &mut QueueState,
    store: &mut Store,
    name: &Bytes,
    index: usize,
    reason: &str,
) -> Result<FailureOutcome> {
    let message = &queue.groups[name].messages[index];
    let body = body_of(store, message)?;
    let letter = Record::DeadLetter(Arc::new(DeadLetterRecord {
        group: name.clone(),
        sequence: message.sequence,
        id: message.id.clone(),
        body,
        attempts: message.deliveries,
        reason: reason.to_owned(),
    }));
    let letter_key = dead_letter_key(queue.id, store.incarnation, store.position);
    // This read may fail, so it comes before anything is set. Otherwise the message could be both
    // in the queue and a dead letter.
    let oldest = dead_letters::too_many_with_one_more(queue, store)?;
    let message_key = RecordKey::new(Table::Message, message.key.clone());
    // The removal of the oldest dead letters needs room too.
    let gone = 2 * entry_bound(&letter_key, None);
    let reserved =
        entry_bound(&letter_key, Some(&letter)) + 3 * entry_bound(&message_key, None) + gone;
    if store.reserve(reserved as u64, UseReserve::No).is_err() {
        // The message is delivered again, and becomes a dead letter once there is room.
        return Ok(FailureOutcome::InMemory);
    }
    dead_letters::put(queue, store, (letter_key, letter), oldest);
    let group = queue.groups.get_mut(name).expect("the message exists");
    remove_records(
        store,
        group.messages.remove(index).expect("the message exists"),
    );
    if let Phase::InFlight { count, .. } = &mut group.phase {
        *count -= 1;
    }
    Ok(FailureOutcome::DeadLettered)
}
