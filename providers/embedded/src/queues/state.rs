//! One queue in memory: its groups, the groups in line, and the deadlines.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ports::queue::{Backlog, OnFailure, QueueOptions, Retention};
use tokio::sync::Notify;

use super::{
    bump,
    group::{Deadline, Group, Phase, QueuedMessage},
};

/// One queue.
#[derive(Debug)]
pub(crate) struct QueueState {
    pub(super) id: u32,
    pub(super) options: QueueOptions,
    /// Whether some messages may have records: the queue is durable, or was.
    pub(super) has_records: bool,
    pub(super) groups: HashMap<Bytes, Group>,
    /// The groups in phase ready, in the order of delivery.
    pub(super) ready: VecDeque<Bytes>,
    pub(super) deadlines: BTreeMap<Deadline, Bytes>,
    pub(super) deduplication: HashMap<Bytes, u64>,
    /// Deduplication ids in the order of their expiry, in milliseconds since the epoch.
    pub(super) expiring: VecDeque<(u64, Bytes)>,
    pub(super) notify: Arc<Notify>,
    /// The number of dead letters.
    pub(super) dead_letters: u64,
    /// How many dead letters are kept.
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

    /// The number of messages and dead letters.
    pub(crate) fn backlog(&self) -> Backlog {
        let messages = self
            .groups
            .values()
            .map(|group| group.messages.len() as u64)
            .sum();
        Backlog {
            messages,
            dead_letters: self.dead_letters,
        }
    }

    /// Notes that some messages have records, even if the queue is transient now.
    pub(super) fn note_records(&mut self) {
        self.has_records = true;
    }

    /// The blocked groups, each with the permanently failed message that blocks it.
    pub(crate) fn blocked(&self) -> impl Iterator<Item = (&Bytes, &QueuedMessage)> {
        let (blocks, attempts_max) = (
            self.options.on_failure == OnFailure::Block,
            self.options.attempts_max,
        );
        let heads = self
            .groups
            .iter()
            .filter_map(|(name, group)| Some((name, group.messages.front()?)));
        heads.filter(move |(_, head)| blocks && head.failures >= attempts_max)
    }

    /// Puts a group in line, or delays it until its `not_before`.
    pub(super) fn put_in_line(&mut self, name: &Bytes, now: Duration, next_deadline: &mut u64) {
        let group = self
            .groups
            .get_mut(name)
            .expect("the caller holds a group of this queue");
        if group.messages.is_empty() {
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

    /// Appends a message to its group.
    pub(super) fn append(&mut self, group_name: Bytes, message: QueuedMessage) {
        if let Some(group) = self.groups.get_mut(&group_name) {
            group.messages.push_back(message);
            return;
        }
        let mut group = Group::new();
        group.messages.push_back(message);
        self.groups.insert(group_name.clone(), group);
        self.ready.push_back(group_name);
        self.notify.notify_one();
    }

    /// Takes `by` messages out of a group's flight. An empty flight ends.
    pub(super) fn shrink_flight(
        &mut self,
        name: &Bytes,
        by: usize,
        now: Duration,
        next_deadline: &mut u64,
    ) {
        let group = self
            .groups
            .get_mut(name)
            .expect("the caller holds a group of this queue");
        let Phase::InFlight { count, deadline } = &mut group.phase else {
            return;
        };
        *count -= by;
        if *count == 0 {
            self.deadlines.remove(&*deadline);
            self.put_in_line(name, now, next_deadline);
        }
    }
}
