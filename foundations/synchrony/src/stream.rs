//! The stream to the far store, without I/O: which records may be sent, in which batches, and the
//! effect of each response.
//!
//! Each lane is a queue of records. A record is sent once the near store has made it durable, its
//! dependencies are durable far, and it has lingered or a caller waits. It is done once its batch
//! is durable far, and all records before it in its lane are done.
//!
//! Invariants
//! - The records of a lane are done in the order of their sequences.
//! - A record is never under way before its dependencies are done.
//! - A poisoned lane sends no record from the poison on, nor does any lane that depends on such a
//!   record.
//! - A lane without handles has read nothing. So it can be reused once all its writes are done.
//! - `busy` has the lanes with records to send. Only opening and draining look at other lanes, so
//!   idle ones cost memory alone.
//! - `bytes` is the size of all records that are not done; poisoned lanes do not count.

mod batches;
mod lanes;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use ports::{DurabilityPoint, Error, ErrorKind, Monotonic};
use primitives::Delays;

use crate::{
    health::Health,
    layout::{LaneId, Record, RecordId},
    options::Options,
};

pub(crate) use batches::{Outgoing, Verdict};

#[derive(Debug, Clone)]
pub(crate) struct Pending {
    pub(crate) record: Arc<Record>,
    /// The payloads of its changes, in order; none: deleted.
    pub(crate) payloads: Vec<Option<Bytes>>,
    /// Its point in the near store.
    pub(crate) near: DurabilityPoint,
    pub(crate) since: Monotonic,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Queued,
    UnderWay,
    Applied,
}

impl Pending {
    pub(crate) fn new(
        record: Arc<Record>,
        payloads: Vec<Option<Bytes>>,
        near: DurabilityPoint,
        since: Monotonic,
    ) -> Self {
        Self {
            record,
            payloads,
            near,
            since,
            stage: Stage::Queued,
        }
    }

    /// About how many bytes it takes in memory and on the wire.
    fn bytes(&self) -> usize {
        let changes = self.record.changes.iter().zip(&self.payloads);
        changes
            .map(|(change, payload)| change.key.len() + payload.as_ref().map_or(0, Bytes::len) + 64)
            .sum()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Poison {
    /// The first sequence that is not written.
    from: u64,
    kind: ErrorKind,
    why: String,
}

impl Poison {
    pub(crate) fn error(&self) -> Error {
        Error::new(
            self.kind,
            format!("write far what a lane wrote: {}", self.why),
        )
    }
}

#[derive(Debug, Default)]
struct Lane {
    done: u64,
    records: VecDeque<Pending>,
    bytes: usize,
    batches_under_way: usize,
    /// Whether a batch failed: then one batch at a time is sent until one succeeds.
    is_cautious: bool,
    /// Up to this sequence each batch has one record, to find the one that cannot be written.
    singly_until: u64,
    retry: Option<(Monotonic, Delays)>,
    /// The last sequence that a caller waits for.
    urgent: u64,
    poison: Option<Poison>,
    /// The latest records of other lanes that it has read or overwritten since its last record.
    inherited: BTreeMap<LaneId, u64>,
    /// The highest position that it has written or read.
    high: u64,
    holders: usize,
    /// Whether it is among the lanes that may be reused.
    is_let_go: bool,
}

impl Lane {
    fn next(&self) -> u64 {
        self.done + self.records.len() as u64 + 1
    }

    fn poisoned_at(&self, sequence: u64) -> Option<&Poison> {
        self.poison
            .as_ref()
            .filter(|poison| poison.from <= sequence)
    }

    /// Whether its first record is to be sent, or under way.
    fn has_work(&self) -> bool {
        !self.records.is_empty() && self.poisoned_at(self.done + 1).is_none()
    }

    fn can_be_reused(&self) -> bool {
        self.holders == 0 && self.records.is_empty() && self.poison.is_none()
    }

    /// The records of other lanes that its next record depends on.
    fn dependencies(&self) -> impl Iterator<Item = RecordId> {
        self.inherited
            .iter()
            .map(|(lane, sequence)| lane.at(*sequence))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Stream {
    options: Options,
    far_items_max: usize,
    epoch: u64,
    lanes: BTreeMap<LaneId, Lane>,
    busy: BTreeSet<LaneId>,
    sent_last: LaneId,
    /// The lanes without handles, the oldest first; they may still have records to send.
    let_go: VecDeque<LaneId>,
    made: u32,
    /// The tail of earlier epochs, which every lane of this epoch follows.
    tail: BTreeMap<LaneId, u64>,
    bytes: usize,
    batches_under_way: usize,
    bytes_under_way: usize,
    /// The position up to which the near store is durable.
    near_durable: u64,
}

impl Stream {
    pub(crate) fn new(options: Options, far_items_max: usize, epoch: u64) -> Self {
        Self {
            options,
            far_items_max,
            epoch,
            ..Self::default()
        }
    }

    /// Whether writers have to wait (E7).
    pub(crate) fn is_full(&self, now: Monotonic) -> bool {
        let is_late = |since: Monotonic| now.since(since) > self.options.pending_age_max;
        self.bytes > self.options.pending_bytes_max || self.oldest().is_some_and(is_late)
    }

    fn busy(&self) -> impl Iterator<Item = &Lane> {
        self.busy.iter().map(|id| &self.lanes[id])
    }

    /// The same without lanes whose work ends at a poison.
    fn sound(&self) -> impl Iterator<Item = &Lane> {
        self.busy().filter(|lane| lane.poison.is_none())
    }

    fn oldest(&self) -> Option<Monotonic> {
        self.sound()
            .filter_map(|lane| lane.records.front())
            .map(|pending| pending.since)
            .min()
    }

    /// Updates `busy`. Call this whenever a lane may have got work, or finished it.
    fn note(&mut self, id: LaneId) {
        if self.lanes[&id].has_work() {
            self.busy.insert(id);
        } else {
            self.busy.remove(&id);
        }
    }

    /// The health as far as pending records show it, without those of poisoned lanes.
    pub(crate) fn health(&self, now: Monotonic) -> Health {
        let is_poisoned = |lane: &&Lane| lane.poison.is_some();
        let waited = self.oldest().map(|oldest| now.since(oldest));
        Health {
            pending_records: self.sound().map(|lane| lane.records.len()).sum(),
            pending_bytes: self.bytes,
            pending_for: waited.unwrap_or_default(),
            poisoned_lanes: self.lanes.values().filter(is_poisoned).count(),
            ..Health::default()
        }
    }

    /// The position and point up to which the near store should become durable; none: no record
    /// waits for it.
    pub(crate) fn near_wanted(&self) -> Option<(u64, DurabilityPoint)> {
        let last = self.busy().filter_map(|lane| lane.records.back());
        let last = last.max_by_key(|pending| pending.record.position)?;
        (last.record.position > self.near_durable).then_some((last.record.position, last.near))
    }

    pub(crate) fn near_is_durable(&mut self, position: u64) {
        self.near_durable = self.near_durable.max(position);
    }

    /// Whether a record is durable far. This includes records of earlier epochs whose lanes have no
    /// remains.
    pub(crate) fn is_done(&self, place: RecordId) -> bool {
        match self.lanes.get(&place.lane) {
            Some(lane) => lane.done >= place.sequence,
            None => true,
        }
    }

    fn poison_of(&self, place: RecordId) -> Option<&Poison> {
        self.lanes.get(&place.lane)?.poisoned_at(place.sequence)
    }
}
