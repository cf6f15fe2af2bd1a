//! How old the slots of the own log are, by the clock that never goes back.
//!
//! Windows are promises about time, and a wall clock that jumps ahead would end them early. One mark covers all slots of
//! a grain, so memory is bounded by window over grain, whatever is written.
//!
//! Pure: the time comes with each call.

use std::{collections::VecDeque, time::Duration};

use ports::Monotonic;

/// When slots were written.
#[derive(Debug, Clone)]
pub(crate) struct SlotAges {
    grain: Duration,
    marks: VecDeque<Mark>,
    /// Everything up to here was found to be old enough.
    through: u64,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    first: Monotonic,
    /// Everything up to `slot` was written by then.
    last: Monotonic,
    slot: u64,
}

impl SlotAges {
    /// Ages in steps of `grain`; nothing was written yet behind `slot`.
    pub(crate) fn from(slot: u64, grain: Duration) -> Self {
        Self {
            grain,
            marks: VecDeque::new(),
            through: slot,
        }
    }

    /// `slot` is written now.
    pub(crate) fn note(&mut self, slot: u64, now: Monotonic) {
        match self.marks.back_mut() {
            Some(mark) if now.since(mark.first) < self.grain => {
                (mark.slot, mark.last) = (slot, now);
            }
            _ => self.marks.push_back(Mark {
                first: now,
                last: now,
                slot,
            }),
        }
    }

    /// Up to which slot all are at least `age` old.
    pub(crate) fn through(&mut self, now: Monotonic, age: Duration) -> u64 {
        while let Some(mark) = self
            .marks
            .front()
            .filter(|mark| now.since(mark.last) >= age)
        {
            self.through = mark.slot;
            self.marks.pop_front();
        }
        self.through
    }

    /// When more of them will be; none: all are.
    pub(crate) fn next_due(&self, now: Monotonic, age: Duration) -> Option<Duration> {
        self.marks.front().map(|mark| (mark.last + age).since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_slot_is_taken_for_older_than_it_is() {
        let seconds = |seconds: u64| Monotonic(Duration::from_secs(seconds));
        let age = Duration::from_secs(100);
        let mut ages = SlotAges::from(3, Duration::from_secs(2));
        for slot in 4..=13 {
            ages.note(slot, seconds(slot));
        }
        // Two slots share a mark, and wait for the younger of them.
        assert_eq!(ages.marks.len(), 5);
        assert_eq!(ages.through(seconds(104), age), 3);
        assert_eq!(
            ages.next_due(seconds(104), age),
            Some(Duration::from_secs(1))
        );
        assert_eq!(ages.through(seconds(105), age), 5);
        assert_eq!(ages.through(seconds(111), age), 11);
        assert_eq!(ages.through(seconds(500), age), 13);
        assert_eq!(ages.next_due(seconds(500), age), None);
        assert_eq!(ages.through(seconds(501), age), 13);
    }
}
