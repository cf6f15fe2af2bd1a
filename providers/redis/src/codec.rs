//! The encoding of items: a stamp to compare, then the state that `evaluate` needs.
//!
//! A stamp consists of the format, the version and a number that is unique to the write. A version
//! alone would not distinguish an item that was deleted and created again from the old one.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::{BufMut, Bytes, BytesMut};
use ports::{
    Error, Item, Result,
    key_value::{
        Name, Value, Version,
        evaluate::{Memory, Stored},
    },
};

/// The stored format that this release writes, and the newest it reads.
pub(crate) const FORMAT: u8 = 1;

/// Format, version and the unique number of the write.
pub(crate) const STAMP_BYTES: usize = 17;

/// Draws the unique numbers of stamps. A random start and a large odd step make it very unlikely
/// that two writers draw the same number.
#[derive(Debug)]
pub(crate) struct Stamps(AtomicU64);

impl Default for Stamps {
    fn default() -> Self {
        Self(AtomicU64::new(
            getrandom::u64().expect("a system that ran so far has randomness"),
        ))
    }
}

impl Stamps {
    fn draw(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    fn begin(&self, version: u64, bytes: usize) -> BytesMut {
        let mut encoded = BytesMut::with_capacity(STAMP_BYTES + bytes);
        encoded.put_u8(FORMAT);
        encoded.put_u64(version);
        encoded.put_u64(self.draw());
        encoded
    }

    /// Encodes `stored`.
    pub(crate) fn encode(&self, stored: &Stored) -> Bytes {
        let attributes = stored.item.as_deref().map(Item::attributes);
        let parts = postcard::to_stdvec(&(attributes, stored.memory.as_deref()));
        let parts = parts.expect("plain data in memory always encodes");
        let mut encoded = self.begin(stored.version.0, parts.len());
        encoded.put_slice(&parts);
        encoded.freeze()
    }
}

/// The stamp of `bytes`; empty for an absent key.
pub(crate) fn stamp(bytes: &Bytes) -> Bytes {
    bytes.slice(..bytes.len().min(STAMP_BYTES))
}

/// Decodes the output of [`Stamps::encode`]. Empty bytes stand for an item that never existed.
pub(crate) fn decode(bytes: &[u8]) -> Result<Stored> {
    if bytes.is_empty() {
        return Ok(Stored::default());
    }
    let version = version(bytes)?;
    let (attributes, memory): (Option<Vec<(Name, Value)>>, Option<Memory>) =
        postcard::from_bytes(&bytes[STAMP_BYTES..])
            .map_err(|error| Error::corrupt("decode an item in redis").caused_by(error))?;
    let item = attributes.map(|attributes| Arc::new(Item::from_parts(version, attributes)));
    Ok(Stored {
        item,
        version,
        memory: memory.map(Box::new),
    })
}

fn version(bytes: &[u8]) -> Result<Version> {
    match bytes.first_chunk::<STAMP_BYTES>() {
        Some([FORMAT, version @ .., _, _, _, _, _, _, _, _]) => {
            Ok(Version(u64::from_be_bytes(*version)))
        }
        Some([format, ..]) => Err(Error::corrupt(format!("decode format {format} in redis"))),
        None => Err(Error::corrupt(format!(
            "decode {} bytes in redis",
            bytes.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_decoded_as_it_was_encoded_and_no_stamp_is_drawn_twice() {
        let stamps = Stamps::default();
        let attributes = vec![
            ("a".into(), Value::Integer(i64::MIN)),
            ("b".into(), Value::Bytes(Bytes::from_static(b"\x00\xff"))),
            ("c".into(), Value::List([Bytes::new()].into())),
        ];
        let item = Arc::new(Item::from_parts(Version(7), attributes));
        for item in [Some(item), None] {
            let stored = Stored {
                item,
                version: Version(7),
                memory: Some(Box::default()),
            };
            let (one, other) = (stamps.encode(&stored), stamps.encode(&stored));
            assert_eq!(decode(&one).expect("it decodes"), stored);
            assert_ne!(stamp(&one), stamp(&other));
        }
    }

    #[test]
    fn foreign_bytes_are_corrupt() {
        for bytes in [&b"x"[..], &[9; 40], &[FORMAT; 20]] {
            let error = decode(bytes).expect_err("it is none of ours");
            assert_eq!(error.kind(), ports::ErrorKind::Corrupt, "{bytes:?}");
        }
    }
}
