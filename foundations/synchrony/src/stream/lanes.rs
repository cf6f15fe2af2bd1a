//! Lanes: opened, written, read and waited for.

use std::collections::BTreeMap;

use ports::{Error, Result};

use super::{Lane, Pending, Stream};
use crate::{
    broken::Broken,
    layout::{LaneId, RecordId},
};

/// How many released lanes are examined to find one for reuse.
const LOOKS_MAX: usize = 4;

impl Stream {
    /// A lane without handles and pending records, or a new one.
    pub(crate) fn open_lane(&mut self) -> Result<LaneId> {
        let id = match self.reusable() {
            Some(id) => id,
            None if self.is_at_lanes_max() => {
                let what = "open a lane, of which there are too many";
                return Err(Error::unavailable(what));
            }
            None => {
                let (epoch, number) = (self.epoch, self.made);
                self.made += 1;
                LaneId { epoch, number }
            }
        };
        let inherited = self.sound_tail();
        let lane = self.lanes.entry(id).or_default();
        lane.holders = 1;
        lane.inherited = inherited;
        Ok(id)
    }

    /// The tail up to its permanently refused records. Only a lane that has read such a record
    /// depends on it, as each row names its record.
    fn sound_tail(&self) -> BTreeMap<LaneId, u64> {
        let sound = |(id, last): (&LaneId, &u64)| {
            let poison = self.lanes[id].poison.as_ref();
            let until = poison.map_or(*last, |poison| poison.from - 1);
            (*id, until.min(*last))
        };
        self.tail.iter().map(sound).collect()
    }

    fn is_at_lanes_max(&self) -> bool {
        self.made as usize >= self.options.lanes_max.min(usize::from(u16::MAX))
    }

    /// A lane of this epoch for reuse. While a new one can be created, only a few lanes are
    /// examined that wait for their records.
    fn reusable(&mut self) -> Option<LaneId> {
        let looks = if self.is_at_lanes_max() {
            self.let_go.len()
        } else {
            self.let_go.len().min(LOOKS_MAX)
        };
        for _ in 0..looks {
            let id = self.let_go.pop_front()?;
            let lane = self.lane(id);
            let can_be_reused = lane.can_be_reused();
            lane.is_let_go = !can_be_reused && lane.poison.is_none();
            if can_be_reused {
                return Some(id);
            }
            if lane.is_let_go {
                self.let_go.push_back(id);
            }
        }
        None
    }

    pub(crate) fn lanes_held(&self) -> usize {
        self.lanes.values().filter(|lane| lane.holders > 0).count()
    }

    pub(crate) fn hold(&mut self, lane: LaneId) {
        self.lane(lane).holders += 1;
    }

    /// Removes a handle. With the last one the lane forgets its reads. Otherwise a read of a
    /// permanently refused record, which is never done, would make the lane useless.
    pub(crate) fn let_go(&mut self, lane: LaneId) {
        let (epoch, held) = (self.epoch, self.lane(lane));
        held.holders -= 1;
        if held.holders == 0 {
            held.inherited.clear();
        }
        // A poisoned lane cannot be reused.
        let is_let_go =
            held.holders == 0 && !held.is_let_go && lane.epoch == epoch && held.poison.is_none();
        if is_let_go {
            held.is_let_go = true;
            self.let_go.push_back(lane);
        }
    }

    /// Adds the unsent records of an earlier epoch, in the order of their lanes; new lanes follow
    /// them (E9).
    pub(crate) fn restore(&mut self, done: u64, records: Vec<Pending>) {
        let Some(first) = records.first() else { return };
        let id = first.record.place.lane;
        let lane = self.lanes.entry(id).or_default();
        lane.done = done;
        for pending in records {
            let sequence = pending.record.place.sequence;
            assert_eq!(sequence, lane.next(), "a lane has no hole");
            lane.high = lane.high.max(pending.record.position);
            lane.bytes += pending.bytes();
            self.bytes += pending.bytes();
            lane.records.push_back(pending);
        }
        let (bytes, last) = (lane.bytes, lane.next() - 1);
        assert!(bytes > 0 && last > 0, "it has records");
        self.tail.insert(id, last);
        self.note(id);
    }

    /// The place of the lane's next record, and its dependencies. Errors: the lane is poisoned
    /// (E6).
    pub(crate) fn next_place(&mut self, id: LaneId) -> Result<(RecordId, Vec<RecordId>)> {
        self.forget_what_is_done(id);
        let lane = &self.lanes[&id];
        let of_reads = || lane.dependencies().find_map(|place| self.poison_of(place));
        if let Some(poison) = lane.poison.as_ref().or_else(of_reads) {
            return Err(poison.error());
        }
        Ok((id.at(lane.next()), lane.dependencies().collect()))
    }

