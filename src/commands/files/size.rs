//! Sizes as the user writes them, and as the commands print them.

use std::str::FromStr;

use anyhow::Context as _;

const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// Bytes, written as `4096`, `16KiB`, `2GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size(pub(super) u64);

impl FromStr for Size {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let unit = UNITS.iter().find_map(|(unit, shift)| {
            let number = text.strip_suffix(unit)?;
            Some((number.trim_end(), *shift))
        });
        let (number, shift) = unit.unwrap_or((text, 0));
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let bytes = number.parse::<u64>().ok().filter(|_| is_number);
        let bytes = bytes.and_then(|bytes| bytes.checked_mul(1 << shift));
        let bytes = bytes.context("give a number of bytes, or one with KiB, MiB, GiB or TiB")?;
        Ok(Self(bytes))
    }
}

/// A quota: a size, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bound(pub(super) Option<u64>);

impl FromStr for Bound {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if text == "none" {
            return Ok(Self(None));
        }
        let Size(bytes) = text.parse().context("or `none`")?;
        Ok(Self(Some(bytes)))
    }
}

/// A size with the largest unit of which it has at least one.
pub(super) fn shown(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, shift)| bytes >> shift > 0);
    match unit {
        Some((unit, shift)) => format!(
            "{:.1} {unit}",
            bytes as f64 / f64::from(2_u32).powi(*shift as i32)
        ),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown_with_their_units() {
        for (text, bytes) in [
            ("4096", 4_096),
            ("16KiB", 16_384),
            ("2 GiB", 2 << 30),
            ("0", 0),
        ] {
            assert_eq!(text.parse::<Size>().expect("a size"), Size(bytes));
        }
        for wrong in ["", "KiB", "+1", "1.5GiB", "10GB", "99999999999TiB"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
        assert_eq!("none".parse::<Bound>().expect("none"), Bound(None));
        assert_eq!(
            [0, 1_023, 1_536, 3 << 40].map(shown),
            ["0 B", "1023 B", "1.5 KiB", "3.0 TiB"]
        );
    }
}
