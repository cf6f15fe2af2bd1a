//! Lanes: opened, written to, read in, waited for.

use std::collections::BTreeMap;

use ports::{Error, Result};

use super::{Lane, Pending, Poison, Stream};
use crate::{
    broken::Broken,
    layout::{LaneId, RecordId},
};

/// How many lanes that were let go are looked at for one that can be used again.
const LOOKS_MAX: usize = 4;

impl Stream {
    /// A lane that nobody holds and that has nothing pending, or a new one.
    pub(crate) fn open_lane(&mut self) -> Result<LaneId> {
        let id = match self.reusable() {
            Some(id) => id,
            None if self.is_at_lanes_max() => {
                return Err(Error::unavailable(
                    "open a lane, of which there are too many",
                ));
            }
            None => {
                self.made += 1;
                LaneId {
                    epoch: self.epoch,
                    number: self.made - 1,
                }
            }
        };
        let inherited = self.sound_tail();
        let lane = self.lanes.entry(id).or_default();
        lane.holders = 1;
        lane.inherited = inherited;
        Ok(id)
    }

    /// The tail up to what was refused for good of it: nothing comes behind that but what has read it, as each row says.
    fn sound_tail(&self) -> BTreeMap<LaneId, u64> {
        let sound = |(id, last): (&LaneId, &u64)| {
            let poison = self.lanes[id].poison.as_ref();
            (
                *id,
                poison.map_or(*last, |poison| (*last).min(poison.from - 1)),
            )
        };
        self.tail.iter().map(sound).collect()
    }

    fn is_at_lanes_max(&self) -> bool {
        self.made as usize >= self.options.lanes_max.min(usize::from(u16::MAX))
    }

    /// A lane of this epoch that can be used again. Of those that wait for what was written in them only a few are looked at, as long
    /// as another can be made.
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

    /// How many lanes have handles.
    pub(crate) fn lanes_held(&self) -> usize {
        self.lanes.values().filter(|lane| lane.holders > 0).count()
    }

    /// Another handle to `lane`.
    pub(crate) fn hold(&mut self, lane: LaneId) {
        self.lane(lane).holders += 1;
    }

    /// A handle is gone. With the last one goes what was only read: of that, what the far store refuses for good is never done, and
    /// each lane that has looked at it would be lost.
    pub(crate) fn let_go(&mut self, lane: LaneId) {
        let (epoch, held) = (self.epoch, self.lane(lane));
        held.holders -= 1;
        if held.holders == 0 {
            held.inherited.clear();
        }
        // One that is poisoned is of no use any more.
        let is_let_go =
            held.holders == 0 && !held.is_let_go && lane.epoch == epoch && held.poison.is_none();
        if is_let_go {
            held.is_let_go = true;
            self.let_go.push_back(lane);
        }
    }

