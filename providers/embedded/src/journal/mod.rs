//! The journal: every change in order, once, before anybody outside hears of it.
//!
//! It is a row of [`segment`] files holding [`frame`]s, one frame per group commit. The journal [`thread`]
//! is its only writer; it writes a frame only after the one before it was synced. So a whole frame behind a
//! broken one proves that the broken one had been durable: that is damage, and anything else is a tail that
//! a crash tore, which nobody was told about.
//!
//! Invariants
//! - Records carry numbers without a gap, over segments and incarnations.
//! - Zeros are written ahead of small records in steps of [`ZEROED_STEP_BYTES`], in the sync of the record
//!   that reaches them; most syncs then change no metadata, which halves their time on ext4.
//! - After a failed write or sync nothing is appended behind it: the next record goes to a new segment,
//!   whose header names the end of the last durable one.

mod facts;
pub(crate) mod frame;
pub(crate) mod segment;
pub(crate) mod thread;

use std::{io, sync::Arc};

pub(crate) use self::facts::{ClosedSegment, Folded, JournalFacts};
use self::segment::{Allocated, SEGMENT_HEADER_BYTES, SegmentHeader, Spare};
use crate::storage::StorageFile;

/// How far zeros are written ahead of the records.
const ZEROED_STEP_BYTES: u64 = 1 << 18;

/// Frames of this size are written without zeros ahead: a change of metadata then costs less than writing
/// everything twice.
const ZEROED_FRAME_BYTES_MAX: usize = 1 << 15;

/// The journal's writing end.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) facts: Arc<JournalFacts>,
    pub(crate) spare: Arc<Spare>,
    pub(crate) salt: u32,
    /// The number of the last record written.
    pub(crate) sequence: u64,
    pub(crate) current: CurrentSegment,
    /// What was written since the last freeze.
    pub(crate) bytes_since_checkpoint: u64,
}

/// The segment being written.
#[derive(Debug)]
pub(crate) struct CurrentSegment {
    pub(crate) number: u64,
    pub(crate) file: Arc<dyn StorageFile>,
    /// Where the next record goes: the end of the last durable one.
    pub(crate) end: u64,
    /// Allocated.
    pub(crate) bytes: u64,
    /// Written with zeros or records.
    pub(crate) zeroed: u64,
}

impl CurrentSegment {
    /// Bytes of records in it.
    pub(crate) fn records_bytes(&self) -> u64 {
        self.end - SEGMENT_HEADER_BYTES
    }
}

impl Journal {
    /// How many bytes of records the current segment still takes.
    pub(crate) fn room(&self) -> u64 {
        self.current.bytes - self.current.end
    }

    /// Closes the current segment and goes on in a spare.
    pub(crate) fn rotate(&mut self, spare: Allocated, incarnation: u64) -> io::Result<()> {
        let header = SegmentHeader {
            number: self.current.number + 1,
            first_sequence: self.sequence + 1,
            previous_end: self.current.end,
            incarnation,
            bytes: spare.bytes(),
        };
        let (file, bytes) = self.spare.promote(spare, header, self.salt)?;
        self.facts
            .rotated(self.current.number, bytes - SEGMENT_HEADER_BYTES);
        self.current = CurrentSegment {
            number: header.number,
            file,
            end: SEGMENT_HEADER_BYTES,
            bytes,
            zeroed: SEGMENT_HEADER_BYTES,
        };
        Ok(())
    }

    /// Writes a frame behind the last one; nothing is durable yet.
    pub(crate) fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        let current = &mut self.current;
        let end = current.end + frame.len() as u64;
        assert!(end <= current.bytes, "room was reserved");
        if end > current.zeroed && frame.len() < ZEROED_FRAME_BYTES_MAX {
            let zeroed = (end + ZEROED_STEP_BYTES).min(current.bytes);
            let zeros = vec![0; (zeroed - end) as usize];
            current.file.write_at(&zeros, end)?;
            current.zeroed = zeroed;
        }
        current.file.write_at(frame, current.end)
    }

    /// Makes the frame written last, `length` bytes of it, durable.
    pub(crate) fn sync(&mut self, length: usize) -> io::Result<()> {
        self.current.file.sync_data()?;
        self.sequence += 1;
        self.current.end += length as u64;
        self.facts.synced(self.sequence, length as u64);
        Ok(())
    }
}
