//! The stream to the far store, without I/O: which records may leave, in which batches, and what an answer makes of them.
//!
//! Each lane is a queue of records. A record leaves once the near store has made it durable, what it depends on is far-durable, and
//! it has lingered or somebody waits. It is done once its batch is far-durable and all before it in its lane are.
//!
//! Invariants
//! - A lane's records are done in the order of their sequences.
//! - A record is never under way before what it depends on is done.
//! - A poisoned lane sends nothing from the poison on, and nothing that depends on that is sent.
//! - A lane that nobody holds has read nothing: so it can be used again once all that was written in it is done.
//! - `busy` are the lanes with something to send, and nothing but opening and draining looks at others: what many idle ones cost is
//!   their memory.
//! - `bytes` is what all records hold that are not done, and of poisoned lanes nothing.

mod batches;
mod lanes;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ports::{DurabilityPoint, Error, ErrorKind, Monotonic};
use primitives::Delays;

use crate::{
    layout::{LaneId, Record, RecordId},
    options::{Mode, Options},
};

pub(crate) use batches::{Outgoing, Verdict};

/// A record that is not yet far-durable.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    pub(crate) record: Arc<Record>,
    /// The payloads of its changes, in their order; none: deleted.
    pub(crate) payloads: Vec<Option<Bytes>>,
    /// Where it stands in the near store.
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

    /// What it takes of memory and of the wire, about.
    fn bytes(&self) -> usize {
        let changes = self.record.changes.iter().zip(&self.payloads);
        changes
            .map(|(change, payload)| change.key.len() + payload.as_ref().map_or(0, Bytes::len) + 64)
            .sum()
    }
}

/// Why a lane goes no further.
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
    /// The last sequence that is far-durable.
    done: u64,
    records: VecDeque<Pending>,
    bytes: usize,
    batches_under_way: usize,
    /// A batch failed: one at a time until one succeeds.
    is_cautious: bool,
    /// Up to here one record at a time, to find the one that cannot be written.
    singly_until: u64,
    retry: Option<(Monotonic, Delays)>,
    /// Somebody waits up to here.
    urgent: u64,
    poison: Option<Poison>,
    /// What it has read or overwritten since its last record, by lane the latest.
    inherited: BTreeMap<LaneId, u64>,
    /// The highest position that it has written or read.
    high: u64,
    /// Handles to it.
    holders: usize,
    /// It stands among those that may be used again.
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

    /// Whether its first record is still to be sent, or under way.
    fn has_work(&self) -> bool {
        !self.records.is_empty() && self.poisoned_at(self.done + 1).is_none()
    }

    fn can_be_reused(&self) -> bool {
        self.holders == 0 && self.records.is_empty() && self.poison.is_none()
    }
}

/// All lanes of a range.
#[derive(Debug)]
pub(crate) struct Stream {
    options: Options,
    far_items_max: usize,
    epoch: u64,
    lanes: BTreeMap<LaneId, Lane>,
    /// Those that have work.
    busy: BTreeSet<LaneId>,
    /// Whose turn it was last.
    sent_last: LaneId,
    /// Those that nobody holds, the longest first; they may still have something to send.
    let_go: VecDeque<LaneId>,
    /// How many were made in this epoch.
    made: u32,
    /// What every lane of this epoch begins behind: the tail of earlier epochs.
    tail: BTreeMap<LaneId, u64>,
    /// Not yet far-durable.
    bytes: usize,
    batches_under_way: usize,
    bytes_under_way: usize,
    /// The near store has made everything up to this position durable.
    near_durable: u64,
}

/// What is pending, for whoever wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) records: usize,
    pub(crate) bytes: usize,
    pub(crate) oldest: Option<Monotonic>,
    pub(crate) poisoned: usize,
}

impl Stream {
    pub(crate) fn new(options: Options, far_items_max: usize, epoch: u64) -> Self {
        Self {
            options,
            far_items_max,
            epoch,
            lanes: BTreeMap::new(),
            busy: BTreeSet::new(),
            sent_last: LaneId {
                epoch: 0,
                number: 0,
            },
            let_go: VecDeque::new(),
            made: 0,
            tail: BTreeMap::new(),
            bytes: 0,
            batches_under_way: 0,
            bytes_under_way: 0,
            near_durable: 0,
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        self.options.mode
    }

    pub(crate) fn set_mode(&mut self, mode: Mode) {
        self.options.mode = mode;
    }

    /// Whether writers have to wait (E7).
    pub(crate) fn is_full(&self, now: Monotonic, bytes: usize) -> bool {
        let room = self.bytes == 0 || self.bytes + bytes <= self.options.pending_bytes_max;
        let is_late = |since: Monotonic| now.since(since) > self.options.pending_age_max;
        !room || self.oldest().is_some_and(is_late)
    }

    /// The lanes that have work.
    fn busy(&self) -> impl Iterator<Item = &Lane> {
        self.busy.iter().map(|id| &self.lanes[id])
    }

    /// The same without those whose work ends at a poison.
    fn sound(&self) -> impl Iterator<Item = &Lane> {
        self.busy().filter(|lane| lane.poison.is_none())
    }

    fn oldest(&self) -> Option<Monotonic> {
        self.sound()
            .filter_map(|lane| lane.records.front())
            .map(|pending| pending.since)
            .min()
    }

    /// Notes whether a lane has work. To be called whenever it may have got some, or come to the end of it.
    fn note(&mut self, id: LaneId) {
        if self.lanes[&id].has_work() {
            self.busy.insert(id);
        } else {
            self.busy.remove(&id);
        }
    }

    /// What is pending, poisoned lanes apart.
    pub(crate) fn load(&self) -> Load {
        Load {
            records: self.sound().map(|lane| lane.records.len()).sum(),
            bytes: self.bytes,
            oldest: self.oldest(),
            poisoned: self
                .lanes
                .values()
                .filter(|lane| lane.poison.is_some())
                .count(),
        }
    }

    /// Up to where the near store should make durable what is pending; none: nothing waits for it.
    pub(crate) fn near_wanted(&self) -> Option<(u64, DurabilityPoint)> {
        let last = self.busy().filter_map(|lane| lane.records.back());
        let last = last.max_by_key(|pending| pending.record.position)?;
        (last.record.position > self.near_durable).then_some((last.record.position, last.near))
    }

    /// The near store has made everything up to `position` durable.
    pub(crate) fn near_is_durable(&mut self, position: u64) {
        self.near_durable = self.near_durable.max(position);
    }

    /// Whether a place is far-durable: also if its lane is of an earlier epoch and nothing of it is left.
    pub(crate) fn is_done(&self, place: RecordId) -> bool {
        match self.lanes.get(&place.lane) {
            Some(lane) => lane.done >= place.sequence,
            None => true,
        }
    }

    fn poison_of(&self, place: RecordId) -> Option<&Poison> {
        self.lanes.get(&place.lane)?.poisoned_at(place.sequence)
    }

    fn retry_delay_max(&self) -> Duration {
        self.options.backoff_max
    }
}
