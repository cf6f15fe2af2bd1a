//! The groups of one queue as a pure state machine: the order of messages, deliveries and failures.
//!
//! A provider stores bodies and dead letters, and asks [`Groups`] for every decision. A group is in
//! line, delayed, or with a consumer. Times are durations since any fixed moment.
//!
//! Invariants
//! - The messages with a consumer are the first ones of their group. No message of the group is
//!   delivered before all of them are acknowledged, released or overdue (Q1).
//! - Before its last attempt a message is delivered alone, so that only the failing message is
//!   given up (Q5).
//! - A group in line is in `line` once. Any other group has one entry in `deadlines`.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use super::{DeadLetter, Delivery, Handle, LetterId, OnFailure, QueueOptions, Sequence};
use crate::{Incarnation, Result};

/// The reason of a failure without an answer.
const TIMED_OUT: &str = "the visibility timeout ran out";

/// The bytes that are kept of a failure's reason.
const REASON_BYTES_MAX: usize = 1024;

/// A moment, and a number that makes it unique.
type Deadline = (Duration, u64);

/// A message in its group. `M` is what a provider keeps of it.
#[derive(Debug, Clone)]
pub struct Queued<M> {
    /// Its place in the group.
    pub sequence: Sequence,
    /// The id that its sender chose (Q8).
    pub deduplication: Option<Bytes>,
    /// How often it was delivered.
    pub attempts: u32,
    /// How often it failed (Q12).
    pub failures: u32,
    /// The reason of its last failure.
    pub reason: Arc<str>,
    /// The provider's part.
    pub stored: M,
}

impl<M> Queued<M> {
    /// A message that was never delivered.
    pub fn new(sequence: Sequence, deduplication: Option<Bytes>, stored: M) -> Self {
        Self {
            sequence,
            deduplication,
            attempts: 0,
            failures: 0,
            reason: Arc::default(),
            stored,
        }
    }

    /// Whether it failed as often as `options` allow.
    pub fn has_failed(&self, options: &QueueOptions) -> bool {
        self.failures >= options.attempts_max.max(1)
    }

    /// The message as a letter.
    pub fn letter(&self, id: LetterId, group: Bytes, body: Bytes) -> DeadLetter {
        DeadLetter {
            id,
            group,
            sequence: self.sequence,
            deduplication: self.deduplication.clone(),
            body,
            attempts: self.attempts,
            reason: self.reason.to_string(),
        }
    }

    fn fail(&mut self, reason: &str) {
        self.failures += 1;
        self.reason = Arc::from(&reason[..reason.floor_char_boundary(REASON_BYTES_MAX)]);
    }
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    InLine,
    Delayed(Deadline),
    /// The first `count` messages are with a consumer.
    InFlight {
        count: usize,
        deadline: Deadline,
    },
}

#[derive(Debug)]
struct Group<M> {
    messages: VecDeque<Queued<M>>,
    phase: Phase,
    /// No message is delivered before this time.
    not_before: Duration,
}

impl<M> Group<M> {
    fn index_of(&self, sequence: Sequence) -> Option<usize> {
        self.messages
            .binary_search_by_key(&sequence, |message| message.sequence)
            .ok()
    }
}

/// The groups of one queue.
#[derive(Debug)]
pub struct Groups<M> {
    by_name: BTreeMap<Bytes, Group<M>>,
    /// The names of the groups that may be delivered, in turn.
    line: VecDeque<Bytes>,
    deadlines: BTreeMap<Deadline, Bytes>,
    next_deadline: u64,
    /// The start of the store, which every handle carries (Q6).
    incarnation: Incarnation,
}

impl<M> Groups<M> {
    /// A queue without messages.
    pub fn new(incarnation: Incarnation) -> Self {
        Self {
            by_name: BTreeMap::new(),
            line: VecDeque::new(),
            deadlines: BTreeMap::new(),
            next_deadline: 0,
            incarnation,
        }
    }

    /// Ends all deliveries and delays at a new start of the store.
    pub fn restart(&mut self, incarnation: Incarnation) {
        self.incarnation = incarnation;
        self.deadlines.clear();
        self.line = self.by_name.keys().cloned().collect();
        for group in self.by_name.values_mut() {
            (group.phase, group.not_before) = (Phase::InLine, Duration::ZERO);
        }
    }

