//! The seeds that a test plays.

use std::{env, ops::Range, str::FromStr};

/// The single seed in `LANDFAST_SEED`, or the first `SEEDS`, or the first `few`.
///
/// Panics where either variable is not a number: a run with other seeds than requested would prove
/// nothing.
pub fn seeds(few: u64) -> Range<u64> {
    match number("LANDFAST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(few),
    }
}

/// The number in the environment variable `name`, if it is set. Panics if it is not a number.
pub fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|value| parsed(name, &value))
}

fn parsed(name: &str, value: &str) -> u64 {
    u64::from_str(value)
        .unwrap_or_else(|_| panic!("{name} is '{value}', where a number is expected, such as 1000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_parsed() {
        assert_eq!(parsed("SEEDS", "1000"), 1_000);
    }

    #[test]
    #[should_panic(expected = "SEEDS is '1e3', where a number is expected")]
    fn a_malformed_number_is_refused() {
        parsed("SEEDS", "1e3");
    }
}