    /// What was left unsent by an earlier epoch, in the order of its lanes; new lanes begin behind it (E9).
    pub(crate) fn restore(&mut self, done: u64, records: Vec<Pending>) {
        let Some(first) = records.first() else { return };
        let id = first.record.place.lane;
        let lane = self.lanes.entry(id).or_default();
        lane.done = done;
        for pending in records {
            assert_eq!(
                pending.record.place.sequence,
                lane.next(),
                "a lane has no hole"
            );
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

    /// Where the lane's next record stands and what it depends on; an error if the lane is poisoned (E6).
    pub(crate) fn next_place(&mut self, id: LaneId) -> Result<(RecordId, Vec<RecordId>)> {
        self.forget_what_is_done(id);
        let lane = &self.lanes[&id];
        if let Some(poison) = self.poison_over(id, u64::MAX) {
            return Err(poison.error());
        }
        let of = |(lane, sequence): (&LaneId, &u64)| RecordId {
            lane: *lane,
            sequence: *sequence,
        };
        let dependencies = lane.inherited.iter().map(of).collect();
        Ok((
            RecordId {
                lane: id,
                sequence: lane.next(),
            },
            dependencies,
        ))
    }

    /// A record was ordered near.
    pub(crate) fn append(&mut self, pending: Pending) {
        let place = pending.record.place;
        let bytes = pending.bytes();
        let lane = self.lane(place.lane);
        assert_eq!(place.sequence, lane.next(), "one writer at a time");
        lane.high = lane.high.max(pending.record.position);
        lane.bytes += bytes;
        for dependency in &pending.record.dependencies {
            if lane
                .inherited
                .get(&dependency.lane)
                .is_some_and(|sequence| *sequence <= dependency.sequence)
            {
                lane.inherited.remove(&dependency.lane);
            }
        }
        let is_sound = lane.poison.is_none();
        let dependencies = pending.record.dependencies.clone();
        lane.records.push_back(pending);
        if is_sound {
            self.bytes += bytes;
        }
        self.note(place.lane);
        // What it depends on may have been poisoned while it was written.
        let poison = dependencies
            .into_iter()
            .find_map(|dependency| self.poison_of(dependency).cloned());
        if let Some(poison) = poison {
            self.poison(place, poison.kind, &poison.why);
        }
    }

    /// A lane has seen what `writer` wrote.
    pub(crate) fn observe(&mut self, id: LaneId, writer: Option<(RecordId, u64)>) {
        let Some((place, position)) = writer else {
            return;
        };
        let is_done = self.is_done(place);
        let lane = self.lane(id);
        // Positions of earlier epochs are lower, and none of this one is told of them.
        lane.high = lane.high.max(position);
        if place.lane != id && !is_done {
            let sequence = lane.inherited.entry(place.lane).or_default();
            *sequence = place.sequence.max(*sequence);
        }
    }

    /// A lane takes over what another one has written and read, as if it had read it.
    pub(crate) fn join(&mut self, id: LaneId, other: LaneId) {
        let Some(joined) = self.lanes.get(&other) else {
            return;
        };
        let position = joined.high;
        let mut places: Vec<RecordId> = joined
            .inherited
            .iter()
            .map(|(lane, sequence)| RecordId {
                lane: *lane,
                sequence: *sequence,
            })
            .collect();
        places.push(RecordId {
            lane: other,
            sequence: joined.next() - 1,
        });
        for place in places {
            self.observe(id, Some((place, position)));
        }
    }

    /// The highest position that a lane has written or read.
    pub(crate) fn high(&self, id: LaneId) -> u64 {
        self.lanes.get(&id).map_or(0, |lane| lane.high)
    }

    /// What a barrier of a lane waits for: its records up to a position, and what it has read.
    pub(crate) fn frontier(&mut self, id: LaneId, position: u64) -> Vec<RecordId> {
        self.forget_what_is_done(id);
        let Some(lane) = self.lanes.get(&id) else {
            return Vec::new();
        };
        let before = lane
            .records
            .iter()
            .take_while(|pending| pending.record.position <= position)
            .count();
        let mut places = vec![RecordId {
            lane: id,
            sequence: lane.done + before as u64,
        }];
        if !self.options.breaks(Broken::ForgetsWhatWasRead) {
            places.extend(lane.inherited.iter().map(|(lane, sequence)| RecordId {
                lane: *lane,
                sequence: *sequence,
            }));
        }
        places
    }

    /// Everything that is pending.
    pub(crate) fn everything(&self) -> Vec<RecordId> {
        self.lanes
            .iter()
            .map(|(id, lane)| RecordId {
                lane: *id,
                sequence: lane.next() - 1,
            })
            .collect()
    }

    /// What is left of earlier epochs.
    pub(crate) fn tail(&self) -> Vec<RecordId> {
        self.tail
            .iter()
            .map(|(lane, sequence)| RecordId {
                lane: *lane,
                sequence: *sequence,
            })
            .collect()
    }

    /// Whether all of these are far-durable; an error if one never will be.
    pub(crate) fn is_settled(&self, places: &[RecordId]) -> Result<bool> {
        match places.iter().find_map(|place| self.poison_of(*place)) {
            Some(poison) => Err(poison.error()),
            None => Ok(places.iter().all(|place| self.is_done(*place))),
        }
    }

    /// Somebody waits for these: they do not linger, nor does what they depend on.
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
            let (skip, until) = (
                (from - lane.done) as usize,
                (place.sequence - lane.done) as usize,
            );
            for pending in lane.records.iter().take(until).skip(skip) {
                left.extend(&pending.record.dependencies);
            }
        }
    }

    /// The poison of a lane's records up to `sequence`, or of what it has read.
    fn poison_over(&self, id: LaneId, sequence: u64) -> Option<&Poison> {
        let lane = self.lanes.get(&id)?;
        let inherited = || {
            lane.inherited.iter().map(|(lane, sequence)| RecordId {
                lane: *lane,
                sequence: *sequence,
            })
        };
        lane.poisoned_at(sequence)
            .or_else(|| inherited().find_map(|place| self.poison_of(place)))
    }

    fn forget_what_is_done(&mut self, id: LaneId) {
        let Some(mut lane) = self.lanes.remove(&id) else {
            return;
        };
        lane.inherited.retain(|other, sequence| {
            !self.is_done(RecordId {
                lane: *other,
                sequence: *sequence,
            })
        });
        self.lanes.insert(id, lane);
    }

    pub(super) fn lane(&mut self, id: LaneId) -> &mut Lane {
        self.lanes
            .get_mut(&id)
            .expect("a lane is there while somebody holds it")
    }
}
