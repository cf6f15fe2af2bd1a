//! The store of a world: items and queues in one order, and the undo log of the mutations
//! that are not durable.
//!
//! Every mutation takes the next position and records how to undo it. An fsync advances the durable
//! position and drops the undo records up to it. A crash undoes the remaining mutations, newest
//! first. The next incarnation continues at the last kept position. Two points may have the same
//! position then, and differ in their incarnation (D3).

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use ports::{
    DurabilityPoint, Error, ErrorKind, Incarnation, Key, Position, Receipt, Result,
    key_value::{KeyValueLimits, evaluate::Stored},
    queue::QueueLimits,
};

pub(crate) use self::queue::{Forward, QueueState, QueueUndo};
use crate::config::Options;

mod queue;

/// The most mutations that wait for an fsync. Beyond it the oldest become durable.
const UNDO_MAX: usize = 100_000;

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) limits: KeyValueLimits,
    pub(crate) queue_limits: QueueLimits,
    pub(crate) items: BTreeMap<Key, Slot>,
    pub(crate) queues: BTreeMap<String, QueueState>,
    durable_at_once: bool,
    incarnation: Incarnation,
    position: u64,
    durable: u64,
    /// The final position of each earlier incarnation.
    ends: BTreeMap<Incarnation, u64>,
    undo: VecDeque<(u64, Undo)>,
    flushing: bool,
    /// Whether the disk is full.
    pub(crate) is_full: bool,
    /// The durable values of items with transient updates; a crash restores them.
    transient: BTreeMap<Key, Option<Slot>>,
    nothing: Stored,
}

/// An item, or the remembered operations of a deleted one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slot {
    pub(crate) stored: Stored,
    pub(crate) deleted_at: Option<Duration>,
}

/// How to undo one part of a mutation.
#[derive(Debug)]
pub(crate) enum Undo {
    Item(Key, Option<Slot>),
    Queue(String, QueueUndo),
}

/// The durability of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    Durable,
    Pending,
    Lost,
    /// This incarnation has no such point yet.
    Unknown,
}

