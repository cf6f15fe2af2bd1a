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

/// What is kept of what a consumer says of a failure.
const REASON_BYTES_MAX: usize = 1024;
/// When a message is delivered again that was given up while there was no room for a dead letter.
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
            // Nothing else takes messages out.
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

    /// Gives a delivered message back, with those behind it, or up, if the handle is good.
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
        // The failed message and all behind it leave the flight, whether or not it is still there.
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

/// What its consumer says of a message that it gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// It may be tried again then, as often as its queue says.
    After { delay_ms: u64 },
    /// It is given up, whatever its queue says.
    Never,
}

/// What became of a message that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureOutcome {
    /// It stays, and its failure is recorded.
    Recorded,
    /// It stays, and its failure is known to memory alone: there was no room.
    InMemory,
    /// It went to the dead letters.
    DeadLettered,
}

/// Counts a failure of the message at `index`; one that failed for good may leave (Q5).
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
    // Counting must not fail for lack of room: the count is then kept in memory alone.
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
    // Looked for before anything is set: that may fail, and the message would be a letter and be there still.
    let oldest = dead_letters::too_many_with_one_more(queue, store)?;
    let message_key = RecordKey::new(Table::Message, message.key.clone());
    // With what the oldest letter takes that goes for it.
    let gone = 2 * entry_bound(&letter_key, None);
    let reserved =
        entry_bound(&letter_key, Some(&letter)) + 3 * entry_bound(&message_key, None) + gone;
    if store.reserve(reserved as u64, UseReserve::No).is_err() {
        // It stays and is tried again; it leaves when there is room.
        return Ok(FailureOutcome::InMemory);
    }
    dead_letters::put(queue, store, (letter_key, letter), oldest);
    let group = queue.groups.get_mut(name).expect("it was just there");
    remove_records(
        store,
        group.messages.remove(index).expect("it was just there"),
    );
    if let Phase::InFlight { count, .. } = &mut group.phase {
        *count -= 1;
    }
    Ok(FailureOutcome::DeadLettered)
}
