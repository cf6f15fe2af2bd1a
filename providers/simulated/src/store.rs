//! The one store of a world: items, lanes and queues under one order, with the way back from what is not
//! durable.
//!
//! Every mutation takes the next position and leaves behind how to undo it. An fsync moves the durable
//! position forward and forgets the undoing up to it; a crash undoes the rest, newest first. The next
//! incarnation goes on at the position where the last one ended, so that an old point can never be mistaken
//! for a new one with the same number unless its incarnation is looked at (D3).

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use ports::{
    Cost, DurabilityPoint, Error, ErrorKind, Incarnation, Key, Position, Receipt, Result,
    key_value::{KeyValueLimits, evaluate::Stored},
    queue::QueueLimits,
};

use crate::{
    config::Options,
    queue::{QueueState, QueueUndo},
};

/// Mutations that wait for an fsync; beyond it the oldest become durable by themselves.
const UNDO_MAX: usize = 100_000;

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) limits: KeyValueLimits,
    pub(crate) queue_limits: QueueLimits,
    pub(crate) items: BTreeMap<Key, Slot>,
    pub(crate) lanes: BTreeMap<Bytes, u64>,
    pub(crate) queues: BTreeMap<String, QueueState>,
    durable_at_once: bool,
    incarnation: Incarnation,
    position: u64,
    durable: u64,
    /// Where each earlier incarnation ended.
    ends: BTreeMap<Incarnation, u64>,
    undo: VecDeque<(u64, Undo)>,
    flushing: bool,
    /// Whether its disk is.
    pub(crate) is_full: bool,
    /// What items go back to in a crash that were changed by transient updates since.
    transient: BTreeMap<Key, Option<Slot>>,
    nothing: Stored,
}

/// An item, or the memory of a deleted one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slot {
    pub(crate) stored: Stored,
    pub(crate) deleted_at: Option<Duration>,
}

/// How to undo one part of a mutation.
#[derive(Debug)]
pub(crate) enum Undo {
    Item(Key, Option<Slot>),
    Lane(Bytes, Option<u64>),
    Queue(String, QueueUndo),
}

/// Where a point stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    Durable,
    Pending,
    Lost,
    /// No mutation of this start has had it yet.
    Unheard,
}

impl Store {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            limits: options.key_value,
            queue_limits: options.queue,
            items: BTreeMap::new(),
            lanes: BTreeMap::new(),
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

    /// The position now.
    pub(crate) fn point(&self) -> DurabilityPoint {
        DurabilityPoint {
            incarnation: self.incarnation,
            position: Position(self.position),
        }
    }

    /// Up to where the order is durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Gives a mutation the next position; `undo` takes its parts back, last one first.
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

    /// The receipt of what stands at the position now.
    pub(crate) fn receipt(&self, cost: Cost) -> Receipt {
        Receipt {
            point: self.point(),
            cost,
        }
    }

    /// The item under `key`, or the memory of it, or nothing.
    pub(crate) fn stored(&self, key: &Key, now: Duration) -> &Stored {
        match self.items.get(key) {
            Some(slot) if !self.is_forgotten(slot, now) => &slot.stored,
            _ => &self.nothing,
        }
    }

    /// Refuses what would take room where there is none (K11).
    pub(crate) fn check_room(&self) -> Result<()> {
        if self.is_full {
            Err(Error::new(ErrorKind::NoRoom, "write on a full disk"))
        } else {
            Ok(())
        }
    }

    /// Stores `stored` under `key`; returns how to undo it, with the transient updates before it.
    pub(crate) fn put(&mut self, key: Key, stored: Stored, now: Duration) -> Undo {
        let before = self.replace(key.clone(), stored, now);
        let durable = self.transient.remove(&key).unwrap_or(before);
        Undo::Item(key, durable)
    }

    /// Stores `stored` under `key` until the next crash (D5), and takes no position; false if everything is durable
    /// at once, here.
    pub(crate) fn put_transient(&mut self, key: &Key, stored: &Stored, now: Duration) -> bool {
        if self.durable_at_once {
            return false;
        }
        let before = self.replace(key.clone(), stored.clone(), now);
        self.transient.entry(key.clone()).or_insert(before);
        true
    }

    /// Stores `stored` under `key`; returns what was there.
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

    /// Moves a lane's cursor; returns how to undo it.
    pub(crate) fn move_lane(&mut self, lane: Bytes, cursor: u64) -> Undo {
        let before = self.lanes.insert(lane.clone(), cursor);
        Undo::Lane(lane, before)
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
                _ => Durability::Unheard,
            };
        }
        match self.ends.get(&point.incarnation) {
            Some(end) if position <= *end => Durability::Durable,
            // Of a start that this store never made, too: it has lost that start (D4).
            _ => Durability::Lost,
        }
    }

    /// Begins an fsync and says of what; none if one is under way.
    pub(crate) fn begin_flush(&mut self) -> Option<DurabilityPoint> {
        if self.flushing {
            return None;
        }
        self.flushing = true;
        Some(self.point())
    }

    /// Ends an fsync that began at `target`; one of an earlier incarnation has died with it.
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

    /// Undoes everything behind `kept` and begins the next incarnation there.
    pub(crate) fn crash(&mut self, kept: u64) {
        assert!(
            (self.durable..=self.position).contains(&kept),
            "a crash keeps what is durable"
        );
        // Each lies above the last durable change of its item, so it goes first.
        for (key, slot) in std::mem::take(&mut self.transient) {
            self.take_back(Undo::Item(key, slot));
        }
        while self.undo.back().is_some_and(|(of, _)| *of > kept) {
            if let Some((_, undo)) = self.undo.pop_back() {
                self.take_back(undo);
            }
        }
        self.undo.clear();
        self.ends.insert(self.incarnation, kept);
        self.incarnation.0 += 1;
        self.position = kept;
        self.durable = kept;
        self.flushing = false;
        for queue in self.queues.values_mut() {
            queue.forget_consumers();
            queue.forget_transient();
        }
    }

    fn take_back(&mut self, undo: Undo) {
        match undo {
            Undo::Item(key, Some(slot)) => drop(self.items.insert(key, slot)),
            Undo::Item(key, None) => drop(self.items.remove(&key)),
            Undo::Lane(lane, Some(cursor)) => drop(self.lanes.insert(lane, cursor)),
            Undo::Lane(lane, None) => drop(self.lanes.remove(&lane)),
            Undo::Queue(queue, QueueUndo::Created) => drop(self.queues.remove(&queue)),
            Undo::Queue(queue, undo) => {
                if let Some(queue) = self.queues.get_mut(&queue) {
                    queue.take_back(undo);
                }
            }
        }
    }
}
