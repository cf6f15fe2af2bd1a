//! Times as the commands print them, and ages as the user writes them.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use time::OffsetDateTime;

/// The longest age: a thousand years. It bounds the arithmetic.
const AGE_MAX: Duration = Duration::from_hours(1000 * 366 * 24);

/// Milliseconds since the epoch as date, time and zone: `2026-05-01T09:30:00.000Z`.
pub(crate) fn shown(at_ms: u64) -> String {
    let nanoseconds = i128::from(at_ms) * 1_000_000;
    let Ok(at) = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds) else {
        return format!("{at_ms} ms");
    };
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    let (hour, minute, second, ms) = (at.hour(), at.minute(), at.second(), at.millisecond());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Parses an age: `90s`, `5m`, `2h`, `7d`.
pub(crate) fn age(text: &str) -> anyhow::Result<Duration> {
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let parsed = units.iter().find_map(|(unit, seconds)| {
        let number = text.strip_suffix(*unit)?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        number
            .parse::<u64>()
            .ok()
            .filter(|_| is_number)?
            .checked_mul(*seconds)
    });
    let seconds = parsed.context("give a number and s, m, h or d, such as 5m")?;
    let age = Duration::from_secs(seconds);
    ensure!(age <= AGE_MAX, "it is longer than 1000 years");
    Ok(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_its_date_and_its_zone() {
        assert_eq!(shown(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(shown(1_709_210_096_007), "2024-02-29T12:34:56.007Z");
        assert_eq!(shown(u64::MAX), format!("{} ms", u64::MAX));
    }

    #[test]
    fn an_age_has_a_unit() {
        for (text, seconds) in [
            ("90s", 90),
            ("5m", 300),
            ("2h", 7200),
            ("7d", 604_800),
            ("0s", 0),
        ] {
            assert_eq!(age(text).expect("an age").as_secs(), seconds, "{text}");
        }
        for text in [
            "",
            "5",
            "m",
            "-5m",
            "+5m",
            "5 m",
            "5min",
            "1.5h",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            age(text).expect_err(text);
        }
    }
}
