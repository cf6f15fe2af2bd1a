//! Log throttle: when to log a failure that repeats.
//!
//! A provider retries a failing operation several times a second: a server is unreachable, a disk
//! is full. The log's reader wants to know that the failure began, why, that it continues, and how
//! long it lasted, but not every attempt. The throttle is pure, so that tests need not wait: the
//! caller passes the time and writes the log.

use std::time::Duration;

use crate::Monotonic;

/// The time from the first report to the second. It doubles with each report after that,
const REPORT_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// up to this.
const REPORT_AGAIN_AFTER_MAX: Duration = Duration::from_mins(10);
/// A new reason is reported at once, up to this many per failure: they may all differ.
const REASONS_MAX: usize = 8;

/// Whether an operation fails, and which reports were made.
#[derive(Debug, Default)]
pub struct LogThrottle(Option<Ongoing>);

#[derive(Debug)]
struct Ongoing {
    began: Monotonic,
    reported: Monotonic,
    again_after: Duration,
    reason: String,
    /// The reported reasons.
    reasons: Vec<String>,
}

impl LogThrottle {
    /// Notes a failure. If the caller is to report it now, returns how long it has lasted.
    pub fn failed(&mut self, now: Monotonic, reason: &str) -> Option<Duration> {
        let Some(ongoing) = &mut self.0 else {
            let reason = reason.to_owned();
            let (reasons, again_after) = (vec![reason.clone()], REPORT_AGAIN_AFTER);
            self.0 = Some(Ongoing {
                began: now,
                reported: now,
                again_after,
                reason,
                reasons,
            });
            return Some(Duration::ZERO);
        };
        if ongoing.reason != reason {
            reason.clone_into(&mut ongoing.reason);
        }
        if ongoing.reasons.len() < REASONS_MAX
            && !ongoing.reasons.iter().any(|reported| reported == reason)
        {
            ongoing.reasons.push(reason.to_owned());
        } else if now.since(ongoing.reported) >= ongoing.again_after {
            ongoing.again_after = (ongoing.again_after * 2).min(REPORT_AGAIN_AFTER_MAX);
        } else {
            return None;
        }
        ongoing.reported = now;
        Some(now.since(ongoing.began))
    }

    /// Notes a success. If it ends a failure, returns how long that lasted.
    pub fn ended(&mut self, now: Monotonic) -> Option<Duration> {
        self.0.take().map(|ended| now.since(ended.began))
    }

    /// The latest reason of a failure that lasts. None while the operation succeeds.
    pub fn reason(&self) -> Option<&str> {
        self.0.as_ref().map(|ongoing| ongoing.reason.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic(Duration::from_secs(seconds))
    }

    /// The seconds at which an hour of one attempt per second is reported.
    fn reported(reason: impl Fn(u64) -> String) -> Vec<u64> {
        let mut throttle = LogThrottle::default();
        (0..3_600)
            .filter(|second| throttle.failed(at(*second), &reason(*second)).is_some())
            .collect()
    }

    #[test]
    fn a_lasting_failure_is_reported_ever_more_rarely() {
        assert_eq!(
            reported(|_| "away".into()),
            [
                0, 2, 6, 14, 30, 62, 126, 254, 510, 1_022, 1_622, 2_222, 2_822, 3_422
            ]
        );
    }

    #[test]
    fn a_new_reason_is_reported_at_once_and_none_repeatedly() {
        let reason = |second| ["away", "full"][usize::from(second >= 100)].to_owned();
        assert!(reported(reason).contains(&100));
        let by_turns = reported(|second| ["away", "full"][second as usize % 2].to_owned());
        assert!(
            by_turns.starts_with(&[0, 1]) && by_turns.len() < 20,
            "{by_turns:?}"
        );
        let all_different = reported(|second| second.to_string());
        assert!(all_different.len() < 30, "{all_different:?}");
    }

    #[test]
    fn the_end_is_reported_once_with_its_duration() {
        let mut throttle = LogThrottle::default();
        assert_eq!((throttle.ended(at(1)), throttle.reason()), (None, None));
        assert_eq!(throttle.failed(at(10), "away"), Some(Duration::ZERO));
        assert_eq!(
            throttle.failed(at(11), "full"),
            Some(Duration::from_secs(1))
        );
        assert_eq!(throttle.reason(), Some("full"));
        assert_eq!(throttle.ended(at(15)), Some(Duration::from_secs(5)));
        assert_eq!((throttle.ended(at(16)), throttle.reason()), (None, None));
        assert_eq!(
            throttle.failed(at(20), "away"),
            Some(Duration::ZERO),
            "another failure"
        );
    }
}