impl Store {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            limits: options.key_value,
            queue_limits: options.queue,
            items: BTreeMap::new(),
            queues: BTreeMap::new(),
            durable_at_once: options.durable_at_once,
            incarnation: Incarnation(1),
            position: 0,
            durable: 0,
            ends: BTreeMap::new(),
            undo: VecDeque::new(),
            flushing: false,
            is_full: false,
            transient: BTreeMap::new(),
            nothing: Stored::default(),
        }
    }

    /// The present position.
    pub(crate) fn point(&self) -> DurabilityPoint {
        DurabilityPoint {
            incarnation: self.incarnation,
            position: Position(self.position),
        }
    }

    /// The durable position.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Gives a mutation the next position. `undo` holds its parts; the last one is undone first.
    pub(crate) fn order(&mut self, undo: Vec<Undo>) -> DurabilityPoint {
        self.position += 1;
        let position = self.position;
        self.undo
            .extend(undo.into_iter().map(|undo| (position, undo)));
        if self.durable_at_once {
            self.make_durable(position);
        } else if self.undo.len() > UNDO_MAX {
            self.make_durable(position - UNDO_MAX as u64 / 2);
        }
        self.point()
    }

    /// A receipt for the present position.
    pub(crate) fn receipt(&self) -> Receipt {
        Receipt {
            point: self.point(),
        }
    }

    /// The item under `key`, or what is remembered of a deleted one.
    pub(crate) fn stored(&self, key: &Key, now: Duration) -> &Stored {
        match self.items.get(key) {
            Some(slot) if !self.is_forgotten(slot, now) => &slot.stored,
            _ => &self.nothing,
        }
    }

    /// Refuses a change that needs space on a full disk (K11).
    pub(crate) fn check_room(&self) -> Result<()> {
        if self.is_full {
            Err(Error::new(ErrorKind::NoRoom, "write on a full disk"))
        } else {
            Ok(())
        }
    }

    /// Stores `stored` under `key`. Returns how to undo it, together with the transient updates
    /// before it.
    pub(crate) fn put(&mut self, key: Key, stored: Stored, now: Duration) -> Undo {
        let before = self.replace(key.clone(), stored, now);
        let durable = self.transient.remove(&key).unwrap_or(before);
        Undo::Item(key, durable)
    }

    /// Stores `stored` under `key` until the next crash (D5), without taking a position. Returns
    /// false if everything is durable at once here.
    pub(crate) fn put_transient(&mut self, key: &Key, stored: &Stored, now: Duration) -> bool {
        if self.durable_at_once {
            return false;
        }
        let before = self.replace(key.clone(), stored.clone(), now);
        self.transient.entry(key.clone()).or_insert(before);
        true
    }

    /// Stores `stored` under `key`; returns the previous value.
    fn replace(&mut self, key: Key, stored: Stored, now: Duration) -> Option<Slot> {
        let remembers = stored
            .memory
            .as_deref()
            .is_some_and(|memory| !memory.is_empty());
        if stored.item.is_none() && !remembers {
            self.items.remove(&key)
        } else {
            let deleted_at = stored.item.is_none().then_some(now);
            self.items.insert(key, Slot { stored, deleted_at })
        }
    }

    fn is_forgotten(&self, slot: &Slot, now: Duration) -> bool {
        let retention = Duration::from_millis(self.limits.operation_retention_ms);
        slot.deleted_at
            .is_some_and(|deleted_at| now > deleted_at + retention)
    }

    pub(crate) fn durability(&self, point: DurabilityPoint) -> Durability {
        let position = point.position.0;
        if point == DurabilityPoint::DURABLE {
            return Durability::Durable;
        }
        if point.incarnation == self.incarnation {
            return match position {
                _ if position <= self.durable => Durability::Durable,
                _ if position <= self.position => Durability::Pending,
                _ => Durability::Unknown,
            };
        }
        match self.ends.get(&point.incarnation) {
            Some(end) if position <= *end => Durability::Durable,
            // This includes incarnations that this store never began: it has lost them (D4).
            _ => Durability::Lost,
        }
    }

    /// Begins an fsync and returns its target; none if one is running.
    pub(crate) fn begin_flush(&mut self) -> Option<DurabilityPoint> {
        if self.flushing {
            return None;
        }
        self.flushing = true;
        Some(self.point())
    }

    /// Ends the fsync to `target`. A crash has cancelled one of an earlier incarnation.
    pub(crate) fn end_flush(&mut self, target: DurabilityPoint) {
        if target.incarnation == self.incarnation {
            self.flushing = false;
            self.make_durable(target.position.0);
        }
    }

    fn make_durable(&mut self, position: u64) {
        self.durable = self.durable.max(position);
        while self.undo.front().is_some_and(|(of, _)| *of <= self.durable) {
            self.undo.pop_front();
        }
    }

    /// Undoes all mutations after `kept` and begins the next incarnation there.
    pub(crate) fn crash(&mut self, kept: u64) {
        assert!(
            (self.durable..=self.position).contains(&kept),
            "a crash keeps what is durable"
        );
        // Transient updates come after the last durable change of their item, so they are undone
        // first.
        for (key, slot) in std::mem::take(&mut self.transient) {
            self.undo(Undo::Item(key, slot));
        }
        while self.undo.back().is_some_and(|(of, _)| *of > kept) {
            if let Some((_, undo)) = self.undo.pop_back() {
                self.undo(undo);
            }
        }
        self.undo.clear();
        self.ends.insert(self.incarnation, kept);
        self.incarnation.0 += 1;
        self.position = kept;
        self.durable = kept;
        self.flushing = false;
        for queue in self.queues.values_mut() {
            queue.restart(self.incarnation);
        }
    }

    fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Item(key, Some(slot)) => drop(self.items.insert(key, slot)),
            Undo::Item(key, None) => drop(self.items.remove(&key)),
            Undo::Queue(queue, QueueUndo::Created) => drop(self.queues.remove(&queue)),
            Undo::Queue(queue, undo) => {
                if let Some(queue) = self.queues.get_mut(&queue) {
                    queue.undo(undo);
                }
            }
        }
    }
}
