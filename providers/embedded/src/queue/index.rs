//! The index of all queues, and the steps that change a queue: send, receive, acknowledge, release.
//!
//! Every step first lets deadlines that have passed take effect, so nothing here needs a timer of its own;
//! who waits for messages sleeps until the next deadline.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use ports::{
    Error, Incarnation, Result,
    queue::{Backlog, Delivery, Handle, Message, OnFailure, QueueOptions, Retention, Sequence},
};
use tokio::sync::Notify;

use super::{
    group::{Deadline, Entry, Group, Phase},
    letters::{self, dead_letter_key},
};
use crate::{
    overlay::{ENTRY_BYTES, entry_bound},
    record::{Attempts, DeadLetterRecord, QueueRecord, Record, RecordKey, Table},
    store::{Claim, Store, now_ms},
};

/// The incarnation is the part of a sequence above these bits: messages enough for years at full speed.
const SEQUENCE_BITS: u32 = 44;

/// How many expired deduplication ids a send forgets at most beyond as many as it brings.
const FORGOTTEN_MORE: usize = 1_024;
const TIMED_OUT: &str = "the visibility timeout ran out";
/// What is kept of what a consumer says of a failure.
const REASON_BYTES_MAX: usize = 1024;
/// When a message is delivered again that was given up while there was no room for a dead letter.
const NO_ROOM_DELAY_MS: u64 = 1_000;

/// All queues.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub(super) by_name: HashMap<Arc<str>, QueueState>,
    pub(super) next_id: u32,
    pub(super) next_sequence: u64,
    pub(super) next_deadline: u64,
    /// How many dead letters of one queue are kept.
    pub(super) dead_letters_max: u64,
    /// The start of the store that gives messages now.
    pub(super) incarnation: Incarnation,
}

/// One queue.
#[derive(Debug)]
pub(crate) struct QueueState {
    pub(super) id: u32,
    pub(super) options: QueueOptions,
    /// Some of its messages may be records of the store: it is durable, or was.
    has_records: bool,
    pub(super) groups: HashMap<Bytes, Group>,
    /// Groups in phase ready, in the order they are served.
    pub(super) ready: VecDeque<Bytes>,
    pub(super) deadlines: BTreeMap<Deadline, Bytes>,
    pub(super) deduplication: HashMap<Bytes, u64>,
    /// Deduplication ids by the time they expire.
    pub(super) expiring: VecDeque<(u64, Bytes)>,
    pub(super) notify: Arc<Notify>,
    /// How many of its messages were given up.
    pub(super) dead_letters: u64,
    /// How many of those are kept.
    pub(super) dead_letters_max: u64,
}

impl QueueState {
    /// An empty queue.
    pub(super) fn new(id: u32, options: QueueOptions, dead_letters_max: u64) -> Self {
        Self {
            id,
            has_records: options.retention == Retention::Durable,
            options,
            groups: HashMap::new(),
            ready: VecDeque::new(),
            deadlines: BTreeMap::new(),
            deduplication: HashMap::new(),
            expiring: VecDeque::new(),
            notify: Arc::new(Notify::new()),
            dead_letters: 0,
            dead_letters_max,
        }
    }

    /// How much it holds.
    pub(super) fn backlog(&self) -> Backlog {
        let messages = self
            .groups
            .values()
            .map(|group| group.entries.len() as u64)
            .sum();
        Backlog {
            messages,
            dead_letters: self.dead_letters,
        }
    }

    /// Some of its messages are records, whatever it is now.
    pub(super) fn note_records(&mut self) {
        self.has_records = true;
    }

    /// The groups that a message blocks which failed for good, with that message.
    pub(super) fn blocked(&self) -> impl Iterator<Item = (&Bytes, &Entry)> {
        let (blocks, attempts_max) = (
            self.options.on_failure == OnFailure::Block,
            self.options.attempts_max,
        );
        let heads = self
            .groups
            .iter()
            .filter_map(|(name, group)| Some((name, group.entries.front()?)));
        heads.filter(move |(_, head)| blocks && head.failures >= attempts_max)
    }

    /// Puts a group in line, or lets it wait for `not_before`.
    fn put_in_line(&mut self, name: &Bytes, now: Duration, next_deadline: &mut u64) {
        let group = self
            .groups
            .get_mut(name)
            .expect("the caller holds a group of this queue");
        if group.entries.is_empty() {
            self.groups.remove(name);
        } else if group.not_before > now {
            let deadline = (group.not_before, bump(next_deadline));
            group.phase = Phase::Delayed(deadline);
            self.deadlines.insert(deadline, name.clone());
            self.notify.notify_waiters();
        } else {
            group.phase = Phase::Ready;
            self.ready.push_back(name.clone());
            self.notify.notify_one();
        }
    }
}

