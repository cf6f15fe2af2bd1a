//! Transaction ids: names that clients choose, ids that they draw at random, and ids that say who gave them, and when.
//!
//! A generated id is 128 bits as 26 characters of Crockford's base 32: start in milliseconds (48), node (24),
//! sequence (40), random (16). Whoever is asked about one that nothing at rest knows can tell by it whom to ask
//! and whether its window is over. A client may choose a name of the same form (a ULID, say), so the form alone
//! never decides anything about a name whose row is there.
//!
//! A client that has no name for its transaction, and wants to be able to repeat the begin, draws one: [`RANDOM_PREFIX`] and
//! 128 bits in hexadecimal digits. Nobody asks for such a name who did not begin it, so its outcome is kept for minutes and
//! not for days. That is all that it says: otherwise it is a name as others are.

use std::{fmt, str};

use bytes::Bytes;
use ports::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    model::{Attempt, NodeId},
};

/// The longest id, in bytes.
pub const ID_BYTES_MAX: usize = 128;

/// What a name begins with that a client has drawn at random for one transaction.
pub const RANDOM_PREFIX: &str = "random-";

/// The lower hexadecimal digits of a random name, after its prefix.
const RANDOM_DIGITS: usize = 32;

/// Crockford's base 32.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// The characters of a generated id.
const GENERATED_BYTES: usize = 26;

const START_BITS: u32 = 48;
const NODE_BITS: u32 = 24;
const SEQUENCE_BITS: u32 = 40;
const RANDOM_BITS: u32 = 16;

/// What a client calls a transaction: 1 to [`ID_BYTES_MAX`] bytes of any value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TransactionId(Bytes);

/// What a generated id says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generated {
    /// When it was given.
    pub start: Timestamp,
    /// Its one attempt.
    pub attempt: Attempt,
}

impl TransactionId {
    /// The id `bytes`. Errors: `Invalid` if there are none or too many.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self> {
        let bytes = bytes.into();
        if bytes.is_empty() || bytes.len() > ID_BYTES_MAX {
            return Err(Error::Invalid("a transaction id has 1 to 128 bytes"));
        }
        Ok(Self(bytes))
    }

    /// A new id for `attempt`.
    pub fn generate(start: Timestamp, attempt: Attempt, random: u16) -> Self {
        let keep = |value: u64, bits: u32| u128::from(value) & ((1 << bits) - 1);
        let bits = keep(start.0, START_BITS) << (NODE_BITS + SEQUENCE_BITS + RANDOM_BITS)
            | keep(u64::from(attempt.node.0), NODE_BITS) << (SEQUENCE_BITS + RANDOM_BITS)
            | keep(attempt.sequence, SEQUENCE_BITS) << RANDOM_BITS
            | u128::from(random);
        let digit = |place: usize| {
            let shifted = bits >> (5 * (GENERATED_BYTES - 1 - place));
            DIGITS[(shifted & 31) as usize]
        };
        Self((0..GENERATED_BYTES).map(digit).collect())
    }

    /// What it says if it has the form of a generated one.
    pub fn generated(&self) -> Option<Generated> {
        if self.0.len() != GENERATED_BYTES || self.0[0] > b'7' {
            return None;
        }
        let mut bits = 0_u128;
        for byte in &self.0 {
            let digit = DIGITS.iter().position(|digit| digit == byte)?;
            bits = bits << 5 | digit as u128;
        }
        let take = |shift: u32, width: u32| (bits >> shift) as u64 & ((1 << width) - 1);
        let node = NodeId(take(SEQUENCE_BITS + RANDOM_BITS, NODE_BITS) as u32);
        let attempt = Attempt {
            node,
            sequence: take(RANDOM_BITS, SEQUENCE_BITS),
        };
        let start = Timestamp(take(NODE_BITS + SEQUENCE_BITS + RANDOM_BITS, START_BITS));
        Some(Generated { start, attempt })
    }

    /// Whether it has the form of a name drawn at random. One that is derived from such has not: a body that is run again late
    /// begins what it begins within itself again, and is to find it committed.
    pub fn is_random(&self) -> bool {
        self.0
            .strip_prefix(RANDOM_PREFIX.as_bytes())
            .is_some_and(|digits| {
                digits.len() == RANDOM_DIGITS
                    && digits
                        .iter()
                        .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
            })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// As text, if it is.
    pub fn as_str(&self) -> Option<&str> {
        str::from_utf8(&self.0).ok()
    }
}

impl fmt::Debug for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_id_says_who_gave_it_and_when() {
        for (start, node, sequence, random) in [
            (0, 0, 0, 0),
            (1_735_689_600_000, 12, 99, 0xbeef),
            ((1 << 48) - 1, (1 << 24) - 1, (1 << 40) - 1, u16::MAX),
        ] {
            let attempt = Attempt {
                node: NodeId(node),
                sequence,
            };
            let id = TransactionId::generate(Timestamp(start), attempt, random);
            assert_eq!(id.as_bytes().len(), GENERATED_BYTES);
            assert_eq!(
                id.generated(),
                Some(Generated {
                    start: Timestamp(start),
                    attempt
                }),
                "{id:?}"
            );
        }
    }

    #[test]
    fn a_name_of_another_form_says_nothing() {
        for name in [
            "order-17",
            "",
            "01ARZ3NDEKTSV4RRFFQ69G5FAI",
            "Z1ARZ3NDEKTSV4RRFFQ69G5FAV",
        ] {
            let generated = TransactionId::new(name).map(|id| id.generated());
            assert!(matches!(generated, Err(_) | Ok(None)), "{name}");
        }
        assert!(TransactionId::new(vec![b'x'; ID_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn a_random_name_is_told_by_its_form_alone() {
        let digits = "0123456789abcdef0123456789abcdef";
        let is_random = |name: String| TransactionId::new(name).expect("short enough").is_random();
        assert!(is_random(format!("{RANDOM_PREFIX}{digits}")));
        for name in [
            digits.to_owned(),
            format!("{RANDOM_PREFIX}{digits}0"),
            format!("{RANDOM_PREFIX}{}", &digits[1..]),
            format!("{RANDOM_PREFIX}{}", digits.to_uppercase()),
            format!("Random-{digits}"),
        ] {
            assert!(!is_random(name.clone()), "{name}");
        }
    }
}
