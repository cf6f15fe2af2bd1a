//! One queue as plain data: groups of messages, their deliveries, and failures.
//!
//! Invariants
//! - The messages with a consumer are the first ones of their group. No message of the group is
//!   delivered before all of them are acknowledged, released or overdue (Q1).
//! - A sequence is never reused, not even after a crash undid its message (Q6).
//! - Before its last attempt a message is delivered alone, so that only the failing message is
//!   given up.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    time::Duration,
};

use bytes::Bytes;
use ports::{
    Incarnation,
    queue::{
        Backlog, DeadLetter, Delivery, Handle, LetterId, Message, OnFailure, QueueOptions,
        Retention, Sequence,
    },
};

/// The exception handler's queue, which receives the wrapped events that failed permanently.
#[derive(Debug, Clone)]
pub(crate) struct Forward {
    pub(crate) queue: String,
    pub(crate) wrap: fn(function: &str, body: &[u8], reason: &str) -> Bytes,
    pub(crate) function: String,
}

impl Forward {
    /// The queue, and the wrapped `message`, whose group is its own.
    fn message(&self, message: &QueuedMessage, sequence: Sequence) -> (String, Message) {
        let forwarded = Message {
            group: Bytes::from(format!("{} {}", self.function, sequence.0)),
            deduplication: None,
            body: (self.wrap)(&self.function, &message.body, &message.reason),
        };
        (self.queue.clone(), forwarded)
    }
}

#[derive(Debug)]
pub(crate) struct QueueState {
    pub(crate) forward: Option<Forward>,
    options: QueueOptions,
    groups: BTreeMap<Bytes, Group>,
    next_sequence: u64,
    deduplication: BTreeMap<Bytes, Duration>,
    /// Ordered by id.
    dead: VecDeque<DeadLetter>,
    /// The number of all dead letters so far.
    dead_letter_count: u64,
    /// The group of the last delivery; the next one is served next.
    served: Bytes,
}

#[derive(Debug, Default)]
struct Group {
    messages: BTreeMap<Sequence, QueuedMessage>,
    /// The last message of the present delivery, and its deadline.
    in_flight: Option<InFlight>,
    /// No message of the group is delivered before this moment.
    visible: Duration,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    last: Sequence,
    until: Duration,
    /// The incarnation of the store in which it was delivered.
    incarnation: Incarnation,
}

#[derive(Debug, Clone)]
pub(crate) struct QueuedMessage {
    deduplication: Option<Bytes>,
    body: Bytes,
    attempts: u32,
    failures: u32,
    reason: String,
    /// Its consumer has given it up, even if it has attempts left.
    is_given_up: bool,
    was_redelivered: bool,
}

/// How to undo a change of a queue.
#[derive(Debug)]
pub(crate) enum QueueUndo {
    Created,
    Reconfigured(QueueOptions),
    Sent {
        group: Bytes,
        sequence: Sequence,
        deduplication: Option<Bytes>,
    },
    Removed {
        group: Bytes,
        sequence: Sequence,
        message: QueuedMessage,
    },
    DeadLettered {
        group: Bytes,
        sequence: Sequence,
        message: QueuedMessage,
        dropped: Option<Box<DeadLetter>>,
    },
    DeadLetterRemoved {
        place: usize,
        letter: Box<DeadLetter>,
    },
}

/// A message that was given up.
#[derive(Debug)]
pub(crate) struct GivenUp {
    pub(crate) undo: QueueUndo,
    /// The target queue and message, if it does not become a dead letter.
    pub(crate) forwarded: Option<(String, Message)>,
}

impl QueueState {
    pub(crate) fn new(options: QueueOptions) -> Self {
        Self {
            forward: None,
            options,
            groups: BTreeMap::new(),
            next_sequence: 1,
            deduplication: BTreeMap::new(),
            dead: VecDeque::new(),
            dead_letter_count: 0,
            served: Bytes::new(),
        }
    }

    /// A crash removes the messages of a transient queue; they may be sent again under their ids.
    pub(crate) fn forget_transient(&mut self) {
        if self.options.retention == Retention::Transient {
            self.groups.clear();
            self.deduplication.clear();
        }
    }

    pub(crate) fn reconfigure(&mut self, options: QueueOptions) -> QueueUndo {
        QueueUndo::Reconfigured(std::mem::replace(&mut self.options, options))
    }

    /// Appends `message` unless it is a duplicate (Q4).
    pub(crate) fn send(
        &mut self,
        message: Message,
        now: Duration,
        window: Duration,
    ) -> Option<QueueUndo> {
        self.deduplication.retain(|_, sent| now < *sent + window);
        if let Some(id) = &message.deduplication {
            if self.deduplication.contains_key(id) {
                return None;
            }
            self.deduplication.insert(id.clone(), now);
        }
        let remembered = message.deduplication.clone();
        Some(self.append(message, remembered))
    }