pub(super) fn bump(number: &mut u64) -> u64 {
    *number += 1;
    *number
}

/// What `receive` may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Take {
    pub(crate) messages_max: usize,
    /// Hidden for this long; none: as the queue's options say.
    pub(crate) hidden_ms: Option<u64>,
}

impl Queues {
    /// The first sequence of an incarnation.
    pub(super) fn first_sequence(incarnation: u64) -> u64 {
        incarnation << SEQUENCE_BITS
    }

    /// Continues the waiters of the state before a return to the durable one.
    pub(crate) fn take_over(&mut self, earlier: Self) {
        for (name, queue) in earlier.by_name {
            if let Some(mine) = self.by_name.get_mut(&name) {
                mine.notify = queue.notify;
            } else {
                // Its creation was lost: who waits hears that it is not there.
                queue.notify.notify_waiters();
            }
        }
    }

    /// Wakes everybody who waits for messages.
    pub(crate) fn wake_all(&self) {
        self.by_name
            .values()
            .for_each(|queue| queue.notify.notify_waiters());
    }

    /// How many groups, over all queues, a message that failed for good blocks (rule P1).
    pub(crate) fn blocked_count(&self) -> usize {
        let blocking = |queue: &&QueueState| queue.options.on_failure == OnFailure::Block;
        self.by_name
            .values()
            .filter(blocking)
            .map(|queue| queue.blocked().count())
            .sum()
    }

    pub(crate) fn get(&self, queue: &str) -> Result<&QueueState> {
        self.by_name.get(queue).ok_or_else(|| unknown(queue))
    }

    pub(crate) fn create(
        &mut self,
        store: &mut Store,
        name: &str,
        options: QueueOptions,
    ) -> Result<()> {
        let key = RecordKey::new(Table::Queue, Bytes::copy_from_slice(name.as_bytes()));
        let existing = self.by_name.get(name);
        if existing.is_some_and(|queue| queue.options == options) {
            return Ok(());
        }
        let id = existing.map_or(self.next_id, |queue| queue.id);
        let record = Record::Queue(Arc::new(QueueRecord {
            id,
            options: options.clone(),
        }));
        store.reserve(entry_bound(&key, Some(&record)) as u64, Claim::Ordinary)?;
        store.set(key, Some(record), existing.is_some());
        store.order();
        if let Some(queue) = self.by_name.get_mut(name) {
            queue.has_records |= options.retention == Retention::Durable;
            queue.options = options;
        } else {
            self.next_id += 1;
            self.by_name.insert(
                Arc::from(name),
                QueueState::new(id, options, self.dead_letters_max),
            );
        }
        Ok(())
    }

