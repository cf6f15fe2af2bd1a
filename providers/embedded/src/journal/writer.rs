//! The writing end of the journal.

use std::{io, sync::Arc};

use super::{
    segment::{CurrentSegment, PAGE_BYTES, SEGMENT_HEADER_BYTES},
    spare::{Allocated, Spare},
    usage::JournalUsage,
};

/// How many bytes of zeros are written ahead of the records.
const ZEROED_STEP_BYTES: u64 = 1 << 18;

/// Frames of this size or more are written without zeros ahead. A change of metadata then costs
/// less than writing everything twice.
const ZEROED_FRAME_BYTES_MAX: usize = 1 << 15;

/// The writing end of the journal.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) usage: Arc<JournalUsage>,
    pub(crate) spare: Arc<Spare>,
    pub(crate) salt: u32,
    /// The number of the last record written.
    pub(crate) sequence: u64,
    pub(crate) current: CurrentSegment,
    /// Upper bound of the bytes written since the last freeze of the overlay.
    pub(crate) bytes_since_checkpoint: u64,
}

impl Journal {
    /// The bytes of records that still fit the current segment.
    pub(crate) fn room(&self) -> u64 {
        self.current.bytes - self.current.end
    }

    /// Closes the current segment and continues in a spare.
    pub(crate) fn rotate(&mut self, spare: Allocated, incarnation: u64) -> io::Result<()> {
        let (current, sequence) = (&self.current, self.sequence);
        let next = self
            .spare
            .promote(spare, Some(current), sequence, incarnation, self.salt)?;
        self.usage.rotated(
            current.number,
            current.end.max(current.reused),
            next.bytes - SEGMENT_HEADER_BYTES,
        );
        self.current = next;
        Ok(())
    }

    /// Writes a frame after the last one, with the zeros that belong behind it. Nothing is durable
    /// yet. Leaves the frame as it was.
    pub(crate) fn write(&mut self, frame: &mut Vec<u8>) -> io::Result<()> {
        let (current, length) = (&mut self.current, frame.len());
        let end = current.end + length as u64;
        assert!(end <= current.bytes, "room was reserved");
        if end > current.zeroed {
            current.zeroed = if end <= current.reused {
                // The rest of the page too, so that the kernel need not read the page first, and
                // recovery finds zeros behind the last record.
                end.next_multiple_of(PAGE_BYTES).min(current.bytes)
            } else if length < ZEROED_FRAME_BYTES_MAX {
                (end + ZEROED_STEP_BYTES).min(current.bytes)
            } else {
                end
            };
            frame.resize(length + (current.zeroed - end) as usize, 0);
        }
        let written = current.file.write_at(frame, current.end);
        frame.truncate(length);
        written
    }

    /// Makes the last written frame, of `length` bytes, durable.
    pub(crate) fn sync(&mut self, length: usize) -> io::Result<()> {
        self.current.file.sync_data()?;
        self.sequence += 1;
        self.current.end += length as u64;
        self.usage.synced(self.sequence, length as u64);
        Ok(())
    }
}
