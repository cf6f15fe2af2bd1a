//! Outages: when to say of something that it fails again and again.
//!
//! A provider tries several times a second what does not work: a server that is away, a disk that is full. Whoever reads
//! the log wants to know that it began, why, that it goes on, and how long it was; not each try. Pure, so that no test has
//! to wait: the caller brings the time and does the saying.

use std::time::Duration;

use crate::Monotonic;

/// From the first time that it is said to the second; each time after that comes twice as late,
const SAID_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// but never later than this.
const SAID_AGAIN_AFTER_MAX: Duration = Duration::from_mins(10);
/// A reason that was not heard before in an outage is said at once, up to so many: they may all differ.
const REASONS_MAX: usize = 8;

/// Whether something works, and what was said of it.
#[derive(Debug, Default)]
pub struct Outage(Option<Ongoing>);

#[derive(Debug)]
struct Ongoing {
    began: Monotonic,
    said: Monotonic,
    again_after: Duration,
    reason: String,
    /// The reasons that were said.
    reasons: Vec<String>,
}

impl Outage {
    /// It does not work. If that is to be said now, for how long it has not.
    pub fn failed(&mut self, now: Monotonic, reason: &str) -> Option<Duration> {
        let Some(ongoing) = &mut self.0 else {
            let reason = reason.to_owned();
            let (reasons, again_after) = (vec![reason.clone()], SAID_AGAIN_AFTER);
            self.0 = Some(Ongoing {
                began: now,
                said: now,
                again_after,
                reason,
                reasons,
            });
            return Some(Duration::ZERO);
        };
        if ongoing.reason != reason {
            reason.clone_into(&mut ongoing.reason);
        }
        if ongoing.reasons.len() < REASONS_MAX && !ongoing.reasons.iter().any(|said| said == reason)
        {
            ongoing.reasons.push(reason.to_owned());
        } else if now.since(ongoing.said) >= ongoing.again_after {
            ongoing.again_after = (ongoing.again_after * 2).min(SAID_AGAIN_AFTER_MAX);
        } else {
            return None;
        }
        ongoing.said = now;
        Some(now.since(ongoing.began))
    }

    /// It works. If it did not before, for how long.
    pub fn ended(&mut self, now: Monotonic) -> Option<Duration> {
        self.0.take().map(|ended| now.since(ended.began))
    }

    /// Why it does not work, as heard last; none: it does.
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

    /// At which seconds an outage of an hour is said that is tried each second.
    fn said(reason: impl Fn(u64) -> String) -> Vec<u64> {
        let mut outage = Outage::default();
        (0..3_600)
            .filter(|second| outage.failed(at(*second), &reason(*second)).is_some())
            .collect()
    }

    #[test]
    fn what_goes_on_is_said_ever_more_seldom() {
        assert_eq!(
            said(|_| "away".into()),
            [
                0, 2, 6, 14, 30, 62, 126, 254, 510, 1_022, 1_622, 2_222, 2_822, 3_422
            ]
        );
    }

    #[test]
    fn another_reason_is_said_at_once_and_none_again_and_again() {
        let reason = |second| ["away", "full"][usize::from(second >= 100)].to_owned();
        assert!(said(reason).contains(&100));
        let by_turns = said(|second| ["away", "full"][second as usize % 2].to_owned());
        assert!(
            by_turns.starts_with(&[0, 1]) && by_turns.len() < 20,
            "{by_turns:?}"
        );
        let all_different = said(|second| second.to_string());
        assert!(all_different.len() < 30, "{all_different:?}");
    }

    #[test]
    fn its_end_is_said_once_with_how_long_it_was() {
        let mut outage = Outage::default();
        assert_eq!((outage.ended(at(1)), outage.reason()), (None, None));
        assert_eq!(outage.failed(at(10), "away"), Some(Duration::ZERO));
        assert_eq!(outage.failed(at(11), "full"), Some(Duration::from_secs(1)));
        assert_eq!(outage.reason(), Some("full"));
        assert_eq!(outage.ended(at(15)), Some(Duration::from_secs(5)));
        assert_eq!((outage.ended(at(16)), outage.reason()), (None, None));
        assert_eq!(
            outage.failed(at(20), "away"),
            Some(Duration::ZERO),
            "another one"
        );
    }
}
