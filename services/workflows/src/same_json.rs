//! Whether two JSON texts have the same value.
//!
//! A caller that repeats a begin may write its input in another way: with other spaces, another
//! order of members, another form of a number. Numbers are compared by their digits, so that no two
//! large ones are taken for each other.

use std::{collections::BTreeMap, str::FromStr as _};

use serde_json::value::RawValue;

/// Below this depth the texts are compared. Each level parses what is inside of it again.
const DEPTH_MAX: usize = 32;

/// Whether two JSON texts have the same value. Texts that are not JSON are compared as they are.
pub(crate) fn is_same_json(one: &[u8], other: &[u8]) -> bool {
    if one == other {
        return true;
    }
    let parsed = |text| serde_json::from_slice::<&RawValue>(text).ok();
    parsed(one)
        .zip(parsed(other))
        .is_some_and(|(one, other)| is_same(one.get(), other.get(), DEPTH_MAX))
}

fn is_same(one: &str, other: &str, depth: usize) -> bool {
    if one == other {
        return true;
    }
    if depth == 0 {
        return false;
    }
    let inside =
        |(one, other): (&&RawValue, &&RawValue)| is_same(one.get(), other.get(), depth - 1);
    match (one.as_bytes().first(), other.as_bytes().first()) {
        (Some(b'{'), Some(b'{')) => {
            let members = |text| serde_json::from_str::<BTreeMap<String, &RawValue>>(text).ok();
            members(one)
                .zip(members(other))
                .is_some_and(|(one, other)| {
                    one.len() == other.len()
                        && one.keys().eq(other.keys())
                        && one.values().zip(other.values()).all(inside)
                })
        }
        (Some(b'['), Some(b'[')) => {
            let elements = |text| serde_json::from_str::<Vec<&RawValue>>(text).ok();
            elements(one)
                .zip(elements(other))
                .is_some_and(|(one, other)| {
                    one.len() == other.len() && one.iter().zip(&other).all(inside)
                })
        }
        (Some(b'"'), Some(b'"')) => {
            let text = |text| serde_json::from_str::<String>(text).ok();
            text(one)
                .zip(text(other))
                .is_some_and(|(one, other)| one == other)
        }
        _ => number(one)
            .zip(number(other))
            .is_some_and(|(one, other)| one == other),
    }
}

/// A number as its sign, its digits without zeros at either end, and the power of ten of the last.
/// None: the text is no number, or its exponent is beyond every use.
fn number(text: &str) -> Option<(bool, String, i64)> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent = i64::from_str(exponent.strip_prefix('+').unwrap_or(exponent)).ok()?;
    let digits = mantissa.strip_prefix('-');
    let is_negative = digits.is_some();
    let (whole, fraction) = digits
        .unwrap_or(mantissa)
        .split_once('.')
        .unwrap_or((digits.unwrap_or(mantissa), ""));
    let all = [whole, fraction].concat();
    if all.is_empty() || !all.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let shortened = all.trim_end_matches('0');
    let zeros = (all.len() - shortened.len()) as i64;
    let digits = shortened.trim_start_matches('0').to_owned();
    if digits.is_empty() {
        return Some((false, digits, 0));
    }
    let last = exponent
        .checked_sub(fraction.len() as i64)?
        .checked_add(zeros)?;
    Some((is_negative, digits, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn are_same(one: &str, other: &str) -> bool {
        let same = is_same_json(one.as_bytes(), other.as_bytes());
        assert_eq!(same, is_same_json(other.as_bytes(), one.as_bytes()));
        same
    }

    #[test]
    fn equal_values_are_the_same_however_they_are_written() {
        for (one, other) in [
            (
                r#"{"a":1,"b":[true,null]}"#,
                " { \"b\" : [ true, null ],\n\"a\":1 } ",
            ),
            (r#""ä/""#, r#""\u00e4\/""#),
            ("1", "1.0"),
            ("100", "1e2"),
            ("-0.5e+1", "-5"),
            ("0", "-0.00e7"),
            ("1e999", "10.0e998"),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            ("[[[]]]", "[ [ [ ] ] ]"),
        ] {
            assert!(are_same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn other_values_are_not() {
        for (one, other) in [
            ("9007199254740993", "9007199254740992"),
            ("0.1", "0.10000000000000000001"),
            ("1", "-1"),
            ("10", "1"),
            ("1", "\"1\""),
            ("null", "{}"),
            ("[]", "{}"),
            ("true", "false"),
            ("[1,2]", "[2,1]"),
            ("[1]", "[1,1]"),
            (r#"{"a":1}"#, r#"{"b":1}"#),
            (r#"{"a":1}"#, r#"{"a":1,"b":2}"#),
            (r#"{"a":{"b":1}}"#, r#"{"a":{"b":2}}"#),
            ("1", "1 2"),
        ] {
            assert!(!are_same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn hostile_texts_are_compared_in_bounded_time() {
        let deep = |space: &str| "[".repeat(100_000) + space + &"]".repeat(100_000);
        assert!(
            !are_same(&deep(""), &deep(" ")),
            "below the bound the texts count"
        );
        for hostile in [
            "1e99999999999999999999",
            "-",
            ".",
            "e",
            "\"\\ud800\"",
            "\u{7f}",
            "",
        ] {
            assert!(!are_same(hostile, "1"), "{hostile}");
            assert!(are_same(hostile, hostile));
        }
    }
}
