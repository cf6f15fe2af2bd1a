//! Batches: formed, and settled by their responses.

use std::{
    collections::BTreeMap,
    ops::{Bound, RangeInclusive},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ports::{Entropy, Error, ErrorKind, Monotonic};
use primitives::Backoff;

use super::{Lane, Pending, Poison, Stage, Stream};
use crate::{
    broken::Broken,
    layout::{LaneId, Record, RecordId, RowKey, Written},
    options::{FAR_ITEMS_RESERVE, Mode},
};

#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    pub(crate) lane: LaneId,
    pub(crate) sequences: RangeInclusive<u64>,
    /// The last change of each key, with its payload.
    pub(crate) changes: BTreeMap<RowKey, (Written, Option<Bytes>)>,
    bytes: usize,
}

#[derive(Debug)]
pub(crate) enum Verdict {
    /// The lane's far cursor is durable here.
    AppliedUntil(u64),
    /// An earlier batch is missing.
    Early,
    /// The outcome is unknown, or the error is transient.
    Failed,
    /// It was not applied, and never will be.
    Refused(Error),
}

const BACKOFF_FIRST: Duration = Duration::from_millis(10);

impl Stream {
    /// All batches that may be sent now.
    pub(crate) fn take_batches(&mut self, now: Monotonic) -> Vec<Outgoing> {
        let mut taken = Vec::new();
        // The lanes take turns, starting after the one that sent last. So a long lane does not fill
        // the window alone.
        let behind = (Bound::Excluded(self.sent_last), Bound::Unbounded);
        let ids = self.busy.range(behind);
        let ids = ids.chain(self.busy.range(..=self.sent_last));
        let ids: Vec<LaneId> = ids.copied().collect();
        loop {
            let before = taken.len();
            for id in &ids {
                if self.window_is_open()
                    && let Some(batch) = self.take_batch(*id, now)
                {
                    self.sent_last = *id;
                    taken.push(batch);
                }
            }
            if taken.len() == before {
                return taken;
            }
        }
    }

    fn window_is_open(&self) -> bool {
        match self.options.mode {
            Mode::Serial => self.batches_under_way == 0,
            Mode::External | Mode::Sync => {
                self.batches_under_way < self.options.window_batches_max
                    && (self.batches_under_way == 0
                        || self.bytes_under_way < self.options.window_bytes_max)
            }
        }
    }

    fn take_batch(&mut self, id: LaneId, now: Monotonic) -> Option<Outgoing> {
        let lane = &self.lanes[&id];
        let most = self.options.lane_batches_max;
        let most = if lane.is_cautious { 1 } else { most };
        let is_resting = lane.retry.as_ref().is_some_and(|(until, _)| *until > now);
        if lane.batches_under_way >= most || is_resting {
            return None;
        }
        let mut records = lane.records.iter();
        let first = records.position(|pending| pending.stage == Stage::Queued)?;
        if !self.has_lingered(lane, first, now) {
            return None;
        }
        let run = self.run_from(id, lane, first);
        if run == 0 || self.waits_for_its_end(lane, first, run, now) {
            return None;
        }
        Some(self.depart(id, first, run))
    }

    fn has_lingered(&self, lane: &Lane, first: usize, now: Monotonic) -> bool {
        let sequence = lane.done + first as u64 + 1;
        let since = lane.records[first].since;
        self.options.mode != Mode::External
            || lane.urgent >= sequence
            || lane.bytes >= self.options.linger_bytes_max
            || now.since(since) >= self.options.linger
    }

    /// Whether a caller also waits for the next record, and only the near store holds that back. A
    /// near sync takes a moment, and a batch without the record costs another round trip. This wait
    /// is limited, as more records may always follow.
    fn waits_for_its_end(&self, lane: &Lane, first: usize, run: usize, now: Monotonic) -> bool {
        let Some(next) = lane.records.get(first + run) else {
            return false;
        };
        self.options.mode == Mode::External
            && next.stage == Stage::Queued
            && next.record.position > self.near_durable
            && next.record.place.sequence <= lane.urgent
            && now.since(lane.records[first].since) < 2 * self.options.linger
    }