    /// Appends `message` to its group. Undoing this also forgets the deduplication id `remembered`.
    fn append(&mut self, message: Message, remembered: Option<Bytes>) -> QueueUndo {
        let sequence = Sequence(self.next_sequence);
        self.next_sequence += 1;
        let queued = QueuedMessage {
            deduplication: message.deduplication,
            body: message.body,
            attempts: 0,
            failures: 0,
            reason: String::new(),
            is_given_up: false,
            was_redelivered: false,
        };
        self.groups
            .entry(message.group.clone())
            .or_default()
            .messages
            .insert(sequence, queued);
        QueueUndo::Sent {
            group: message.group,
            sequence,
            deduplication: remembered,
        }
    }

    /// Delivers the first messages of the next available group.
    pub(crate) fn receive(
        &mut self,
        messages_max: usize,
        hidden_for: Option<Duration>,
        now: Duration,
        incarnation: Incarnation,
    ) -> Vec<Delivery> {
        let Some(name) = self.next_group(now).filter(|_| messages_max > 0) else {
            return Vec::new();
        };
        self.served = name.clone();
        let until =
            now + hidden_for.unwrap_or(Duration::from_millis(self.options.visibility_timeout_ms));
        let last_attempt = self.options.attempts_max.saturating_sub(1).max(1);
        let group = self
            .groups
            .get_mut(&name)
            .expect("the next group is one of them");
        let alone = group
            .messages
            .values()
            .next()
            .is_some_and(|head| head.failures >= last_attempt);
        let count = if alone { 1 } else { messages_max };
        let mut deliveries = Vec::new();
        let mut in_flight = None;
        for (sequence, message) in group.messages.iter_mut().take(count) {
            message.attempts += 1;
            let (group, sequence, attempt) = (name.clone(), *sequence, message.attempts);
            let handle = Handle {
                group,
                sequence,
                attempt,
                incarnation,
            };
            let (deduplication, body) = (message.deduplication.clone(), message.body.clone());
            deliveries.push(Delivery {
                handle,
                deduplication,
                failures: message.failures,
                body,
            });
            in_flight = Some(InFlight {
                last: sequence,
                until,
                incarnation,
            });
        }
        group.in_flight = in_flight;
        deliveries
    }

    /// The next available group in rotation.
    fn next_group(&self, now: Duration) -> Option<Bytes> {
        let after = (Bound::Excluded(&self.served), Bound::Unbounded);
        let gives =
            |(_, group): &(&Bytes, &Group)| group.available_from().is_some_and(|from| from <= now);
        let in_turn = self.groups.range::<Bytes, _>(after).find(gives);
        in_turn
            .or_else(|| self.groups.iter().find(gives))
            .map(|(name, _)| name.clone())
    }

    /// When the next message becomes available or the next delivery expires; none: only after a
    /// change.
    pub(crate) fn next_visible(&self) -> Option<Duration> {
        let moment = |group: &Group| {
            group
                .available_from()
                .or(group.in_flight.map(|in_flight| in_flight.until))
        };
        self.groups.values().filter_map(moment).min()
    }

    /// Removes the messages of these handles (Q6). With `twice`, a group that is then free gets
    /// them back for a second delivery.
    pub(crate) fn acknowledge(&mut self, handles: &[Handle], twice: bool) -> Vec<QueueUndo> {
        let mut undo = Vec::new();
        let mut touched: Vec<&Bytes> = Vec::new();
        for handle in handles {
            let Some(group) = self.groups.get_mut(&handle.group) else {
                continue;
            };
            if !group.is_delivered_as(handle) {
                continue;
            }
            if let Some(message) = group.messages.remove(&handle.sequence) {
                undo.push(QueueUndo::Removed {
                    group: handle.group.clone(),
                    sequence: handle.sequence,
                    message,
                });
            }
            touched.push(&handle.group);
        }
        for name in touched {
            self.free(name);
        }
        if twice { self.redeliver(undo) } else { undo }
    }

    /// Puts acknowledged messages back, once each, if no message of their group is with a consumer.
    fn redeliver(&mut self, undo: Vec<QueueUndo>) -> Vec<QueueUndo> {
        let (back, gone): (Vec<_>, Vec<_>) = undo.into_iter().partition(|undo| match undo {
            QueueUndo::Removed { group, message, .. } => {
                !message.was_redelivered
                    && self
                        .groups
                        .get(group)
                        .is_none_or(|group| group.in_flight.is_none())
            }
            _ => false,
        });
        for undo in back {
            if let QueueUndo::Removed {
                group,
                sequence,
                mut message,
            } = undo
            {
                message.was_redelivered = true;
                self.groups
                    .entry(group)
                    .or_default()
                    .messages
                    .insert(sequence, message);
            }
        }
        gone
    }

