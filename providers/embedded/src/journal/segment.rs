//! Segments: the files of the journal.
//!
//! A segment gets all its disk blocks when it is created. Its header is synced before its first
//! record, and names the end of the segment before it. Bytes after that end are void: a failed
//! write or a crash left them. A broken byte before that end is damage. The header also holds the
//! length of the file, which is synced with it. No crash shortens the file after that.
//!
//! ```text
//! magic u64 | crc u32 | zero u32 | number u64 | first sequence u64 | previous end u64 | created by u64 | bytes u64
//!   | reused u64
//! ```
//!
//! A segment that a checkpoint covers is kept for reuse: a sync of blocks that were written before
//! changes no metadata, which halves its time on ext4. `reused` is the end of the earlier records in
//! it. They cannot be taken for new ones, because their numbers are lower than those of the segment.

use std::sync::Arc;

use super::{direct::DirectFile, frame::checksum_of};
use crate::storage::StorageFile;

/// The bytes of a segment's header, after which its first frame starts.
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 64;

/// The number of a journal's first segment.
pub(crate) const FIRST_SEGMENT: u64 = 1;

const MAGIC: u64 = 0x3130_4745_5346_4c00 | 0x0000_0000_0000_004a; // "J" "LFSEG01"

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Its number in the journal.
    pub(crate) number: u64,
    /// The number of its first record.
    pub(crate) first_sequence: u64,
    /// Where the records of the segment before it end; zero if there is none.
    pub(crate) previous_end: u64,
    /// The incarnation that created it.
    pub(crate) incarnation: u64,
    /// The allocated length of the file; zero if an earlier release created it, which did not
    /// record the length.
    pub(crate) bytes: u64,
    /// Where the records of the file's earlier use end; zero if it had none.
    pub(crate) reused: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self, salt: u32) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        bytes[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.first_sequence.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.previous_end.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.reused.to_le_bytes());
        let crc = checksum_of(&bytes[16..], salt);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8], salt: u32) -> Option<Self> {
        let bytes = bytes.get(..SEGMENT_HEADER_BYTES as usize)?;
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let crc = u32::from_le_bytes(bytes[8..12].try_into().ok()?);
        (number(0)? == MAGIC && checksum_of(&bytes[16..], salt) == crc).then_some(())?;
        Some(Self {
            number: number(16)?,
            first_sequence: number(24)?,
            previous_end: number(32)?,
            incarnation: number(40)?,
            bytes: number(48)?,
            reused: number(56)?,
        })
    }
}

/// The segment being written.
#[derive(Debug)]
pub(crate) struct CurrentSegment {
    pub(crate) number: u64,
    pub(crate) file: Arc<dyn StorageFile>,
    /// Where the next record goes, which is the end of the last durable one.
    pub(crate) end: u64,
    /// The allocated length.
    pub(crate) bytes: u64,
    /// The end of the part already written with zeros or records of this segment.
    pub(crate) zeroed: u64,
    /// Where the records of the file's earlier use end; zero if it had none.
    pub(crate) reused: u64,
    /// The file for writes around the page cache, if the file system takes them.
    pub(crate) direct: Option<DirectFile>,
}

impl CurrentSegment {
    /// The bytes of records in it.
    pub(crate) fn records_bytes(&self) -> u64 {
        self.end - SEGMENT_HEADER_BYTES
    }
}
