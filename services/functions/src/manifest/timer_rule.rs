//! When a timer fires: every so many seconds, or at the local times of a cron expression.
//!
//! A cron expression is evaluated in its time zone, and the data of the zones is part of the
//! program. Where clocks change, an expression with one hour and one minute follows Vixie cron. A
//! skipped local time fires once right after the gap. One that occurs twice fires once, the first
//! time. Any other expression (a list, a range, a step or `*` in the hours or minutes) is an
//! interval: it has no tick in the gap, and goes on through both hours.

use std::{fmt, sync::Arc, time::Duration};

use chrono::DateTime;
use chrono_tz::Tz;
use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use ports::Timestamp;

/// The longest cron expression.
const EXPRESSION_BYTES_MAX: usize = 256;
/// The form that refusals name.
const FORM: &str = "cron = \"MINUTE HOUR DAY MONTH WEEKDAY\", such as \"0 9 * * MON-FRI\"";

/// When a timer fires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimerRule {
    /// A period after the time before.
    Every(Duration),
    /// At local times.
    Cron(Arc<CronRule>),
}

/// A cron expression with its time zone.
#[derive(Clone)]
pub struct CronRule {
    text: String,
    cron: Cron,
    zone: Tz,
}

impl TimerRule {
    /// Parses a cron expression of five fields. Errors: why it is none, there is no such zone, or
    /// it never fires.
    pub(super) fn cron(expression: &str, zone: &str) -> Result<Self, String> {
        let refuse = |why: &dyn fmt::Display| {
            let expression: String = expression.chars().take(EXPRESSION_BYTES_MAX).collect();
            format!("cron = {expression:?}: {why}; write {FORM}")
        };
        if expression.len() > EXPRESSION_BYTES_MAX {
            return Err(refuse(&format!(
                "it is longer than {EXPRESSION_BYTES_MAX} bytes"
            )));
        }
        // The parser also takes names such as @daily, and would take a year.
        if expression.split_whitespace().count() != 5 {
            return Err(refuse(&"it does not have five fields"));
        }
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        let cron = parser.parse(expression).map_err(|error| refuse(&error))?;
        let zone: Tz = zone.parse().map_err(|_| {
            format!("timezone = {zone:?} is no time zone of the IANA database, such as \"Europe/Vienna\" or \"UTC\"")
        })?;
        let text = format!("{expression} {}", zone.name());
        let rule = CronRule { text, cron, zone };
        // A day such as 30 February does not depend on the time from which it is looked for.
        if rule.after(Timestamp(0)).is_none() {
            return Err(refuse(&"it never fires"));
        }
        Ok(Self::Cron(Arc::new(rule)))
    }

    /// The first time after `now` at which a timer fires that begins now.
    pub(crate) fn first_after(&self, now: Timestamp) -> Timestamp {
        match self {
            Self::Every(period) => after(now, *period),
            // Not at a time that a calendar has: then never.
            Self::Cron(rule) => rule.after(now).unwrap_or(Timestamp(u64::MAX)),
        }
    }

    /// The time after the one at `due`, leaving out those missed until `now`.
    pub(crate) fn following(&self, due: Timestamp, now: Timestamp) -> Timestamp {
        match self {
            Self::Every(period) => {
                let missed = now.ms_since(due) / milliseconds(*period);
                after(due, *period * u32::try_from(missed + 1).unwrap_or(u32::MAX))
            }
            Self::Cron(_) => self.first_after(due.max(now)),
        }
    }

    /// Its period in milliseconds; zero: it has none.
    pub(crate) fn period_ms(&self) -> u64 {
        match self {
            Self::Every(period) => milliseconds(*period),
            Self::Cron(_) => 0,
        }
    }

    /// Its expression and its zone; empty: it has none.
    pub(crate) fn expression(&self) -> &str {
        match self {
            Self::Every(_) => "",
            Self::Cron(rule) => &rule.text,
        }
    }
}

impl From<Duration> for TimerRule {
    fn from(period: Duration) -> Self {
        Self::Every(period)
    }
}

