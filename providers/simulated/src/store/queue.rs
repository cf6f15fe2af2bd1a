//! One queue: its groups, deduplication ids and dead letters, and how to undo each change.
//!
//! A sequence is never reused, not even after a crash undid its message (Q6).

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use ports::{
    Incarnation,
    queue::{
        Backlog, DeadLetter, Delivery, Groups, Handle, LetterId, Message, OnFailure, QueueOptions,
        Queued, Retention, Sequence,
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
    fn message(&self, message: &QueuedMessage) -> (String, Message) {
        let forwarded = Message {
            group: Bytes::from(format!("{} {}", self.function, message.sequence.0)),
            deduplication: None,
            body: (self.wrap)(&self.function, &message.stored.body, &message.reason),
        };
        (self.queue.clone(), forwarded)
    }
}

/// The stored part of a message.
#[derive(Debug, Clone)]
pub(crate) struct StoredMessage {
    body: Bytes,
    was_redelivered: bool,
}

pub(crate) type QueuedMessage = Queued<StoredMessage>;

#[derive(Debug)]
pub(crate) struct QueueState {
    pub(crate) forward: Option<Forward>,
    options: QueueOptions,
    pub(crate) groups: Groups<StoredMessage>,
    next_sequence: u64,
    deduplication: BTreeMap<Bytes, Duration>,
    /// Ordered by id.
    dead: VecDeque<DeadLetter>,
    /// The number of all dead letters so far.
    dead_letter_count: u64,
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
        message: QueuedMessage,
    },
    DeadLettered {
        group: Bytes,
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
    pub(crate) fn new(options: QueueOptions, incarnation: Incarnation) -> Self {
        Self {
            forward: None,
            options,
            groups: Groups::new(incarnation),
            next_sequence: 1,
            deduplication: BTreeMap::new(),
            dead: VecDeque::new(),
            dead_letter_count: 0,
        }
    }

    /// After a crash no consumer has a message. A transient queue has none, and they may be sent
    /// again under their ids.
    pub(crate) fn restart(&mut self, incarnation: Incarnation) {
        self.groups.restart(incarnation);
        if self.options.retention == Retention::Transient {
            self.groups = Groups::new(incarnation);
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
        let stored = StoredMessage {
            body: message.body,
            was_redelivered: false,
        };
        let queued = Queued::new(sequence, message.deduplication, stored);
        self.groups.insert(message.group.clone(), queued);
        QueueUndo::Sent {
            group: message.group,
            sequence,
            deduplication: remembered,
        }
    }

    /// Delivers the first messages of the next group in line.
    pub(crate) fn receive(
        &mut self,
        messages_max: usize,
        hidden_for: Option<Duration>,
        now: Duration,
    ) -> Vec<Delivery> {
        let timeout = Duration::from_millis(self.options.visibility_timeout_ms);
        let until = now + hidden_for.unwrap_or(timeout);
        self.groups
            .receive(messages_max, &self.options, until, |message| {
                Ok(message.stored.body.clone())
            })
            .expect("bodies are in memory")
    }

    /// When the next message becomes available or the next delivery expires; none: only after a
    /// change.
    pub(crate) fn next_visible(&self) -> Option<Duration> {
        if self.groups.is_ready() {
            Some(Duration::ZERO)
        } else {
            self.groups.next_deadline()
        }
    }

    /// Removes the messages of these handles (Q6). With `twice`, a group that is then free gets
    /// them back for a second delivery.
    pub(crate) fn acknowledge(&mut self, handles: &[Handle], twice: bool) -> Vec<QueueUndo> {
        let mut removed = Vec::new();
        for handle in handles {
            if let Some(message) = self.groups.acknowledge(handle) {
                removed.push((handle.group.clone(), message));
            }
        }
        let mut undo = Vec::new();
        for (group, mut message) in removed {
            let again = twice && !message.stored.was_redelivered;
            if again && !self.groups.is_in_flight(&group) {
                message.stored.was_redelivered = true;
                self.groups.insert(group, message);
            } else {
                undo.push(QueueUndo::Removed { group, message });
            }
        }
        undo
    }

    /// Gives up a message that has failed permanently, or that its consumer gave up. In a queue
    /// that blocks, only the latter.
    pub(crate) fn failed(
        &mut self,
        group: &Bytes,
        sequence: Sequence,
        is_given_up: bool,
        letters_max: usize,
    ) -> Option<GivenUp> {
        let message = self.groups.get_mut(group, sequence)?;
        let blocks = self.options.on_failure == OnFailure::Block;
        if !is_given_up && (blocks || !message.has_failed(&self.options)) {
            return None;
        }
        let message = self.groups.give_up(group, sequence)?;
        Some(match &self.forward {
            Some(forward) => GivenUp {
                forwarded: Some(forward.message(&message)),
                undo: QueueUndo::Removed {
                    group: group.clone(),
                    message,
                },
            },
            None => GivenUp {
                undo: self.dead_letter(group.clone(), message, letters_max),
                forwarded: None,
            },
        })
    }

    /// Adds `message` to the dead letters, and drops the oldest one beyond `letters_max`.
    fn dead_letter(
        &mut self,
        group: Bytes,
        message: QueuedMessage,
        letters_max: usize,
    ) -> QueueUndo {
        self.dead_letter_count += 1;
        let id = LetterId(u128::from(self.dead_letter_count));
        let body = message.stored.body.clone();
        self.dead.push_back(message.letter(id, group.clone(), body));
        let dropped = if self.dead.len() > letters_max {
            self.dead.pop_front().map(Box::new)
        } else {
            None
        };
        QueueUndo::DeadLettered {
            group,
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
        Backlog {
            messages: self.groups.message_count(),
            dead_letters: self.dead.len() as u64,
        }
    }

    /// The first messages of groups that they block, because they failed as often as allowed.
    pub(crate) fn blocked(&self) -> Vec<DeadLetter> {
        self.groups.blocked(&self.options).map(letter).collect()
    }

    pub(crate) fn waiting(&self, messages_max: usize) -> Vec<DeadLetter> {
        let waiting = self.groups.messages().take(messages_max);
        waiting.map(letter).collect()
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
                self.groups.remove(&group, sequence);
            }
            QueueUndo::DeadLetterRemoved { place, letter } => self.dead.insert(place, *letter),
            QueueUndo::DeadLettered {
                group,
                message,
                dropped,
            } => {
                self.dead.pop_back();
                if let Some(dropped) = dropped {
                    self.dead.push_front(*dropped);
                }
                self.groups.insert(group, message);
            }
            QueueUndo::Removed { group, message } => self.groups.insert(group, message),
        }
    }
}

/// A message that has not left its group, as a letter.
fn letter((group, message): (&Bytes, &QueuedMessage)) -> DeadLetter {
    let id = LetterId(u128::from(message.sequence.0));
    message.letter(id, group.clone(), message.stored.body.clone())
}
