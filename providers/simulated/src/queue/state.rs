//! One queue as plain data: groups of messages, who has them, and what becomes of failures.
//!
//! Invariants
//! - The messages that are with a consumer are the first ones of their group, and nothing of that group is
//!   given to another before all of them are acknowledged, released or overdue (Q1).
//! - Sequences are never used twice, not even after a crash took their messages back (Q6).
//! - Before a message would be given up it travels alone once, so that the one that is given up is the one
//!   that fails.

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

/// Where an event goes that failed for good, if there is an exception handler: another queue, in whose
/// messages it is wrapped.
#[derive(Debug, Clone)]
pub(crate) struct Forward {
    pub(crate) queue: String,
    pub(crate) wrap: fn(function: &str, body: &[u8], reason: &str) -> Bytes,
    pub(crate) function: String,
}

#[derive(Debug)]
pub(crate) struct QueueState {
    pub(crate) forward: Option<Forward>,
    options: QueueOptions,
    groups: BTreeMap<Bytes, Group>,
    next_sequence: u64,
    deduplication: BTreeMap<Bytes, Duration>,
    /// In the order of their ids.
    dead: VecDeque<DeadLetter>,
    /// How many have ever come.
    buried: u64,
    /// The group served last; the next one is served next.
    served: Bytes,
}

#[derive(Debug, Default)]
struct Group {
    messages: BTreeMap<Sequence, Waiting>,
    /// How many of the first messages are with a consumer, and until when.
    taken: Option<Taken>,
    /// Nothing is given before this moment.
    visible: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Taken {
    last: Sequence,
    until: Duration,
    /// The start of the store in which they were.
    incarnation: Incarnation,
}

#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    deduplication: Option<Bytes>,
    body: Bytes,
    attempts: u32,
    failures: u32,
    reason: String,
    /// Its consumer has given it up, whatever attempts it has left.
    is_hopeless: bool,
    was_doubled: bool,
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
        waiting: Waiting,
    },
    DeadLettered {
        group: Bytes,
        sequence: Sequence,
        waiting: Waiting,
        dropped: Option<Box<DeadLetter>>,
    },
    Settled {
        place: usize,
        letter: Box<DeadLetter>,
    },
}