    /// Ends the delivery of `group` once its last message is gone; removes an empty group.
    fn free(&mut self, name: &Bytes) {
        let Some(group) = self.groups.get_mut(name) else {
            return;
        };
        let first = group.messages.keys().next().copied();
        match (first, group.in_flight) {
            (None, _) => drop(self.groups.remove(name)),
            (Some(first), Some(in_flight)) if first > in_flight.last => group.in_flight = None,
            _ => {}
        }
    }

    /// Releases the message of `handle`, which failed with `reason`, and all later ones of its
    /// delivery.
    pub(crate) fn release(&mut self, handle: &Handle, visible: Duration, reason: &str) {
        let Some(group) = self
            .groups
            .get_mut(&handle.group)
            .filter(|group| group.is_delivered_as(handle))
        else {
            return;
        };
        group.fail(handle.sequence, reason);
        group.visible = visible;
        let before = group
            .messages
            .range(..handle.sequence)
            .next_back()
            .map(|(sequence, _)| *sequence);
        group.in_flight = group
            .in_flight
            .and_then(|in_flight| before.map(|last| InFlight { last, ..in_flight }));
    }

    /// The same, and the message is given up next (Q11).
    pub(crate) fn condemn(&mut self, handle: &Handle, visible: Duration, reason: &str) {
        let group = self
            .groups
            .get_mut(&handle.group)
            .filter(|group| group.is_delivered_as(handle));
        if let Some(message) = group.and_then(|group| group.messages.get_mut(&handle.sequence)) {
            message.is_given_up = true;
            self.release(handle, visible, reason);
        }
    }

    pub(crate) fn extend(&mut self, handle: &Handle, until: Duration) {
        if let Some(group) = self
            .groups
            .get_mut(&handle.group)
            .filter(|group| group.is_delivered_as(handle))
            && let Some(in_flight) = &mut group.in_flight
        {
            in_flight.until = until;
        }
    }

    /// Ends deliveries whose visibility timeout has passed (Q3).
    pub(crate) fn expire_overdue(&mut self, now: Duration) {
        for group in self.groups.values_mut() {
            if group
                .in_flight
                .is_some_and(|in_flight| in_flight.until <= now)
            {
                group.in_flight = None;
                if let Some(head) = group.messages.keys().next().copied() {
                    group.fail(head, "the visibility timeout ran out");
                }
            }
        }
    }

    /// Gives up one permanently failed message. In a queue that blocks, only a message that its
    /// consumer gave up.
    pub(crate) fn give_up(&mut self, letters_max: usize) -> Option<GivenUp> {
        let (name, sequence) = self.next_failed()?;
        let group = self.groups.get_mut(&name)?;
        let message = group.messages.remove(&sequence)?;
        group.visible = Duration::ZERO;
        self.free(&name);
        Some(match &self.forward {
            Some(forward) => GivenUp {
                forwarded: Some(forward.message(&message, sequence)),
                undo: QueueUndo::Removed {
                    group: name,
                    sequence,
                    message,
                },
            },
            None => GivenUp {
                undo: self.dead_letter(name, sequence, message, letters_max),
                forwarded: None,
            },
        })
    }

    /// The first available message that is to be given up.
    fn next_failed(&self) -> Option<(Bytes, Sequence)> {
        let blocks = self.options.on_failure == OnFailure::Block;
        let attempts_max = self.options.attempts_max.max(1);
        self.groups
            .iter()
            .filter(|(_, group)| group.in_flight.is_none())
            .find_map(|(name, group)| {
                let (sequence, head) = group.messages.iter().next()?;
                let is_over = head.is_given_up || !blocks && head.failures >= attempts_max;
                is_over.then(|| (name.clone(), *sequence))
            })
    }

    /// Adds `message` to the dead letters, and drops the oldest one beyond `letters_max`.
    fn dead_letter(
        &mut self,
        group: Bytes,
        sequence: Sequence,
        message: QueuedMessage,
        letters_max: usize,
    ) -> QueueUndo {
        self.dead_letter_count += 1;
        let id = LetterId(u128::from(self.dead_letter_count));
        self.dead.push_back(DeadLetter {
            id,
            ..message.letter(&group, sequence)
        });
        let dropped = if self.dead.len() > letters_max {
            self.dead.pop_front().map(Box::new)
        } else {
            None
        };
        QueueUndo::DeadLettered {
            group,
            sequence,
            message,
            dropped,
        }
    }

