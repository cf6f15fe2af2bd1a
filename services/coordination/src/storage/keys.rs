//! How paths and names become parts of keys, however long they are.
//!
//! ZooKeeper takes any path that fits a packet; a provider's key is a thousand bytes or two. So what is longer than
//! [`PLAIN_BYTES_MAX`] lies by its SHA-256, behind a byte that no text has: clients choose paths, so a hash whose
//! collisions can be made will not do. Where keys are read back, the item holds the text beside it. (Transactions keep
//! long keys in the same way.)
//!
//! Invariants
//! - Two texts never share a key: a text is UTF-8, in which [`DIGEST_FOLLOWS`] does not occur.
//! - What is stored of a short text does not change with any of this.

use bytes::Bytes;
use ports::{
    Error, Item, Result,
    key_value::{Name, Value},
};
use sha2::{Digest, Sha256};

/// The longest text that is part of a key as it is: what every provider takes, less what is put in front of it.
const PLAIN_BYTES_MAX: usize = 1000;

/// Stands before a digest.
const DIGEST_FOLLOWS: u8 = 0xff;

/// The attribute that holds the text of a digest.
const TEXT: &str = "long_name";

/// `kind` and the text: a key, or the first or last part of one.
pub(crate) fn of(kind: &str, text: &str) -> Vec<u8> {
    if text.len() <= PLAIN_BYTES_MAX {
        return [kind.as_bytes(), text.as_bytes()].concat();
    }
    [kind.as_bytes(), &[DIGEST_FOLLOWS], &Sha256::digest(text)].concat()
}

/// What an item holds so that [`read`] finds the text of its key; none, if the key itself is the text.
pub(crate) fn beside(text: &str) -> Option<(Name, Value)> {
    let is_long = text.len() > PLAIN_BYTES_MAX;
    is_long.then(|| {
        (
            TEXT.into(),
            Value::Bytes(Bytes::copy_from_slice(text.as_bytes())),
        )
    })
}

/// The text of a key that [`of`] made without a kind.
///
/// Errors: `Corrupt` if the item does not hold the text that the digest is of.
pub(crate) fn read(key: &Bytes, item: &Item, what: &'static str) -> Result<String> {
    let corrupt = || Error::corrupt(format!("read {what}"));
    let text = match key.split_first() {
        Some((&DIGEST_FOLLOWS, digest)) => {
            let text = item.bytes(TEXT).ok_or_else(corrupt)?;
            if Sha256::digest(text)[..] != *digest {
                return Err(corrupt());
            }
            text
        }
        _ => key,
    };
    String::from_utf8(text.to_vec()).map_err(|cause| corrupt().caused_by(cause))
}

/// Puts what was read in the order of its keys into the order of its texts.
pub(crate) fn sort(texts: &mut [String]) {
    // Digests come last, in an order of their own.
    if texts
        .last()
        .is_some_and(|last| last.len() > PLAIN_BYTES_MAX)
    {
        texts.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use ports::key_value::Version;

    use super::*;

    fn item(text: &str) -> Item {
        Item::from_parts(Version(1), beside(text).into_iter().collect())
    }

    #[test]
    fn a_text_is_part_of_a_key_up_to_a_thousand_bytes_and_lies_by_its_digest_beyond() {
        let (plain, long) = ("x".repeat(1000), "x".repeat(1001));
        assert_eq!(of("node:", "/a"), b"node:/a");
        assert_eq!(of("", &plain), plain.as_bytes());
        assert_eq!(of("node:", &long).len(), "node:".len() + 1 + 32);
        assert_ne!(of("", &long), of("", &"y".repeat(1001)));
        for text in ["", "a", &plain, &long] {
            let key = Bytes::from(of("", text));
            assert_eq!(
                read(&key, &item(text), "a name").expect("it is there"),
                text
            );
        }
    }

    #[test]
    fn a_digest_without_its_text_or_with_another_is_damage() {
        let key = Bytes::from(of("", &"x".repeat(2000)));
        for item in [item("short"), item(&"y".repeat(2000))] {
            let error = read(&key, &item, "a child's name").expect_err("it is damaged");
            assert!(error.to_string().contains("a child's name"), "{error}");
        }
    }

    #[test]
    fn texts_are_in_order_with_long_ones_among_them() {
        let mut texts = vec!["a".to_owned(), "c".to_owned(), "b".repeat(1001)];
        sort(&mut texts);
        assert_eq!(texts[1].len(), 1001);
    }
}
