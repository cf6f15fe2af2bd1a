//! Bounds the log lines that peers cause.
//!
//! A peer that sends bytes that no client sends is logged with its fault, never with the bytes.
//! Such a peer can be arbitrarily fast. All peers together therefore get a burst of lines and one
//! more per second; one attacker may use many addresses. Suppressed lines are counted, and the next
//! line reports their number.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Lines in one burst.
const LINES_MAX: u64 = 100;
/// Time until one more line is available.
const LINE_PERIOD: Duration = Duration::from_secs(1);

/// The available lines, at first a full burst.
#[derive(Debug, Default)]
pub struct PeerLog(Mutex<Budget>);

/// The permission to write one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Number of lines suppressed since the last one, or none.
    pub suppressed: Option<u64>,
}

#[derive(Debug)]
struct Budget {
    lines: u64,
    /// The time up to which `lines` has been refilled.
    grown_at: Instant,
    suppressed: u64,
}

impl PeerLog {
    /// Requests a line. `None` if it must be suppressed.
    pub fn line(&self) -> Option<Line> {
        let mut budget = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        budget.line(Instant::now())
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            lines: LINES_MAX,
            grown_at: Instant::now(),
            suppressed: 0,
        }
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
            self.suppressed += 1;
            return None;
        }
        self.lines -= 1;
        let suppressed = std::mem::take(&mut self.suppressed);
        Some(Line {
            suppressed: (suppressed > 0).then_some(suppressed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_gets_a_burst_of_lines_and_one_more_each_second() {
        let start = Instant::now();
        let mut budget = Budget {
            lines: LINES_MAX,
            grown_at: start,
            suppressed: 0,
        };
        let said = |budget: &mut Budget, now| {
            (0..1000).filter(|_| budget.line(now).is_some()).count() as u64
        };
        assert_eq!(said(&mut budget, start), LINES_MAX);
        assert_eq!(said(&mut budget, start + LINE_PERIOD / 2), 0);
        assert_eq!(said(&mut budget, start + LINE_PERIOD), 1);
        // Each half second, so that fractions of a second are not lost.
        let later: u64 = (3..13)
            .map(|half| said(&mut budget, start + LINE_PERIOD * half / 2))
            .sum();
        assert_eq!(later, 5);
        assert_eq!(said(&mut budget, start + LINE_PERIOD * 100_000), LINES_MAX);
    }

    #[test]
    fn the_next_line_reports_suppressed_lines() {
        let start = Instant::now();
        let mut budget = Budget {
            lines: 1,
            grown_at: start,
            suppressed: 0,
        };
        assert_eq!(budget.line(start), Some(Line { suppressed: None }));
        assert_eq!((budget.line(start), budget.line(start)), (None, None));
        assert_eq!(
            budget.line(start + LINE_PERIOD),
            Some(Line {
                suppressed: Some(2)
            })
        );
        assert_eq!(
            budget.line(start + LINE_PERIOD * 2),
            Some(Line { suppressed: None })
        );
    }
}