    /// Adds a record that was ordered near.
    pub(crate) fn append(&mut self, pending: Pending) {
        let place = pending.record.place;
        let bytes = pending.bytes();
        let lane = self.lane(place.lane);
        assert_eq!(place.sequence, lane.next(), "one writer at a time");
        lane.high = lane.high.max(pending.record.position);
        lane.bytes += bytes;
        let dependencies = pending.record.dependencies.clone();
        for dependency in &dependencies {
            let read = lane.inherited.get(&dependency.lane);
            if read.is_some_and(|read| *read <= dependency.sequence) {
                lane.inherited.remove(&dependency.lane);
            }
        }
        let is_sound = lane.poison.is_none();
        lane.records.push_back(pending);
        if is_sound {
            self.bytes += bytes;
        }
        self.note(place.lane);
        // One of its dependencies may have been poisoned meanwhile.
        let poison = dependencies
            .into_iter()
            .find_map(|dependency| self.poison_of(dependency).cloned());
        if let Some(poison) = poison {
            self.poison(place, poison.kind, &poison.why);
        }
    }

    /// Notes that a lane has seen a write of `writer`.
    pub(crate) fn observe(&mut self, id: LaneId, writer: Option<(RecordId, u64)>) {
        let Some((place, position)) = writer else {
            return;
        };
        let is_done = self.is_done(place);
        let lane = self.lane(id);
        // A write of the lane itself is in its records, unless its response is still under way.
        let is_recorded = place.lane == id && place.sequence < lane.next();
        // Positions of earlier epochs are lower, and no lane of this epoch has points of them.
        lane.high = lane.high.max(position);
        if !is_recorded && !is_done {
            let sequence = lane.inherited.entry(place.lane).or_default();
            *sequence = place.sequence.max(*sequence);
        }
    }

    /// Adds all that another lane has written and read to the reads of a lane.
    pub(crate) fn join(&mut self, id: LaneId, other: LaneId) {
        let Some(joined) = self.lanes.get(&other) else {
            return;
        };
        let position = joined.high;
        let mut places: Vec<RecordId> = joined.dependencies().collect();
        places.push(other.at(joined.next() - 1));
        for place in places {
            self.observe(id, Some((place, position)));
        }
    }

    /// The highest position that a lane has written or read.
    pub(crate) fn high(&self, id: LaneId) -> u64 {
        self.lanes.get(&id).map_or(0, |lane| lane.high)
    }

    /// The records that a barrier of a lane waits for: its own up to a position, and those it has
    /// read.
    ///
    /// The next write of the lane takes its reads over, so its dependencies belong to the point, too.
    /// A read that was made while the lane wrote is taken over by the write after that one. So the
    /// first two records beyond the position have all that the point covers.
    pub(crate) fn frontier(&mut self, id: LaneId, position: u64) -> Vec<RecordId> {
        self.forget_what_is_done(id);
        let Some(lane) = self.lanes.get(&id) else {
            return Vec::new();
        };
        let mutant = self.options.mutant;
        let before = lane
            .records
            .partition_point(|pending| pending.record.position <= position);
        let mut places = vec![id.at(lane.done + before as u64)];
        if !mutant.breaks(Broken::ForgetsWhatWasRead) {
            places.extend(lane.dependencies());
        }
        if !mutant.breaks(Broken::ForgetsWhatWasTakenOver) {
            for later in lane.records.range(before..).take(2) {
                places.extend(&later.record.dependencies);
            }
        }
        places
    }

    pub(crate) fn everything(&self) -> Vec<RecordId> {
        let last = |(id, lane): (&LaneId, &Lane)| id.at(lane.next() - 1);
        self.lanes.iter().map(last).collect()
    }

    /// The remains of earlier epochs.
    pub(crate) fn tail(&self) -> Vec<RecordId> {
        let last = |(lane, sequence): (&LaneId, &u64)| lane.at(*sequence);
        self.tail.iter().map(last).collect()
    }

    /// Whether all these records are durable far. Errors: one never will be.
    pub(crate) fn is_settled(&self, places: &[RecordId]) -> Result<bool> {
        match places.iter().find_map(|place| self.poison_of(*place)) {
            Some(poison) => Err(poison.error()),
            None => Ok(places.iter().all(|place| self.is_done(*place))),
        }
    }

    /// A caller waits for these records: they do not linger, nor do their dependencies.
    pub(crate) fn urge(&mut self, places: &[RecordId]) {
        let mut left = places.to_vec();
        while let Some(place) = left.pop() {
            let Some(lane) = self.lanes.get_mut(&place.lane) else {
                continue;
            };
            let from = lane.urgent.max(lane.done);
            if place.sequence <= from {
                continue;
            }
            lane.urgent = place.sequence;
            let (skip, until) = (from - lane.done, place.sequence - lane.done);
            let records = lane.records.iter().take(until as usize);
            for pending in records.skip(skip as usize) {
                left.extend(&pending.record.dependencies);
            }
        }
    }

    fn forget_what_is_done(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let mut inherited = std::mem::take(&mut lane.inherited);
        inherited.retain(|other, sequence| !self.is_done(other.at(*sequence)));
        self.lane(id).inherited = inherited;
    }

    pub(super) fn lane(&mut self, id: LaneId) -> &mut Lane {
        self.lanes
            .get_mut(&id)
            .expect("a lane exists while it has handles")
    }
}
