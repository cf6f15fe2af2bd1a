//! How much peers can have written to the log.
//!
//! Whoever sends what no client sends is named in the log with what was wrong, never with what was sent. A peer can do so
//! as fast as it likes, though, and for ever: what it causes has so many lines at once and one more each second, for all
//! peers together, since one can come from many addresses. What is not said is counted and told by the next line;
//! [`Statistics`](crate::Statistics) counts everything.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

/// So many lines may be written at once.
pub(crate) const LINES_MAX: u64 = 100;
/// How long it takes until there may be one more.
const LINE_PERIOD: Duration = Duration::from_secs(1);

/// The lines that are left.
#[derive(Debug)]
pub(crate) struct PeerLog(Mutex<Budget>);

/// Leave to write one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line {
    /// How many were not written since the last one; none: every one was.
    pub(crate) unsaid: Option<u64>,
}

#[derive(Debug)]
struct Budget {
    lines: u64,
    /// Up to when `lines` has grown.
    grown_at: Instant,
    unsaid: u64,
}

impl PeerLog {
    /// Nothing was written yet.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Budget {
            lines: LINES_MAX,
            grown_at: Instant::now(),
            unsaid: 0,
        }))
    }

    /// Asks for one more line; none: it is left out.
    pub(crate) fn line(&self) -> Option<Line> {
        self.0
            .lock()
            .expect("nothing panics while it holds this lock")
            .line(Instant::now())
    }
}

impl Budget {
    fn line(&mut self, now: Instant) -> Option<Line> {
        let periods =
            now.saturating_duration_since(self.grown_at).as_nanos() / LINE_PERIOD.as_nanos();
        if self.lines.saturating_add(periods as u64) >= LINES_MAX {
            (self.lines, self.grown_at) = (LINES_MAX, now);
        } else {
            self.lines += periods as u64;
            self.grown_at += LINE_PERIOD * periods as u32;
        }
        if self.lines == 0 {
            self.unsaid += 1;
            return None;
        }
        self.lines -= 1;
        let unsaid = std::mem::take(&mut self.unsaid);
        Some(Line {
            unsaid: (unsaid > 0).then_some(unsaid),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_gets_so_many_lines_and_one_more_each_second() {
        let start = Instant::now();
        let mut budget = Budget {
            lines: LINES_MAX,
            grown_at: start,
            unsaid: 0,
        };
        let said = |budget: &mut Budget, now| {
            (0..1000).filter(|_| budget.line(now).is_some()).count() as u64
        };
        assert_eq!(said(&mut budget, start), LINES_MAX);
        assert_eq!(said(&mut budget, start + LINE_PERIOD / 2), 0);
        assert_eq!(said(&mut budget, start + LINE_PERIOD), 1);
        // Each half second, so that no part of a second is lost.
        let later: u64 = (3..13)
            .map(|half| said(&mut budget, start + LINE_PERIOD * half / 2))
            .sum();
        assert_eq!(later, 5);
        assert_eq!(said(&mut budget, start + LINE_PERIOD * 100_000), LINES_MAX);
    }

    #[test]
    fn what_was_not_said_is_told_by_the_next_line() {
        let start = Instant::now();
        let mut budget = Budget {
            lines: 1,
            grown_at: start,
            unsaid: 0,
        };
        assert_eq!(budget.line(start), Some(Line { unsaid: None }));
        assert_eq!((budget.line(start), budget.line(start)), (None, None));
        assert_eq!(
            budget.line(start + LINE_PERIOD),
            Some(Line { unsaid: Some(2) })
        );
        assert_eq!(
            budget.line(start + LINE_PERIOD * 2),
            Some(Line { unsaid: None })
        );
    }
}