    /// Adds a message at its place in the group. No later message of the group may be with a
    /// consumer.
    pub fn insert(&mut self, name: Bytes, message: Queued<M>) {
        let group = self.by_name.entry(name).or_insert_with_key(|name| {
            self.line.push_back(name.clone());
            Group {
                messages: VecDeque::new(),
                phase: Phase::InLine,
                not_before: Duration::ZERO,
            }
        });
        let index = group
            .messages
            .partition_point(|earlier| earlier.sequence < message.sequence);
        group.messages.insert(index, message);
    }

    /// The message with this sequence.
    pub fn get_mut(&mut self, name: &Bytes, sequence: Sequence) -> Option<&mut Queued<M>> {
        let group = self.by_name.get_mut(name)?;
        let index = group.index_of(sequence)?;
        group.messages.get_mut(index)
    }

    /// Removes a message in any phase of its group.
    pub fn remove(&mut self, name: &Bytes, sequence: Sequence) -> Option<Queued<M>> {
        let group = self.by_name.get_mut(name)?;
        let index = group.index_of(sequence)?;
        let message = group.messages.remove(index);
        match &mut group.phase {
            Phase::InFlight { count, .. } if index < *count => {
                *count -= 1;
                if *count == 0 {
                    self.end_phase(name);
                }
            }
            Phase::InLine | Phase::Delayed(_) if group.messages.is_empty() => self.end_phase(name),
            _ => {}
        }
        message
    }

    /// Removes a message that is given up. Those after it are delivered without a delay (Q11).
    pub fn give_up(&mut self, name: &Bytes, sequence: Sequence) -> Option<Queued<M>> {
        let message = self.remove(name, sequence)?;
        if let Some(group) = self.by_name.get_mut(name) {
            group.not_before = Duration::ZERO;
            if let Phase::Delayed(_) = group.phase {
                self.end_phase(name);
            }
        }
        Some(message)
    }

    /// Hands the first messages of the next group in line to a consumer until `until`. `body` reads
    /// the body of a message. If it fails, nothing is delivered, and the group goes to the end of
    /// the line.
    pub fn receive(
        &mut self,
        messages_max: usize,
        options: &QueueOptions,
        until: Duration,
        mut body: impl FnMut(&Queued<M>) -> Result<Bytes>,
    ) -> Result<Vec<Delivery>> {
        let next = (messages_max > 0).then(|| self.line.pop_front()).flatten();
        let Some(name) = next else {
            return Ok(Vec::new());
        };
        let group = self
            .by_name
            .get_mut(&name)
            .expect("a group in line is a group of the queue");
        let last_attempt = options.attempts_max.saturating_sub(1).max(1);
        let is_alone = group
            .messages
            .front()
            .is_some_and(|head| head.failures >= last_attempt);
        let count = if is_alone { 1 } else { messages_max };
        let count = count.min(group.messages.len());
        let deliveries = group.messages.iter().take(count).map(|message| {
            Ok(Delivery {
                body: body(message)?,
                handle: Handle {
                    group: name.clone(),
                    sequence: message.sequence,
                    attempt: message.attempts + 1,
                    incarnation: self.incarnation,
                },
                deduplication: message.deduplication.clone(),
                failures: message.failures,
            })
        });
        let deliveries: Vec<_> = match deliveries.collect() {
            Ok(deliveries) => deliveries,
            Err(error) => {
                self.line.push_back(name);
                return Err(error);
            }
        };
        for message in group.messages.iter_mut().take(count) {
            message.attempts += 1;
        }
        self.next_deadline += 1;
        let deadline = (until, self.next_deadline);
        group.phase = Phase::InFlight { count, deadline };
        self.deadlines.insert(deadline, name);
        Ok(deliveries)
    }

    /// Removes a delivered message; none if the handle is stale (Q6).
    pub fn acknowledge(&mut self, handle: &Handle) -> Option<Queued<M>> {
        self.delivered(handle)?;
        self.remove(&handle.group, handle.sequence)
    }

    /// Returns a delivered message to the queue, which failed, and all later ones of its delivery.
    /// They are not delivered before `not_before`. Answers false if the handle is stale.
    pub fn release(&mut self, handle: &Handle, reason: &str, not_before: Duration) -> bool {
        let Some(index) = self.delivered(handle) else {
            return false;
        };
        if let Some(group) = self.by_name.get_mut(&handle.group) {
            group.messages[index].fail(reason);
            group.not_before = not_before;
            if let Phase::InFlight { count, .. } = &mut group.phase {
                *count = index;
            }
            if index == 0 {
                self.end_phase(&handle.group);
            }
        }
        true
    }