    /// How many records from `first` on may share a batch.
    fn run_from(&self, id: LaneId, lane: &Lane, first: usize) -> usize {
        let singly =
            self.options.mode == Mode::Serial || lane.singly_until > lane.done + first as u64;
        let items_max = self.far_items_max - FAR_ITEMS_RESERVE;
        let (mut items, mut bytes, mut run) = (0, 0, 0);
        for pending in lane.records.range(first..) {
            items += pending.record.changes.len();
            bytes += pending.bytes();
            let fits = items <= items_max && bytes <= self.options.batch_bytes_max && !singly;
            if pending.stage != Stage::Queued || (run > 0 && !fits) || !self.may_leave(id, pending)
            {
                break;
            }
            run += 1;
        }
        run
    }

    fn may_leave(&self, id: LaneId, pending: &Pending) -> bool {
        let near = pending.record.position <= self.near_durable;
        let near = near || self.options.mutant.breaks(Broken::SendsBeforeNearIsDurable);
        let free = self.options.mutant.breaks(Broken::IgnoresDependencies)
            || self.options.mutant.breaks(Broken::OldOverwritesNewer);
        let is_done = |place: &RecordId| free || place.lane == id || self.is_done(*place);
        let is_sound = self.lanes[&id]
            .poisoned_at(pending.record.place.sequence)
            .is_none();
        near && is_sound && pending.record.dependencies.iter().all(is_done)
    }

    fn depart(&mut self, id: LaneId, first: usize, run: usize) -> Outgoing {
        let lane = self.lane(id);
        let from = lane.done + first as u64 + 1;
        let sequences = from..=from + run as u64 - 1;
        let mut outgoing = Outgoing {
            lane: id,
            sequences,
            changes: BTreeMap::new(),
            bytes: 0,
        };
        for pending in lane.records.range_mut(first..first + run) {
            pending.stage = Stage::UnderWay;
            outgoing.bytes += pending.bytes();
            for (written, payload) in pending.record.changes.iter().zip(&pending.payloads) {
                let change = (written.clone(), payload.clone());
                outgoing.changes.insert(written.key.clone(), change);
            }
        }
        lane.batches_under_way += 1;
        self.batches_under_way += 1;
        self.bytes_under_way += outgoing.bytes;
        outgoing
    }

    /// When a batch that must wait now may be sent, if no other event comes first.
    pub(crate) fn wakes_at(&self, now: Monotonic) -> Option<Monotonic> {
        let moment = |lane: &Lane| {
            let mut records = lane.records.iter();
            let queued = records.find(|pending| pending.stage == Stage::Queued)?;
            let lingers = queued.since + self.options.linger;
            // The longest wait for records that are not durable near.
            let leaves = lingers + self.options.linger;
            let rests = lane.retry.as_ref().map(|(until, _)| *until);
            [Some(lingers), Some(leaves), rests]
                .into_iter()
                .flatten()
                .filter(|moment| *moment > now)
                .min()
        };
        self.sound().filter_map(moment).min()
    }

    /// Settles a batch; returns the records that are durable far now.
    pub(crate) fn settle(
        &mut self,
        batch: &Outgoing,
        verdict: Verdict,
        now: Monotonic,
        entropy: &dyn Entropy,
    ) -> Vec<Arc<Record>> {
        self.batches_under_way -= 1;
        self.bytes_under_way -= batch.bytes;
        self.lane(batch.lane).batches_under_way -= 1;
        let until = match &verdict {
            Verdict::AppliedUntil(until) => *until,
            _ => 0,
        };
        self.mark(batch, until);
        match verdict {
            Verdict::AppliedUntil(_) => {
                let lane = self.lane(batch.lane);
                (lane.is_cautious, lane.retry) = (false, None);
            }
            Verdict::Early => self.lane(batch.lane).is_cautious = true,
            Verdict::Failed => self.rest(batch.lane, now, entropy),
            Verdict::Refused(error) => self.refuse(batch, &error),
        }
        self.retire(batch.lane)
    }