impl CronRule {
    /// The next time after `now`; none: there is none.
    fn after(&self, now: Timestamp) -> Option<Timestamp> {
        let now = DateTime::from_timestamp_millis(i64::try_from(now.0).ok()?)?;
        let local = now.with_timezone(&self.zone);
        let next = self.cron.find_next_occurrence(&local, false).ok()?;
        u64::try_from(next.timestamp_millis()).ok().map(Timestamp)
    }
}

impl fmt::Debug for CronRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for CronRule {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for CronRule {}

fn milliseconds(period: Duration) -> u64 {
    (period.as_millis() as u64).max(1)
}

fn after(time: Timestamp, period: Duration) -> Timestamp {
    Timestamp(time.0.saturating_add(milliseconds(period)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(expression: &str, zone: &str) -> TimerRule {
        TimerRule::cron(expression, zone).expect("a rule")
    }

    fn at(text: &str) -> Timestamp {
        let at = DateTime::parse_from_rfc3339(text).expect("a time");
        Timestamp(at.timestamp_millis() as u64)
    }

    /// The next times after `from`, with the offsets of the zone.
    fn times(expression: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
        let (rule, mut now) = (rule(expression, zone), at(from));
        let zone: Tz = zone.parse().expect("a zone");
        let next = || {
            now = rule.first_after(now);
            let utc = DateTime::from_timestamp_millis(now.0 as i64).expect("a time");
            utc.with_timezone(&zone).to_rfc3339()
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    #[test]
    fn an_expression_is_evaluated_in_its_zone() {
        assert_eq!(
            times(
                "0 9 * * MON-FRI",
                "Europe/Vienna",
                "2026-01-02T12:00:00Z",
                2
            ),
            ["2026-01-05T09:00:00+01:00", "2026-01-06T09:00:00+01:00"]
        );
        assert_eq!(
            times("30 0 1 1 *", "UTC", "2026-01-01T00:30:00Z", 1),
            ["2027-01-01T00:30:00+00:00"],
            "not the present time again"
        );
    }

    /// The clocks skip from 2 to 3 on 29 March 2026, and repeat 2 to 3 on 25 October.
    #[test]
    fn a_skipped_time_fires_once_after_the_gap_and_a_doubled_one_fires_once() {
        assert_eq!(
            times("30 2 * * *", "Europe/Vienna", "2026-03-28T12:00:00Z", 2),
            ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
        );
        assert_eq!(
            times("30 2 * * *", "Europe/Vienna", "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
        );
        assert_eq!(
            times("30 * * * *", "Europe/Vienna", "2026-10-24T23:45:00Z", 3),
            [
                "2026-10-25T02:30:00+02:00",
                "2026-10-25T02:30:00+01:00",
                "2026-10-25T03:30:00+01:00"
            ],
            "an hourly one goes on through both hours"
        );
    }

    #[test]
    fn missed_times_become_one() {
        let rule = rule("0 * * * *", "UTC");
        let (due, now) = (at("2026-01-01T01:00:00Z"), at("2026-01-01T05:20:00Z"));
        assert_eq!(rule.following(due, now), at("2026-01-01T06:00:00Z"));
    }

    #[test]
    fn what_is_no_expression_or_zone_is_refused_with_the_reason() {
        for (expression, zone, why) in [
            ("0 9 * *", "UTC", "five fields"),
            ("0 0 9 * * MON", "UTC", "five fields"),
            ("@daily", "UTC", "five fields"),
            ("61 9 * * *", "UTC", "cron = \"61 9 * * *\""),
            ("0 9 30 2 *", "UTC", "never fires"),
            ("0 9 * * FUN", "UTC", "cron = "),
            ("0 9 * * *", "Europe/Wien", "no time zone"),
            ("0 9 * * *", "", "no time zone"),
        ] {
            let refused = TimerRule::cron(expression, zone).expect_err(expression);
            assert!(refused.contains(why), "{expression} in {zone}: {refused}");
        }
        let long = format!("{} 9 * * *", "0,".repeat(200) + "0");
        assert!(
            TimerRule::cron(&long, "UTC")
                .expect_err("long")
                .contains("longer")
        );
    }
}
