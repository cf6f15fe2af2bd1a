//! The poll schedule: when a process reads the log for slots that other processes distributed.
//!
//! The watch function reaches only its own process. Where several processes distribute, each
//! therefore polls the log. It polls once per period while clients are connected. Once a client
//! waits for an answer, it polls soon and then at doubling intervals. An answer that takes a time
//! `t` is found within `2t`, with one call per doubling. Without clients and awaited answers it
//! does not poll (promise C7).

use std::time::Duration;

use ports::Monotonic;

/// The delay of the first poll for an awaited answer.
const FIRST: Duration = Duration::from_millis(4);

#[derive(Debug)]
pub(super) struct PollSchedule {
    period: Duration,
    /// The last delay, or the first one to use.
    delay: Duration,
    due: Option<Monotonic>,
}

impl PollSchedule {
    /// The schedule of a process without clients.
    pub(super) fn new(period: Duration) -> Self {
        Self {
            period,
            delay: FIRST,
            due: None,
        }
    }

    /// When to poll next, or `None` if no client waits.
    pub(super) fn due(&self) -> Option<Monotonic> {
        self.due
    }

    /// A client waits for an answer from now on. Repeated calls never postpone a poll.
    pub(super) fn poll_soon(&mut self, now: Monotonic) {
        self.delay = FIRST.min(self.period);
        let soon = now + self.delay;
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    /// A poll was made. `is_in_use`: a client is connected.
    pub(super) fn polled(&mut self, now: Monotonic, is_in_use: bool) {
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

    /// The times of the polls up to `until`.
    fn polls(schedule: &mut PollSchedule, until: u64, is_in_use: bool) -> Vec<u64> {
        let mut seen = Vec::new();
        while let Some(due) = schedule.due().filter(|due| *due <= at(until)) {
            seen.push(due.0.as_millis() as u64);
            schedule.polled(due, is_in_use);
        }
        seen
    }

    /// C7.
    #[test]
    fn an_idle_process_does_not_poll() {
        let mut idle = PollSchedule::new(PERIOD);
        assert_eq!(idle.due(), None);
        idle.poll_soon(at(1_000));
        let expected = [1_004, 1_012, 1_028, 1_060, 1_124, 1_252, 1_508, 2_008];
        assert_eq!(polls(&mut idle, 60_000, false), expected);
        assert_eq!(idle.due(), None);
    }

    #[test]
    fn a_process_with_clients_polls_once_per_period() {
        let mut used = PollSchedule::new(PERIOD);
        used.poll_soon(at(0));
        let seen = polls(&mut used, 10_000, true);
        assert!(
            seen.windows(2).skip(7).all(|pair| pair[1] - pair[0] == 500),
            "{seen:?}"
        );
        assert_eq!(seen.len(), 7 + 18);
    }

    #[test]
    fn frequent_requests_postpone_no_poll() {
        let mut busy = PollSchedule::new(PERIOD);
        for ms in 0..100 {
            busy.poll_soon(at(ms));
        }
        assert_eq!(busy.due(), Some(at(4)));
    }
}