    /// Keeps the messages of a delivery hidden until `until`.
    pub fn extend(&mut self, handle: &Handle, until: Duration) {
        if self.delivered(handle).is_none() {
            return;
        }
        if let Some(Phase::InFlight { deadline, .. }) = self
            .by_name
            .get_mut(&handle.group)
            .map(|group| &mut group.phase)
        {
            self.deadlines.remove(deadline);
            self.next_deadline += 1;
            *deadline = (until, self.next_deadline);
            self.deadlines.insert(*deadline, handle.group.clone());
        }
    }

    /// Ends the delays that have passed, and the next overdue delivery. Returns the message at its
    /// head, which failed: it is the best guess of the one that the consumer could not process.
    pub fn expire(&mut self, now: Duration) -> Option<(Bytes, Sequence)> {
        loop {
            let first = self.deadlines.first_entry()?;
            if first.key().0 > now {
                return None;
            }
            let name = first.get().clone();
            let group = self
                .by_name
                .get_mut(&name)
                .expect("a deadline is of a group of the queue");
            if group.not_before <= now {
                group.not_before = Duration::ZERO;
            }
            let mut overdue = None;
            if let Phase::InFlight { .. } = group.phase {
                let head = &mut group.messages[0];
                head.fail(TIMED_OUT);
                overdue = Some((name.clone(), head.sequence));
            }
            self.end_phase(&name);
            if overdue.is_some() {
                return overdue;
            }
        }
    }

    /// Whether a consumer has messages of this group.
    pub fn is_in_flight(&self, name: &Bytes) -> bool {
        let phase = self.by_name.get(name).map(|group| group.phase);
        matches!(phase, Some(Phase::InFlight { .. }))
    }

    /// Whether a group is in line.
    pub fn is_ready(&self) -> bool {
        !self.line.is_empty()
    }

    /// The number of groups in line.
    pub fn in_line(&self) -> usize {
        self.line.len()
    }

    /// When the next delay or delivery ends.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines
            .first_key_value()
            .map(|(deadline, _)| deadline.0)
    }

    /// The number of messages.
    pub fn message_count(&self) -> u64 {
        let counts = self.by_name.values().map(|group| group.messages.len());
        counts.sum::<usize>() as u64
    }

    /// All messages with their groups, those of one group in order.
    pub fn messages(&self) -> impl Iterator<Item = (&Bytes, &Queued<M>)> {
        let groups = self.by_name.iter();
        groups.flat_map(|(name, group)| group.messages.iter().map(move |message| (name, message)))
    }

    /// The blocked groups, each with the permanently failed message that blocks it (Q5).
    pub fn blocked(&self, options: &QueueOptions) -> impl Iterator<Item = (&Bytes, &Queued<M>)> {
        let heads = self
            .by_name
            .iter()
            .filter_map(|(name, group)| Some((name, group.messages.front()?)));
        heads.filter(move |(_, head)| {
            options.on_failure == OnFailure::Block && head.has_failed(options)
        })
    }

    /// The index of the message whose current delivery is `handle`, if it is with a consumer.
    fn delivered(&self, handle: &Handle) -> Option<usize> {
        let group = self.by_name.get(&handle.group)?;
        let Phase::InFlight { count, .. } = group.phase else {
            return None;
        };
        let index = group.index_of(handle.sequence)?;
        let is_current = index < count
            && group.messages[index].attempts == handle.attempt
            && handle.incarnation == self.incarnation;
        is_current.then_some(index)
    }

    /// Ends the phase of a group. It is delayed next, or in line, or gone if it has no messages.
    fn end_phase(&mut self, name: &Bytes) {
        let Some(group) = self.by_name.get_mut(name) else {
            return;
        };
        match group.phase {
            Phase::InLine => self.line.retain(|other| other != name),
            Phase::Delayed(deadline) | Phase::InFlight { deadline, .. } => {
                self.deadlines.remove(&deadline);
            }
        }
        if group.messages.is_empty() {
            self.by_name.remove(name);
        } else if group.not_before > Duration::ZERO {
            self.next_deadline += 1;
            let deadline = (group.not_before, self.next_deadline);
            group.phase = Phase::Delayed(deadline);
            self.deadlines.insert(deadline, name.clone());
        } else {
            group.phase = Phase::InLine;
            self.line.push_back(name.clone());
        }
    }
}