    /// Appends messages; those whose deduplication id is known are left out (Q4).
    pub(crate) fn send(
        &mut self,
        store: &mut Store,
        name: &str,
        messages: Vec<Message>,
        window_ms: u64,
    ) -> Result<()> {
        let queue = self.by_name.get_mut(name).ok_or_else(|| unknown(name))?;
        let bytes: usize = messages
            .iter()
            .map(|message| {
                let group = message.group.len() + 80;
                let id = message
                    .deduplication
                    .as_ref()
                    .map_or(0, |id| 2 * id.len() + 80 + group);
                message.body.len() + group + id
            })
            .sum();
        let is_transient = queue.options.retention == Retention::Transient;
        let has_ids = messages
            .iter()
            .any(|message| message.deduplication.is_some());
        let now = if has_ids { now_ms() } else { 0 };
        // More of them go than come, and no send pays for all that a pause has left.
        let leaving = queue
            .expiring
            .iter()
            .take_while(|(expires, _)| *expires <= now);
        let leaving = leaving.take(messages.len() + FORGOTTEN_MORE);
        let (expired, gone) = leaving.fold((0, 0), |(count, bytes), (_, id)| {
            (count + 1, bytes + ENTRY_BYTES + 4 + id.len())
        });
        if !is_transient || has_ids {
            store.reserve((bytes + gone) as u64, Claim::Ordinary)?;
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
                let expires = now + window_ms;
                store.set(
                    id_key(queue.id, id),
                    Some(Record::Deduplication(expires)),
                    false,
                );
                queue.deduplication.insert(id.clone(), expires);
                queue.expiring.push_back((expires, id.clone()));
            }
            let sequence = bump(&mut self.next_sequence);
            let key = message_key(queue.id, &message.group, sequence);
            let mut entry = Entry::new(sequence, key, message.deduplication);
            if is_transient {
                entry.body = Some(message.body);
            } else {
                set_records(store, &entry, message.body);
            }
            append(queue, message.group, entry);
            has_new = true;
        }
        if has_new && (!is_transient || has_ids) {
            store.order();
        }
        Ok(())
    }

    /// Gives the next group in line to a consumer, from its head on; a head that may fail once more by itself (Q5).
    pub(crate) fn receive(
        &mut self,
        store: &mut Store,
        name: &str,
        take: Take,
        now: Duration,
    ) -> Result<Vec<Delivery>> {
        self.expire(store, name, now)?;
        let queue = self.by_name.get_mut(name).ok_or_else(|| unknown(name))?;
        if take.messages_max == 0 {
            return Ok(Vec::new());
        }
        let Some(group_name) = queue.ready.pop_front() else {
            return Ok(Vec::new());
        };
        let group = queue
            .groups
            .get_mut(&group_name)
            .expect("a group in line is a group of the queue");
        // Before its last attempt a message travels alone, so that what is given up is what fails.
        let last_attempt = queue.options.attempts_max.saturating_sub(1).max(1);
        let is_alone = group
            .entries
            .front()
            .is_some_and(|head| head.failures >= last_attempt);
        let count = if is_alone {
            1
        } else {
            take.messages_max.min(group.entries.len())
        };
        let mut deliveries = Vec::with_capacity(count);
        for entry in group.entries.iter().take(count) {
            let body = match body_of(store, entry) {
                Ok(body) => body,
                Err(error) => {
                    queue.ready.push_back(group_name);
                    return Err(error);
                }
            };
            let (group, incarnation) = (group_name.clone(), self.incarnation);
            let (sequence, attempt) = (Sequence(entry.sequence), entry.deliveries + 1);
            let handle = Handle {
                group,
                sequence,
                attempt,
                incarnation,
            };
            let (deduplication, failures) = (entry.id.clone(), entry.failures);
            deliveries.push(Delivery {
                handle,
                deduplication,
                failures,
                body,
            });
        }
        group
            .entries
            .iter_mut()
            .take(count)
            .for_each(|entry| entry.deliveries += 1);
        let hidden = Duration::from_millis(
            take.hidden_ms
                .unwrap_or(queue.options.visibility_timeout_ms),
        );
        let deadline = (now + hidden, bump(&mut self.next_deadline));
        group.phase = Phase::InFlight { count, deadline };
        let is_next = queue
            .deadlines
            .first_key_value()
            .is_none_or(|(first, _)| deadline < *first);
        queue.deadlines.insert(deadline, group_name);
        if is_next {
            queue.notify.notify_waiters();
        }
        Ok(deliveries)
    }

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
            store.reserve(reserved as u64, Claim::Reserve)?;
        }
        let mut has_records = false;
        for handle in handles {
            let Some(group) = queue.groups.get_mut(&handle.group) else {
                continue;
            };
            let Some(place) = group.delivered(handle, self.incarnation) else {
                continue;
            };
            let entry = group.entries.remove(place).expect("it was found there");
            has_records |= entry.body.is_none();
            remove_records(store, entry);
            shrink_flight(queue, &handle.group, 1, now, &mut self.next_deadline);
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
        chances: Chances,
        reason: &str,
        now: Duration,
    ) -> Result<()> {
        let queue = self.by_name.get_mut(name).ok_or_else(|| unknown(name))?;
        let Some(group) = queue.groups.get_mut(&handle.group) else {
            return Ok(());
        };
        let Some(place) = group.delivered(handle, self.incarnation) else {
            return Ok(());
        };
        let Phase::InFlight { count, .. } = group.phase else {
            return Ok(());
        };
        let failed = fail(queue, store, &handle.group, place, (reason, chances))?;
        let group = queue
            .groups
            .get_mut(&handle.group)
            .expect("the flight is over no sooner than below");
        if failed != Failed::Left {
            let delay_ms = match chances {
                Chances::After { delay_ms } => delay_ms,
                Chances::None => NO_ROOM_DELAY_MS,
            };
            group.not_before = now + Duration::from_millis(delay_ms);
        }
        // The failed message and all behind it leave the flight, whether or not it is still there.
        let left = usize::from(failed == Failed::Left);
        shrink_flight(
            queue,
            &handle.group,
            count - left - place,
            now,
            &mut self.next_deadline,
        );
        if failed != Failed::Forgotten {
            store.order();
        }
        Ok(())
    }

    /// Hides the flight of a delivered message until `timeout_ms` from now.
    pub(crate) fn extend(
        &mut self,
        name: &str,
        handle: &Handle,
        timeout_ms: u64,
        now: Duration,
    ) -> Result<()> {
        let queue = self.by_name.get_mut(name).ok_or_else(|| unknown(name))?;
        let Some(group) = queue.groups.get_mut(&handle.group) else {
            return Ok(());
        };
        if group.delivered(handle, self.incarnation).is_none() {
            return Ok(());
        }
        if let Phase::InFlight { deadline, .. } = &mut group.phase {
            queue.deadlines.remove(deadline);
            *deadline = (
                now + Duration::from_millis(timeout_ms),
                bump(&mut self.next_deadline),
            );
            queue.deadlines.insert(*deadline, handle.group.clone());
            queue.notify.notify_waiters();
        }
        Ok(())
    }

    /// Lets the deadlines that have passed take effect.
    pub(crate) fn expire(&mut self, store: &mut Store, name: &str, now: Duration) -> Result<()> {
        let queue = self.by_name.get_mut(name).ok_or_else(|| unknown(name))?;
        while let Some(first) = queue.deadlines.first_entry() {
            if first.key().0 > now {
                break;
            }
            let group_name = first.remove();
            let group = queue
                .groups
                .get_mut(&group_name)
                .expect("a deadline is of a group of the queue");
            if let Phase::InFlight { .. } = group.phase {
                // The head is what its consumer got stuck on, as far as anybody can tell.
                let failed = fail(
                    queue,
                    store,
                    &group_name,
                    0,
                    (TIMED_OUT, Chances::After { delay_ms: 0 }),
                );
                if matches!(failed, Ok(Failed::Counted | Failed::Left)) {
                    store.order();
                }
                queue.put_in_line(&group_name, now, &mut self.next_deadline);
                failed?;
            } else {
                queue.put_in_line(&group_name, now, &mut self.next_deadline);
            }
        }
        Ok(())
    }

    /// When the next deadline passes, if there is one, and whether a group is in line.
    pub(crate) fn outlook(&self, name: &str) -> Result<(bool, Option<Duration>, Arc<Notify>)> {
        let queue = self.get(name)?;
        let next = queue
            .deadlines
            .first_key_value()
            .map(|(deadline, _)| deadline.0);
        Ok((!queue.ready.is_empty(), next, Arc::clone(&queue.notify)))
    }
}