/// A message that was given up.
#[derive(Debug)]
pub(crate) struct GivenUp {
    pub(crate) undo: QueueUndo,
    /// The queue it goes to instead of the dead letters, and as what.
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
            buried: 0,
            served: Bytes::new(),
        }
    }

    /// After a crash: the messages of a transient queue are gone, and may be sent again under their ids.
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

    /// Puts `message` behind its group; undoing that forgets the id that is `remembered` since.
    fn append(&mut self, message: Message, remembered: Option<Bytes>) -> QueueUndo {
        let sequence = Sequence(self.next_sequence);
        self.next_sequence += 1;
        let waiting = Waiting {
            deduplication: message.deduplication,
            body: message.body,
            attempts: 0,
            failures: 0,
            reason: String::new(),
            is_hopeless: false,
            was_doubled: false,
        };
        self.groups
            .entry(message.group.clone())
            .or_default()
            .messages
            .insert(sequence, waiting);
        QueueUndo::Sent {
            group: message.group,
            sequence,
            deduplication: remembered,
        }
    }

    /// Gives the first messages of the next group that has some to give.
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
        let mut taken = None;
        for (sequence, waiting) in group.messages.iter_mut().take(count) {
            waiting.attempts += 1;
            let (group, sequence, attempt) = (name.clone(), *sequence, waiting.attempts);
            let handle = Handle {
                group,
                sequence,
                attempt,
                incarnation,
            };
            let (deduplication, body) = (waiting.deduplication.clone(), waiting.body.clone());
            deliveries.push(Delivery {
                handle,
                deduplication,
                failures: waiting.failures,
                body,
            });
            taken = Some(Taken {
                last: sequence,
                until,
                incarnation,
            });
        }
        group.taken = taken;
        deliveries
    }

    /// The next group in turn that has something to give.
    fn next_group(&self, now: Duration) -> Option<Bytes> {
        let after = (Bound::Excluded(&self.served), Bound::Unbounded);
        let gives =
            |(_, group): &(&Bytes, &Group)| group.gives_from().is_some_and(|from| from <= now);
        let in_turn = self.groups.range::<Bytes, _>(after).find(gives);
        in_turn
            .or_else(|| self.groups.iter().find(gives))
            .map(|(name, _)| name.clone())
    }

    /// When something may be given next, or comes back from its consumer; none: only after a change.
    pub(crate) fn next_visible(&self) -> Option<Duration> {
        let moment = |group: &Group| group.gives_from().or(group.taken.map(|taken| taken.until));
        self.groups.values().filter_map(moment).min()
    }

    /// Removes what these handles name (Q6). `twice` only seems to, where that frees a whole group.
    pub(crate) fn acknowledge(&mut self, handles: &[Handle], twice: bool) -> Vec<QueueUndo> {
        let mut undo = Vec::new();
        let mut touched: Vec<&Bytes> = Vec::new();
        for handle in handles {
            let Some(group) = self.groups.get_mut(&handle.group) else {
                continue;
            };
            if !group.holds(handle) {
                continue;
            }
            if let Some(waiting) = group.messages.remove(&handle.sequence) {
                undo.push(QueueUndo::Removed {
                    group: handle.group.clone(),
                    sequence: handle.sequence,
                    waiting,
                });
            }
            touched.push(&handle.group);
        }
        for name in touched {
            self.free(name);
        }
        if twice { self.double(undo) } else { undo }
    }

    /// Puts acknowledged messages back, once each, if nothing of their groups is with a consumer.
    fn double(&mut self, undo: Vec<QueueUndo>) -> Vec<QueueUndo> {
        let (back, gone): (Vec<_>, Vec<_>) = undo.into_iter().partition(|undo| match undo {
            QueueUndo::Removed { group, waiting, .. } => {
                !waiting.was_doubled
                    && self
                        .groups
                        .get(group)
                        .is_none_or(|group| group.taken.is_none())
            }
            _ => false,
        });
        for undo in back {
            if let QueueUndo::Removed {
                group,
                sequence,
                mut waiting,
            } = undo
            {
                waiting.was_doubled = true;
                self.groups
                    .entry(group)
                    .or_default()
                    .messages
                    .insert(sequence, waiting);
            }
        }
        gone
    }

    /// Ends the hold on `group` once nothing of it is with its consumer; forgets it once it is empty.
    fn free(&mut self, name: &Bytes) {
        let Some(group) = self.groups.get_mut(name) else {
            return;
        };
        let first = group.messages.keys().next().copied();
        match (first, group.taken) {
            (None, _) => drop(self.groups.remove(name)),
            (Some(first), Some(taken)) if first > taken.last => group.taken = None,
            _ => {}
        }
    }

    /// Gives back what `handle` names and all later ones of its consumer; it has failed because of `reason`.
    pub(crate) fn release(&mut self, handle: &Handle, visible: Duration, reason: &str) {
        let Some(group) = self
            .groups
            .get_mut(&handle.group)
            .filter(|group| group.holds(handle))
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
        group.taken = group
            .taken
            .and_then(|taken| before.map(|last| Taken { last, ..taken }));
    }

    /// The same, and it is given up next (Q11).
    pub(crate) fn condemn(&mut self, handle: &Handle, visible: Duration, reason: &str) {
        let group = self
            .groups
            .get_mut(&handle.group)
            .filter(|group| group.holds(handle));
        if let Some(waiting) = group.and_then(|group| group.messages.get_mut(&handle.sequence)) {
            waiting.is_hopeless = true;
            self.release(handle, visible, reason);
        }
    }

    pub(crate) fn extend(&mut self, handle: &Handle, until: Duration) {
        if let Some(group) = self
            .groups
            .get_mut(&handle.group)
            .filter(|group| group.holds(handle))
            && let Some(taken) = &mut group.taken
        {
            taken.until = until;
        }
    }

    /// Takes back what consumers have kept longer than they may (Q3).
    pub(crate) fn take_back_overdue(&mut self, now: Duration) {
        for group in self.groups.values_mut() {
            if group.taken.is_some_and(|taken| taken.until <= now) {
                group.taken = None;
                if let Some(head) = group.messages.keys().next().copied() {
                    group.fail(head, "the visibility timeout ran out");
                }
            }
        }
    }

    /// Gives up one message that failed for good, unless they stay where they are.
    pub(crate) fn give_up(&mut self, letters_max: usize) -> Option<GivenUp> {
        let blocks = self.options.on_failure == OnFailure::Block;
        let attempts_max = self.options.attempts_max.max(1);
        let (name, sequence) = self
            .groups
            .iter()
            .filter(|(_, group)| group.taken.is_none())
            .find_map(|(name, group)| {
                let (sequence, head) = group.messages.iter().next()?;
                let is_over = head.is_hopeless || !blocks && head.failures >= attempts_max;
                is_over.then(|| (name.clone(), *sequence))
            })?;
        let group = self.groups.get_mut(&name)?;
        let waiting = group.messages.remove(&sequence)?;
        group.visible = Duration::ZERO;
        self.free(&name);
        let Some(Forward {
            queue,
            wrap,
            function,
        }) = &self.forward
        else {
            self.buried += 1;
            let id = LetterId(u128::from(self.buried));
            self.dead.push_back(DeadLetter {
                id,
                ..waiting.letter(&name, sequence)
            });
            let dropped = if self.dead.len() > letters_max {
                self.dead.pop_front().map(Box::new)
            } else {
                None
            };
            let undo = QueueUndo::DeadLettered {
                group: name,
                sequence,
                waiting,
                dropped,
            };
            return Some(GivenUp {
                undo,
                forwarded: None,
            });
        };
        let body = wrap(function, &waiting.body, &waiting.reason);
        let group = Bytes::from(format!("{function} {}", sequence.0));
        let forwarded = Some((
            queue.clone(),
            Message {
                group,
                deduplication: None,
                body,
            },
        ));
        Some(GivenUp {
            undo: QueueUndo::Removed {
                group: name,
                sequence,
                waiting,
            },
            forwarded,
        })
    }

    pub(crate) fn dead_letters(
        &self,
        after: Option<LetterId>,
        letters_max: usize,
    ) -> Vec<DeadLetter> {
        let is_behind = |letter: &&DeadLetter| after.is_none_or(|after| letter.id > after);
        self.dead
            .iter()
            .filter(is_behind)
            .take(letters_max)
            .cloned()
            .collect()
    }

    fn letter_at(&self, id: LetterId) -> Option<usize> {
        self.dead.iter().position(|letter| letter.id == id)
    }

    /// Sends a dead letter again, whatever is remembered of its id (Q13).
    pub(crate) fn redrive(&mut self, id: LetterId) -> Vec<QueueUndo> {
        let mut undo = self.purge(id);
        let Some(QueueUndo::Settled { letter, .. }) = undo.first() else {
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
            .map(|letter| QueueUndo::Settled {
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

    /// The heads of groups that failed as often as they may and stay all the same.
    pub(crate) fn blocked(&self) -> Vec<DeadLetter> {
        let attempts_max = self.options.attempts_max.max(1);
        let head = |(name, group): (&Bytes, &Group)| {
            let (sequence, head) = group.messages.iter().next()?;
            (head.failures >= attempts_max).then(|| head.letter(name, *sequence))
        };
        self.groups.iter().filter_map(head).collect()
    }

    /// After a crash nobody has any message.
    pub(crate) fn forget_consumers(&mut self) {
        for group in self.groups.values_mut() {
            group.taken = None;
            group.visible = Duration::ZERO;
        }
    }

    pub(crate) fn take_back(&mut self, undo: QueueUndo) {
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
            QueueUndo::Settled { place, letter } => self.dead.insert(place, *letter),
            QueueUndo::DeadLettered {
                group,
                sequence,
                mut waiting,
                dropped,
            } => {
                self.dead.pop_back();
                if let Some(dropped) = dropped {
                    self.dead.push_front(*dropped);
                }
                // It is not known any more that anybody gave it up.
                waiting.is_hopeless = false;
                self.groups
                    .entry(group)
                    .or_default()
                    .messages
                    .insert(sequence, waiting);
            }
            QueueUndo::Removed {
                group,
                sequence,
                waiting,
            } => {
                self.groups
                    .entry(group)
                    .or_default()
                    .messages
                    .insert(sequence, waiting);
            }
        }
    }
}

impl Group {
    /// From when it gives its first message to whoever asks; none if nobody may have it.
    fn gives_from(&self) -> Option<Duration> {
        (self.taken.is_none() && !self.messages.is_empty()).then_some(self.visible)
    }

    /// Whether `handle` is the present delivery of a message that is with a consumer.
    fn holds(&self, handle: &Handle) -> bool {
        let is_taken =
            |taken: Taken| handle.sequence <= taken.last && handle.incarnation == taken.incarnation;
        self.taken.is_some_and(is_taken)
            && self
                .messages
                .get(&handle.sequence)
                .is_some_and(|waiting| waiting.attempts == handle.attempt)
    }

    fn fail(&mut self, sequence: Sequence, reason: &str) {
        if let Some(waiting) = self.messages.get_mut(&sequence) {
            waiting.failures += 1;
            reason.clone_into(&mut waiting.reason);
        }
    }
}

impl Waiting {
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
