//! Which slots reads may still name: the collection keeps their versions.
//!
//! A snapshot lives for 60 s after the last call that names it, and for 15 minutes in all. All slots
//! of the last 90 s are kept, so a call that names one of the last 30 s needs no note: most calls do.
//!
//! Pure: the caller passes the time.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use ports::Monotonic;

use crate::serializable::model::Slot;

/// How long a snapshot lives after the last call that names it.
const IDLE_MAX: Duration = Duration::from_mins(1);
/// A call that names a slot which is younger is not noted.
const RECENT: Duration = Duration::from_secs(30);
/// How long all slots are kept.
const ALL_KEPT: Duration = Duration::from_secs(IDLE_MAX.as_secs() + RECENT.as_secs());
/// How long a snapshot lives in all.
const LIFE_MAX: Duration = Duration::from_mins(15);
/// The most snapshots. Beyond it the oldest is dropped.
const SNAPSHOTS_MAX: usize = 100_000;
/// How often the position of the log is noted.
const NOTE_EVERY: Duration = Duration::from_secs(5);

/// The snapshots of one volume.
#[derive(Debug)]
pub(crate) struct Snapshots {
    /// When each began, and was last named.
    named: BTreeMap<Slot, (Monotonic, Monotonic)>,
    /// The last slot at some moments, oldest first.
    noted: VecDeque<(Monotonic, Slot)>,
}

impl Snapshots {
    /// None yet. Slots up to `visible` may be snapshots of an earlier start.
    pub(crate) fn starting_at(visible: Slot, now: Monotonic) -> Self {
        Self {
            named: BTreeMap::new(),
            noted: VecDeque::from([(now, visible)]),
        }
    }

    /// Notes that a call names `slot`.
    pub(crate) fn touch(&mut self, slot: Slot, now: Monotonic) {
        let mut old = self.noted.iter().rev();
        let old = old.find(|(at, _)| now.since(*at) >= RECENT);
        if old.is_none_or(|(_, old)| slot > *old) {
            return;
        }
        self.named.entry(slot).or_insert((now, now)).1 = now;
        if self.named.len() > SNAPSHOTS_MAX {
            self.named.pop_first();
        }
    }

    /// Notes the last slot.
    pub(crate) fn note(&mut self, visible: Slot, now: Monotonic) {
        let is_due = |(at, _): &(Monotonic, Slot)| now.since(*at) >= NOTE_EVERY;
        if self.noted.back().is_none_or(is_due) {
            self.noted.push_back((now, visible));
        }
    }

    /// The lowest slot that reads may name from now on; `None` if it is not known yet.
    pub(crate) fn horizon(&mut self, now: Monotonic) -> Option<Slot> {
        self.named.retain(|_, (began, named)| {
            now.since(*named) < IDLE_MAX && now.since(*began) < LIFE_MAX
        });
        let is_past = |noted: Option<&(Monotonic, Slot)>| {
            noted.is_some_and(|(at, _)| now.since(*at) >= ALL_KEPT)
        };
        // The last moment that is long enough ago.
        while is_past(self.noted.get(1)) {
            self.noted.pop_front();
        }
        let (_, past) = *self.noted.front().filter(|noted| is_past(Some(noted)))?;
        let lowest = self.named.keys().next().copied();
        Some(lowest.map_or(past, |lowest| lowest.min(past)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic(Duration::from_secs(seconds))
    }

    #[test]
    fn a_snapshot_lives_for_a_minute_after_its_last_call_and_for_fifteen_in_all() {
        let mut snapshots = Snapshots::starting_at(Slot(5), at(0));
        assert_eq!(snapshots.horizon(at(89)), None, "of an earlier start");
        assert_eq!(snapshots.horizon(at(90)), Some(Slot(5)));
        snapshots.note(Slot(9), at(100));
        snapshots.note(Slot(10), at(101));
        snapshots.touch(Slot(7), at(129));
        assert_eq!(snapshots.horizon(at(189)), Some(Slot(5)), "too young to go");
        assert_eq!(snapshots.horizon(at(190)), Some(Slot(9)));
        snapshots.note(Slot(20), at(190));
        snapshots.touch(Slot(9), at(200));
        snapshots.note(Slot(30), at(200));
        snapshots.touch(Slot(9), at(239));
        for second in 240..2_000 {
            let now = second + 50;
            let is_over = now >= 200 + 900;
            let expected = if is_over { Slot(30) } else { Slot(9) };
            assert_eq!(snapshots.horizon(at(now)), Some(expected), "{second}");
            if !is_over {
                snapshots.touch(Slot(9), at(second));
            }
        }
    }

    /// Most calls name a slot of the last moments.
    #[test]
    fn recent_slots_need_no_note() {
        let mut snapshots = Snapshots::starting_at(Slot(0), at(0));
        for second in 0..1_000 {
            snapshots.note(Slot(10 * second), at(second));
            snapshots.touch(Slot(10 * second - second % 10), at(second));
            let horizon = snapshots.horizon(at(second)).unwrap_or_default();
            assert!(horizon.0 <= (10 * second).saturating_sub(900), "{second}");
        }
        assert!(snapshots.named.is_empty() && snapshots.noted.len() < 25);
    }
}
