//! Looks: when a process reads the log for what others have distributed.
//!
//! The watch function reaches the process that it runs in and no other. So where several processes distribute, each reads
//! the log by itself: at a period while clients are connected, and soon, then less and less often, once somebody waits
//! for an answer. An answer that takes a time is found within twice that time, for as many calls as the time has
//! doublings. Without clients, and with nothing awaited, nobody reads (promise C7).

use std::time::Duration;

use ports::Monotonic;

/// How soon it looks for what was just asked for.
const FIRST: Duration = Duration::from_millis(4);

/// When to look next.
#[derive(Debug)]
pub(super) struct Looks {
    period: Duration,
    /// How long it last waited, or is to wait first.
    delay: Duration,
    due: Option<Monotonic>,
}

impl Looks {
    /// Of a process with nobody connected.
    pub(super) fn new(period: Duration) -> Self {
        Self {
            period,
            delay: FIRST,
            due: None,
        }
    }

    /// When to look next; none: nobody waits for anything.
    pub(super) fn due(&self) -> Option<Monotonic> {
        self.due
    }

    /// Somebody waits for something from now on. Who asks again and again puts nothing off.
    pub(super) fn expect(&mut self, now: Monotonic) {
        self.delay = FIRST.min(self.period);
        let soon = now + self.delay;
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    /// It has looked; `is_in_use`: somebody is connected.
    pub(super) fn looked(&mut self, now: Monotonic, is_in_use: bool) {
        let is_awaited = self.delay < self.period;
        self.delay = (self.delay * 2).min(self.period);
        self.due = (is_awaited || is_in_use).then(|| now + self.delay);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(500);

    fn at(ms: u64) -> Monotonic {
        Monotonic(Duration::from_millis(ms))
    }

    /// The moments at which it looks until `until`, if it is in use or not.
    fn looks(looks: &mut Looks, until: u64, is_in_use: bool) -> Vec<u64> {
        let mut seen = Vec::new();
        while let Some(due) = looks.due().filter(|due| *due <= at(until)) {
            seen.push(due.0.as_millis() as u64);
            looks.looked(due, is_in_use);
        }
        seen
    }

    /// C7.
    #[test]
    fn nobody_looks_for_nobody() {
        let mut idle = Looks::new(PERIOD);
        assert_eq!(idle.due(), None);
        idle.expect(at(1_000));
        let expected = [1_004, 1_012, 1_028, 1_060, 1_124, 1_252, 1_508, 2_008];
        assert_eq!(looks(&mut idle, 60_000, false), expected);
        assert_eq!(idle.due(), None);
    }

    #[test]
    fn while_somebody_is_connected_it_looks_once_in_a_period() {
        let mut used = Looks::new(PERIOD);
        used.expect(at(0));
        let seen = looks(&mut used, 10_000, true);
        assert!(
            seen.windows(2).skip(7).all(|pair| pair[1] - pair[0] == 500),
            "{seen:?}"
        );
        assert_eq!(seen.len(), 7 + 18);
    }

    #[test]
    fn who_asks_all_the_time_puts_no_look_off() {
        let mut busy = Looks::new(PERIOD);
        for ms in 0..100 {
            busy.expect(at(ms));
        }
        assert_eq!(busy.due(), Some(at(4)));
    }
}
