//! Timestamps of commits: the wall clock where it is good for something, a counter where it is not.
//!
//! Invariants
//! - Every [`HybridClock::tick`] is above every earlier one, above all that was observed, and above the floor it
//!   was given, whatever the wall clock says (rule T-1). A clock set back costs only bits of the counter, which
//!   carries into the milliseconds; that is fine.
//! - Nothing is reserved ahead and nothing is kept: a new start observes the last timestamp of every log.
//!
//! From the hybrid logical clocks of Kulkarni et al.; the paper's own protocol takes the wall clock as it is and
//! can hide a node's own acknowledged update.

use crate::model::Timestamp;

/// How many bits count within a millisecond.
const COUNTER_BITS: u32 = 16;

/// A node's source of timestamps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HybridClock {
    last: Timestamp,
}

impl HybridClock {
    /// The next timestamp: above all given and observed, above `floor`, and at the wall clock if that is higher.
    pub(crate) fn tick(&mut self, wall: ports::Timestamp, floor: Timestamp) -> Timestamp {
        let wall = wall.0 << COUNTER_BITS;
        self.last = Timestamp(wall.max(self.last.0 + 1).max(floor.0 + 1));
        self.last
    }

    /// Everything given from now on is above `timestamp`.
    pub(crate) fn observe(&mut self, timestamp: Timestamp) {
        self.last = self.last.max(timestamp);
    }

    /// The highest timestamp given or observed.
    pub(crate) fn last(self) -> Timestamp {
        self.last
    }

    /// By how many milliseconds it is ahead of the wall clock.
    pub(crate) fn ahead_ms(self, wall: ports::Timestamp) -> u64 {
        (self.last.0 >> COUNTER_BITS).saturating_sub(wall.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-1.
    #[test]
    fn timestamps_grow_whatever_the_clock_says() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut clock = HybridClock::default();
        let mut last = Timestamp::default();
        for _ in 0..10_000 {
            let wall = ports::Timestamp(random.u64(1_000..1_010));
            let floor = Timestamp(random.u64(0..1_020 << COUNTER_BITS));
            let observed = Timestamp(random.u64(0..1_020 << COUNTER_BITS));
            if random.bool() {
                clock.observe(observed);
                last = last.max(observed);
            }
            let given = clock.tick(wall, floor);
            assert!(given > last && given > floor && given.0 >= wall.0 << COUNTER_BITS);
            last = given;
        }
    }

    #[test]
    fn a_clock_that_is_right_is_followed() {
        let mut clock = HybridClock::default();
        assert_eq!(
            clock.tick(ports::Timestamp(5), Timestamp(0)),
            Timestamp(5 << 16)
        );
        assert_eq!(
            clock.tick(ports::Timestamp(5), Timestamp(0)),
            Timestamp((5 << 16) + 1)
        );
        assert_eq!(
            clock.tick(ports::Timestamp(4), Timestamp(0)),
            Timestamp((5 << 16) + 2)
        );
        assert_eq!(
            clock.tick(ports::Timestamp(6), Timestamp(0)),
            Timestamp(6 << 16)
        );
        clock.observe(Timestamp(20 << 16));
        assert_eq!(
            (
                clock.ahead_ms(ports::Timestamp(6)),
                clock.ahead_ms(ports::Timestamp(30))
            ),
            (14, 0)
        );
    }
}