    pub(crate) fn dead_letters(
        &self,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Vec<DeadLetter> {
        let is_after = |letter: &&DeadLetter| after.is_none_or(|after| letter.id > after);
        self.dead
            .iter()
            .filter(is_after)
            .take(letters_max)
            .cloned()
            .collect()
    }

    fn letter_at(&self, id: LetterId) -> Option<usize> {
        self.dead.iter().position(|letter| letter.id == id)
    }

    /// Sends a dead letter again, regardless of deduplication (Q13).
    pub(crate) fn redrive(&mut self, id: LetterId) -> Vec<QueueUndo> {
        let mut undo = self.purge(id);
        let Some(QueueUndo::DeadLetterRemoved { letter, .. }) = undo.first() else {
            return undo;
        };
        let DeadLetter {
            group,
            deduplication,
            body,
            ..
        } = (**letter).clone();
        undo.push(self.append(
            Message {
                group,
                deduplication,
                body,
            },
            None,
        ));
        undo
    }

    pub(crate) fn purge(&mut self, id: LetterId) -> Vec<QueueUndo> {
        let Some(place) = self.letter_at(id) else {
            return Vec::new();
        };
        let letter = self.dead.remove(place);
        letter
            .into_iter()
            .map(|letter| QueueUndo::DeadLetterRemoved {
                place,
                letter: Box::new(letter),
            })
            .collect()
    }

    pub(crate) fn backlog(&self) -> Backlog {
        let messages = self
            .groups
            .values()
            .map(|group| group.messages.len() as u64)
            .sum();
        Backlog {
            messages,
            dead_letters: self.dead.len() as u64,
        }
    }

    /// The first messages of groups that they block, because they failed as often as allowed.
    pub(crate) fn blocked(&self) -> Vec<DeadLetter> {
        let attempts_max = self.options.attempts_max.max(1);
        let head = |(name, group): (&Bytes, &Group)| {
            let (sequence, head) = group.messages.iter().next()?;
            (head.failures >= attempts_max).then(|| head.letter(name, *sequence))
        };
        self.groups.iter().filter_map(head).collect()
    }

    /// After a crash no consumer has a message.
    pub(crate) fn end_deliveries(&mut self) {
        for group in self.groups.values_mut() {
            group.in_flight = None;
            group.visible = Duration::ZERO;
        }
    }

    pub(crate) fn undo(&mut self, undo: QueueUndo) {
        match undo {
            QueueUndo::Created => {}
            QueueUndo::Reconfigured(options) => self.options = options,
            QueueUndo::Sent {
                group,
                sequence,
                deduplication,
            } => {
                if let Some(id) = deduplication {
                    self.deduplication.remove(&id);
                }
                if let Some(of) = self.groups.get_mut(&group) {
                    of.messages.remove(&sequence);
                }
                self.free(&group);
            }
            QueueUndo::DeadLetterRemoved { place, letter } => self.dead.insert(place, *letter),
            QueueUndo::DeadLettered {
                group,
                sequence,
                mut message,
                dropped,
            } => {
                self.dead.pop_back();
                if let Some(dropped) = dropped {
                    self.dead.push_front(*dropped);
                }
                // The consumer's decision to give it up is undone too.
                message.is_given_up = false;
                self.groups
                    .entry(group)
                    .or_default()
                    .messages
                    .insert(sequence, message);
            }
            QueueUndo::Removed {
                group,
                sequence,
                message,
            } => {
                self.groups
                    .entry(group)
                    .or_default()
                    .messages
                    .insert(sequence, message);
            }
        }
    }
}

impl Group {
    /// From when on its first message is available; none if a consumer has it or the group is
    /// empty.
    fn available_from(&self) -> Option<Duration> {
        (self.in_flight.is_none() && !self.messages.is_empty()).then_some(self.visible)
    }

    /// Whether `handle` is the present delivery of a message.
    fn is_delivered_as(&self, handle: &Handle) -> bool {
        let is_taken = |in_flight: InFlight| {
            handle.sequence <= in_flight.last && handle.incarnation == in_flight.incarnation
        };
        self.in_flight.is_some_and(is_taken)
            && self
                .messages
                .get(&handle.sequence)
                .is_some_and(|message| message.attempts == handle.attempt)
    }

    fn fail(&mut self, sequence: Sequence, reason: &str) {
        if let Some(message) = self.messages.get_mut(&sequence) {
            message.failures += 1;
            reason.clone_into(&mut message.reason);
        }
    }
}

impl QueuedMessage {
    fn letter(&self, group: &Bytes, sequence: Sequence) -> DeadLetter {
        DeadLetter {
            id: LetterId(u128::from(sequence.0)),
            group: group.clone(),
            sequence,
            deduplication: self.deduplication.clone(),
            body: self.body.clone(),
            attempts: self.attempts,
            reason: self.reason.clone(),
        }
    }
}