    /// Marks the records of a batch up to `until` as applied; the others are sent again.
    fn mark(&mut self, batch: &Outgoing, until: u64) {
        let lane = self.lane(batch.lane);
        for sequence in batch.sequences.clone() {
            let index = sequence.checked_sub(lane.done + 1);
            if let Some(pending) = index.and_then(|index| lane.records.get_mut(index as usize)) {
                pending.stage = if sequence <= until {
                    Stage::Applied
                } else {
                    Stage::Queued
                };
            }
        }
    }

    /// Removes applied records from the front of a lane.
    fn retire(&mut self, id: LaneId) -> Vec<Arc<Record>> {
        let lane = self.lane(id);
        let (mut done, mut freed) = (Vec::new(), 0);
        let is_applied = |pending: &mut Pending| pending.stage == Stage::Applied;
        while let Some(pending) = lane.records.pop_front_if(is_applied) {
            lane.done += 1;
            freed += pending.bytes();
            done.push(pending.record);
        }
        lane.bytes -= freed;
        if lane.poison.is_none() {
            self.bytes -= freed;
        }
        self.note(id);
        done
    }

    /// Schedules a retry, one batch at a time.
    fn rest(&mut self, id: LaneId, now: Monotonic, entropy: &dyn Entropy) {
        let backoff = Backoff {
            first: BACKOFF_FIRST,
            longest: self.options.backoff_max,
            attempts_max: u32::MAX,
        };
        let lane = self.lane(id);
        lane.is_cautious = true;
        let (_, mut delays) = lane.retry.take().unwrap_or_else(|| (now, backoff.delays()));
        let delay = delays.next_delay(entropy).unwrap_or(backoff.longest);
        lane.retry = Some((now + delay, delays));
    }

    /// A batch cannot be written. Its records are tried one by one, and the one that fails alone is
    /// the poison.
    fn refuse(&mut self, batch: &Outgoing, error: &Error) {
        let (first, last) = (*batch.sequences.start(), *batch.sequences.end());
        let skips = self.options.mutant.breaks(Broken::SkipsWhatFails);
        let lane = self.lane(batch.lane);
        lane.is_cautious = true;
        if first < last {
            lane.singly_until = lane.singly_until.max(last);
        } else if skips {
            self.mark(batch, last);
        } else {
            self.poison(batch.lane.at(first), error.kind(), &error.to_string());
        }
    }

    /// Stops a lane from `place` on, and all lanes that depend on it.
    pub(super) fn poison(&mut self, place: RecordId, kind: ErrorKind, why: &str) {
        let mut left = vec![place];
        while let Some(RecordId { lane: id, sequence }) = left.pop() {
            let lane = self.lane(id);
            if lane.poisoned_at(sequence).is_some() {
                continue;
            }
            let was_sound = lane.poison.is_none();
            lane.poison = Some(Poison {
                from: sequence,
                kind,
                why: why.to_owned(),
            });
            let bytes = lane.bytes;
            if was_sound {
                self.bytes -= bytes;
            }
            self.note(id);
            left.extend(self.dependants_of(id, sequence));
        }
    }

    /// For each lane, its first record that depends on a write of `id` from `sequence` on.
    fn dependants_of(&self, id: LaneId, sequence: u64) -> Vec<RecordId> {
        let depends = |record: &&Arc<Record>| {
            let mut dependencies = record.dependencies.iter();
            dependencies.any(|place| place.lane == id && place.sequence >= sequence)
        };
        let first = |lane: &Lane| {
            let mut records = lane.records.iter().map(|pending| &pending.record);
            records.find(depends).map(|record| record.place)
        };
        self.busy().filter_map(first).collect()
    }
}