/// Adds a message behind its group's last.
pub(super) fn append(queue: &mut QueueState, group_name: Bytes, entry: Entry) {
    if let Some(group) = queue.groups.get_mut(&group_name) {
        group.entries.push_back(entry);
        return;
    }
    let mut group = Group::new();
    group.entries.push_back(entry);
    queue.groups.insert(group_name.clone(), group);
    queue.ready.push_back(group_name);
    queue.notify.notify_one();
}

/// Takes `by` messages out of a group's flight; an empty flight ends.
fn shrink_flight(
    queue: &mut QueueState,
    name: &Bytes,
    by: usize,
    now: Duration,
    next_deadline: &mut u64,
) {
    let group = queue
        .groups
        .get_mut(name)
        .expect("the caller holds a group of this queue");
    let Phase::InFlight { count, deadline } = &mut group.phase else {
        return;
    };
    *count -= by;
    if *count == 0 {
        queue.deadlines.remove(&*deadline);
        queue.put_in_line(name, now, next_deadline);
    }
}

/// What its consumer says of a message that it gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chances {
    /// It may be tried again then, as often as its queue says.
    After { delay_ms: u64 },
    /// It is given up, whatever its queue says.
    None,
}

/// What became of a message that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failed {
    /// It stays, and its failure is recorded.
    Counted,
    /// It stays, and its failure is known to memory alone: there was no room.
    Forgotten,
    /// It went to the dead letters.
    Left,
}

