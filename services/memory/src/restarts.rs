//! The pauses between instances of a function that die soon after each start.
//!
//! A program that cannot run, or a machine whose memory is used up, would otherwise make the daemon
//! start processes as fast as it can.

use std::time::Duration;

use ports::Monotonic;

/// A death is quick if the instance lived for less.
const QUICK: Duration = Duration::from_mins(1);
/// The quick deaths in a row after which the function gets no instance any more.
pub(crate) const QUICK_DEATHS_MAX: u32 = 16;
/// The pause after the second quick death in a row. Each further one doubles it.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// The starts of one function's instances.
#[derive(Debug)]
pub(crate) struct Restarts {
    started: Monotonic,
    quick_deaths: u32,
}

impl Restarts {
    /// The first instance starts.
    pub(crate) fn new(now: Monotonic) -> Self {
        Self {
            started: now,
            quick_deaths: 0,
        }
    }

    /// The next instance has started.
    pub(crate) fn started(&mut self, now: Monotonic) {
        self.started = now;
    }

    /// The pause before the next start. None: too many died soon.
    pub(crate) fn died(&mut self, now: Monotonic) -> Option<Duration> {
        let is_quick = now.since(self.started) < QUICK;
        self.quick_deaths = if is_quick { self.quick_deaths + 1 } else { 0 };
        match self.quick_deaths {
            0 | 1 => Some(Duration::ZERO),
            QUICK_DEATHS_MAX.. => None,
            deaths => Some((PAUSE * (1 << (deaths - 2))).min(PAUSE_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_an_instance_lives_for_a_minute() {
        let mut now = Monotonic::default();
        let mut restarts = Restarts::new(now);
        let mut pauses = Vec::new();
        for lives_ms in [10, 10, 10, 60_000, 10, 10] {
            now = now + Duration::from_millis(lives_ms);
            let pause = restarts.died(now).expect("few");
            pauses.push(pause.as_millis());
            now = now + pause;
            restarts.started(now);
        }
        assert_eq!(pauses, [0, 100, 200, 0, 0, 100]);
    }
}
