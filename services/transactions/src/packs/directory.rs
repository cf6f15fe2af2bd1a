//! The directory of a pack, after its values: which write each value belongs to.
//!
//! ```text
//! value │ value │ ... │ directory: version byte, postcard │ its length u32 │ its CRC-32 u32 │ "LFPK"
//! ```
//!
//! Values are stored back to back in the order of the directory, so their offsets follow from their
//! lengths.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    model::{Attempt, Key},
    storage::records::{decode, encode},
};

/// The length of the part after the directory.
pub(crate) const FOOTER_BYTES: u64 = 12;
/// The last bytes of every pack.
pub(crate) const MAGIC: &[u8; 4] = b"LFPK";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Filed {
    pub(crate) key: Key,
    pub(crate) attempt: Attempt,
    pub(crate) write: u32,
    pub(crate) bytes: u32,
    pub(crate) crc: u32,
}

/// Encodes the end of a pack, after its values.
pub(crate) fn encode_end(filed: &[Filed]) -> Bytes {
    let directory = encode(&filed);
    let mut end = BytesMut::with_capacity(directory.len() + FOOTER_BYTES as usize);
    end.put_slice(&directory);
    end.put_u32(directory.len() as u32);
    end.put_u32(crc32fast::hash(&directory));
    end.put_slice(MAGIC);
    end.freeze()
}

/// The length of a pack's directory with its footer, given the last bytes of the pack.
pub(crate) fn end_bytes(tail: &[u8]) -> Result<u64> {
    let (length, _) = footer(tail).ok_or_else(damaged)?;
    Ok(u64::from(length) + FOOTER_BYTES)
}

/// Decodes the directory from the end of a pack.
pub(crate) fn decode_end(end: &[u8]) -> Result<Vec<Filed>> {
    let (length, crc) = footer(end).ok_or_else(damaged)?;
    let rest = &end[..end.len() - FOOTER_BYTES as usize];
    let start = rest
        .len()
        .checked_sub(length as usize)
        .ok_or_else(damaged)?;
    let directory = &rest[start..];
    if crc32fast::hash(directory) != crc {
        return Err(damaged());
    }
    Ok(decode(directory, "a pack's directory")?)
}

/// The length of the directory, and its checksum.
pub(crate) fn footer(end: &[u8]) -> Option<(u32, u32)> {
    let (_, footer) = end.split_last_chunk::<{ FOOTER_BYTES as usize }>()?;
    let (length, rest) = footer.split_first_chunk::<4>()?;
    let (crc, magic) = rest.split_first_chunk::<4>()?;
    (magic == MAGIC).then_some((u32::from_be_bytes(*length), u32::from_be_bytes(*crc)))
}

pub(crate) fn damaged() -> Error {
    Error::Corrupt("decode the directory of a pack".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeId;

    fn filed(count: u32) -> Vec<Filed> {
        let attempt = Attempt {
            node: NodeId(1),
            sequence: 9,
        };
        let one = |write| {
            let key = Key::new(format!("k{write}")).expect("short");
            Filed {
                key,
                attempt,
                write,
                bytes: write * 7,
                crc: u32::MAX - write,
            }
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn a_directory_is_read_back_from_the_end_of_its_pack() {
        for count in [0, 1, 1_000] {
            let (values, end) = (vec![7; 100], encode_end(&filed(count)));
            let pack = [&values[..], &end].concat();
            assert_eq!(
                end_bytes(&pack[pack.len() - FOOTER_BYTES as usize..]),
                Ok(end.len() as u64)
            );
            assert_eq!(decode_end(&end), Ok(filed(count)));
            assert_eq!(
                decode_end(&pack),
                Ok(filed(count)),
                "more than it asked for"
            );
        }
    }

    /// Any truncation or change is detected, and none of it is used as a length.
    #[test]
    fn a_damaged_directory_is_refused() {
        let end = encode_end(&filed(3));
        for cut in 0..end.len() {
            assert!(decode_end(&end[..cut]).is_err(), "cut at {cut}");
            assert!(cut == 0 || decode_end(&end[cut..]).is_err(), "from {cut}");
            let mut changed = end.to_vec();
            changed[cut] ^= 1;
            assert!(decode_end(&changed).is_err(), "changed at {cut}");
        }
        assert!(end_bytes(b"").is_err());
    }
}