/// Counts a failure of the message at `place`; one that failed for good may leave (Q5).
fn fail(
    queue: &mut QueueState,
    store: &mut Store,
    name: &Bytes,
    place: usize,
    (reason, chances): (&str, Chances),
) -> Result<Failed> {
    let reason = &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)];
    let options = &queue.options;
    let group = queue
        .groups
        .get_mut(name)
        .expect("the caller holds a group of this queue");
    let entry = &mut group.entries[place];
    entry.failures += 1;
    entry.reason = Some(Arc::from(reason));
    let attempts = Record::Attempts(Arc::new(Attempts {
        deliveries: entry.deliveries,
        failures: entry.failures,
        reason: reason.to_owned(),
    }));
    let key = RecordKey::new(Table::Attempts, entry.key.clone());
    let has_failed =
        entry.failures >= options.attempts_max && options.on_failure == OnFailure::DeadLetter;
    let is_over = has_failed || chances == Chances::None;
    if !is_over && entry.body.is_some() {
        return Ok(Failed::Forgotten);
    }
    if !is_over {
        // Counting must not fail for lack of room: the count is then kept in memory alone.
        if store
            .reserve(entry_bound(&key, Some(&attempts)) as u64, Claim::Ordinary)
            .is_err()
        {
            return Ok(Failed::Forgotten);
        }
        store.set(key, Some(attempts), entry.failures > 1);
        return Ok(Failed::Counted);
    }
    let message = RecordKey::new(Table::Message, entry.key.clone());
    let body = body_of(store, entry)?;
    let letter = Record::DeadLetter(Arc::new(DeadLetterRecord {
        group: name.clone(),
        sequence: entry.sequence,
        id: entry.id.clone(),
        body,
        attempts: entry.deliveries,
        reason: reason.to_owned(),
    }));
    let letter_key = dead_letter_key(queue.id, store.incarnation, store.position);
    // Looked for before anything is set: that may fail, and the message would be a letter and be there still.
    let oldest = letters::too_many_with_one_more(queue, store)?;
    // With what the oldest letter takes that goes for it.
    let gone = 2 * entry_bound(&letter_key, None);
    let reserved = entry_bound(&letter_key, Some(&letter)) + 3 * entry_bound(&message, None) + gone;
    if store.reserve(reserved as u64, Claim::Ordinary).is_err() {
        // It stays and is tried again; it leaves when there is room.
        return Ok(Failed::Forgotten);
    }
    letters::put(queue, store, (letter_key, letter), oldest);
    let group = queue.groups.get_mut(name).expect("it was just there");
    remove_records(
        store,
        group.entries.remove(place).expect("it was just there"),
    );
    if let Phase::InFlight { count, .. } = &mut group.phase {
        *count -= 1;
    }
    Ok(Failed::Left)
}

pub(super) fn body_of(store: &mut Store, entry: &Entry) -> Result<Bytes> {
    if let Some(body) = &entry.body {
        return Ok(body.clone());
    }
    match store
        .record(&RecordKey::new(Table::Message, entry.key.clone()))?
        .value
    {
        Some(Record::Message(body)) => Ok(body),
        _ => Err(Error::corrupt(format!("read message {}", entry.sequence))),
    }
}

/// What is kept of a message that is not transient.
pub(super) fn set_records(store: &mut Store, entry: &Entry, body: Bytes) {
    if let Some(id) = &entry.id {
        let key = RecordKey::new(Table::MessageId, entry.key.clone());
        store.set(key, Some(Record::MessageId(id.clone())), false);
    }
    store.set(
        RecordKey::new(Table::Message, entry.key.clone()),
        Some(Record::Message(body)),
        false,
    );
}

fn remove_records(store: &mut Store, entry: Entry) {
    if entry.body.is_some() {
        return;
    }
    if entry.id.is_some() {
        store.set(
            RecordKey::new(Table::MessageId, entry.key.clone()),
            None,
            true,
        );
    }
    if entry.failures > 0 {
        store.set(
            RecordKey::new(Table::Attempts, entry.key.clone()),
            None,
            true,
        );
    }
    store.set(RecordKey::new(Table::Message, entry.key), None, true);
}

fn forget_expired(queue: &mut QueueState, store: &mut Store, count: usize) {
    for (expires, id) in queue.expiring.drain(..count) {
        // Unless it was given again since.
        if queue
            .deduplication
            .get(&id)
            .is_none_or(|given| *given == expires)
        {
            queue.deduplication.remove(&id);
            store.set(id_key(queue.id, &id), None, true);
        }
    }
}

pub(super) fn unknown(queue: &str) -> Error {
    Error::invalid(format!("use queue {queue:?}, which does not exist"))
}

/// `queue id | group length | group | sequence`: a queue's messages by group, in order.
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

fn id_key(queue: u32, id: &[u8]) -> RecordKey {
    let mut key = BytesMut::with_capacity(4 + id.len());
    key.put_u32(queue);
    key.put_slice(id);
    RecordKey::new(Table::Deduplication, key.freeze())
}
