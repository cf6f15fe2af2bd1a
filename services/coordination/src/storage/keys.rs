//! Encodes paths and names of any length as parts of keys.
//!
//! ZooKeeper accepts any path that fits a packet, but a provider's key holds one or two thousand
//! bytes. A text longer than [`PLAIN_BYTES_MAX`] is therefore stored under its SHA-256, after a
//! byte that no text contains. Clients choose paths, so the hash must resist deliberate collisions.
//! Where keys are read back, the item also holds the text. Transactions store long keys in the same
//! way.
//!
//! Invariants
//! - Two texts never share a key: texts are UTF-8, in which [`DIGEST_MARKER`] does not occur.
//! - The encoding of a short text is the text itself.

use std::borrow::Cow;

use bytes::Bytes;
use ports::{
    Error, Item, Key, Result,
    key_value::{Name, Value},
};
use sha2::{Digest, Sha256};

/// The longest text that is stored unhashed, in bytes: the limit that every provider accepts, less
/// the prefix.
const PLAIN_BYTES_MAX: usize = 1000;

const DIGEST_MARKER: u8 = 0xff;

const TEXT: &str = "long_name";

/// The text as a part of a key.
pub(crate) fn encode(text: &str) -> Cow<'_, [u8]> {
    if text.len() <= PLAIN_BYTES_MAX {
        return Cow::Borrowed(text.as_bytes());
    }
    Cow::Owned([&[DIGEST_MARKER][..], &Sha256::digest(text)].concat())
}

/// The key of `sort` in the partition of this kind and text.
pub(crate) fn within(kind: &str, text: &str, sort: &[u8]) -> Key {
    Key::within([kind.as_bytes(), &encode(text)], sort)
}

/// The attribute from which [`read`] restores a long text. `None` if the key contains the text.
pub(crate) fn text_attribute(text: &str) -> Option<(Name, Value)> {
    let is_long = text.len() > PLAIN_BYTES_MAX;
    is_long.then(|| {
        (
            TEXT.into(),
            Value::Bytes(Bytes::copy_from_slice(text.as_bytes())),
        )
    })
}

/// The text of a key that [`encode`] encoded without a kind.
///
/// Errors: `Corrupt` if the item does not hold the text of the digest.
pub(crate) fn read(key: &Bytes, item: &Item, what: &'static str) -> Result<String> {
    let corrupt = || Error::corrupt(format!("read {what}"));
    let text = match key.split_first() {
        Some((&DIGEST_MARKER, digest)) => {
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

/// Sorts texts that were read in the order of their keys.
pub(crate) fn sort(texts: &mut [String]) {
    // Digests come last, in hash order.
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
        Item::from_parts(Version(1), text_attribute(text).into_iter().collect())
    }

    #[test]
    fn a_text_above_a_thousand_bytes_is_stored_under_its_digest() {
        let (plain, long) = ("x".repeat(1000), "x".repeat(1001));
        assert_eq!(within("node:", "/a", b"b").partition(), b"node:/a");
        assert_eq!(*encode(&plain), *plain.as_bytes());
        assert_eq!(encode(&long).len(), 1 + 32);
        assert_ne!(encode(&long), encode(&"y".repeat(1001)));
        for text in ["", "a", &plain, &long] {
            let key = Bytes::from(encode(text).into_owned());
            assert_eq!(
                read(&key, &item(text), "a name").expect("it is there"),
                text
            );
        }
    }

    #[test]
    fn a_digest_without_its_text_is_corrupt() {
        let key = Bytes::from(encode(&"x".repeat(2000)).into_owned());
        for item in [item("short"), item(&"y".repeat(2000))] {
            let error = read(&key, &item, "a child's name").expect_err("it is damaged");
            assert!(error.to_string().contains("a child's name"), "{error}");
        }
    }

    #[test]
    fn long_texts_are_sorted_among_short_ones() {
        let mut texts = vec!["a".to_owned(), "c".to_owned(), "b".repeat(1001)];
        sort(&mut texts);
        assert_eq!(texts[1].len(), 1001);
    }
}
