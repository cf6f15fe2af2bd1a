//! A frame: one journal record, which is a group of absolute states under one checksum.
//!
//! ```text
//! magic u32 | length u32 | crc u32 | header crc u32 | sequence u64 | incarnation u64 | end position u64 | payload
//! ```
//!
//! Little-endian, padded to eight bytes. The checksum starts from the store's own salt and covers
//! everything but the magic and itself. A record of another store, or from another offset of a
//! file, is therefore not taken for one of ours. The payload is a list of entries: kind, table,
//! key, and the state unless the entry is a deletion. A frame without entries says that all
//! mutations since the last record, up to its end position, undid each other.

use std::ops::Range;

use bytes::Bytes;

use crate::records::{
    Record, RecordKey, Table,
    overlay::{ENTRY_BYTES, Group},
    put,
};

/// The bytes of a frame's header.
pub(crate) const HEADER_BYTES: usize = 40;
/// The alignment of frames, in bytes.
pub(crate) const ALIGNMENT: usize = 8;
/// The largest payload. A group that would exceed it is refused before it is ordered.
pub(crate) const PAYLOAD_BYTES_MAX: u64 = 1 << 30;

const MAGIC: u32 = 0x314a_464c; // "LFJ1"
const PUT: u8 = 1;
const DELETE: u8 = 2;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// The number of the record: one above the record before it.
    pub(crate) sequence: u64,
    /// The incarnation that wrote it.
    pub(crate) incarnation: u64,
    /// The last mutation it covers.
    pub(crate) end_position: u64,
}

/// Appends `group` to `buffer` as a padded frame.
pub(crate) fn encode(header: Header, group: &Group, salt: u32, buffer: &mut Vec<u8>) {
    let frame_start = buffer.len();
    buffer.resize(frame_start + HEADER_BYTES, 0);
    for (key, record) in group {
        buffer.push(if record.is_some() { PUT } else { DELETE });
        buffer.push(key.table as u8);
        put(&key.key, buffer);
        if let Some(record) = record {
            // Four bytes for the length, which is known once the record is encoded.
            buffer.extend_from_slice(&[0; 4]);
            let start = buffer.len();
            record.encode(buffer);
            let length = buffer.len() - start;
            assert!(
                length <= record.encoded_bound(),
                "room is reserved by the bound"
            );
            buffer[start - 4..start].copy_from_slice(&(length as u32).to_le_bytes());
        }
    }
    let frame = &mut buffer[frame_start..];
    let length = frame.len() - HEADER_BYTES;
    frame[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    frame[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    frame[16..24].copy_from_slice(&header.sequence.to_le_bytes());
    frame[24..32].copy_from_slice(&header.incarnation.to_le_bytes());
    frame[32..40].copy_from_slice(&header.end_position.to_le_bytes());
    let header_crc = header_checksum(frame, salt);
    frame[12..16].copy_from_slice(&header_crc.to_le_bytes());
    let crc = checksum(frame, salt);
    frame[8..12].copy_from_slice(&crc.to_le_bytes());
    let padding = frame.len().next_multiple_of(ALIGNMENT) - frame.len();
    buffer.resize(buffer.len() + padding, 0);
}

fn checksum(frame: &[u8], salt: u32) -> u32 {
    checksum_of(&frame[12..], checksum_of(&frame[4..8], salt))
}

/// The checksum of a header's own fields, so that a search after a broken frame reads headers alone.
/// It meets payloads that clients chose, but they do not know the salt.
fn header_checksum(frame: &[u8], salt: u32) -> u32 {
    checksum_of(&frame[16..HEADER_BYTES], checksum_of(&frame[4..8], salt))
}

/// Continues the checksum `initial` over `bytes`.
pub(super) fn checksum_of(bytes: &[u8], initial: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(initial);
    hasher.update(bytes);
    hasher.finalize()
}

/// An upper bound of a frame with entries of at most `pending_bytes`.
pub(crate) fn frame_bound(pending_bytes: u64) -> u64 {
    const { assert!(ENTRY_BYTES >= 2 + 5 + 4) };
    pending_bytes + (HEADER_BYTES + ALIGNMENT) as u64
}

/// A whole frame.
#[derive(Debug)]
pub(crate) struct Frame<'file> {
    pub(crate) header: Header,
    pub(crate) payload: &'file [u8],
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The frame at the start of `bytes`, if it is whole.
pub(crate) fn read(bytes: &[u8], salt: u32) -> Option<Frame<'_>> {
    let end = HEADER_BYTES.checked_add(unpadded_length(bytes, salt)?)?;
    let frame = bytes.get(..end)?;
    let header = Header {
        sequence: u64_at(frame, 16)?,
        incarnation: u64_at(frame, 24)?,
        end_position: u64_at(frame, 32)?,
    };
    (checksum(frame, salt) == u32_at(frame, 8)?).then_some(Frame {
        header,
        payload: &frame[HEADER_BYTES..],
    })
}

/// The length of the payload, if `bytes` start with a whole header.
fn unpadded_length(bytes: &[u8], salt: u32) -> Option<usize> {
    let is_header = bytes.len() >= HEADER_BYTES
        && u32_at(bytes, 0)? == MAGIC
        && u32_at(bytes, 12)? == header_checksum(bytes, salt);
    is_header.then_some(u32_at(bytes, 4)? as usize)
}

/// The padded length of the frame at the start of `bytes`; none if they do not start with a whole
/// header.
pub(crate) fn length(bytes: &[u8], salt: u32) -> Option<u64> {
    let length = (HEADER_BYTES + unpadded_length(bytes, salt)?) as u64;
    Some(length.next_multiple_of(ALIGNMENT as u64))
}

/// Whether a whole header starts in `bytes` with one of these numbers, and an end position of at
/// least `end_position`. Both bounds leave a client that fills its values with headers no chance:
/// it would have to guess them along with the salt.
pub(crate) fn is_header_within(
    bytes: &[u8],
    sequences: &Range<u64>,
    end_position: u64,
    salt: u32,
) -> bool {
    (0..bytes.len())
        .step_by(ALIGNMENT)
        .filter(|at| unpadded_length(&bytes[*at..], salt).is_some())
        .any(|at| {
            let number = |field: usize| u64_at(bytes, at + field);
            number(16).is_some_and(|sequence| sequences.contains(&sequence))
                && number(32).is_some_and(|end| end >= end_position)
        })
}

/// Calls `apply` with each entry of a payload; none if the payload does not decode.
pub(crate) fn decode(
    payload: &[u8],
    mut apply: impl FnMut(RecordKey, Option<Record>),
) -> Option<()> {
    let mut rest = payload;
    while !rest.is_empty() {
        let (kind, table) = (*rest.first()?, Table::from_byte(*rest.get(1)?)?);
        let (key, after) = postcard::take_from_bytes(&rest[2..]).ok()?;
        let key = RecordKey::new(table, key);
        rest = after;
        match kind {
            DELETE => apply(key, None),
            PUT => {
                let length = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?) as usize;
                let value = rest.get(4..4usize.checked_add(length)?)?;
                rest = &rest[4 + length..];
                apply(
                    key,
                    Some(Record::decode(table, Bytes::copy_from_slice(value))?),
                );
            }
            _ => return None,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests;
