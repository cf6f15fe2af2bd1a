//! The writing end of the journal.

use std::{io, sync::Arc};

use super::{
    direct::{DirectFile, FrameBuffer, is_refusal},
    frame::{self, Header},
    segment::{CurrentSegment, SEGMENT_HEADER_BYTES},
    spare::{Allocated, Spare},
    usage::JournalUsage,
};
use crate::{records::overlay::Group, storage::PAGE_BYTES};

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

    /// Encodes `group` into `buffer` as the next frame, which has at most `bound` bytes.
    pub(crate) fn encode(
        &self,
        header: Header,
        group: &Group,
        bound: u64,
        buffer: &mut FrameBuffer,
    ) {
        let direct = self.current.direct.as_ref();
        let before = direct.map_or(&[][..], DirectFile::last_page);
        let bytes = buffer.begin(before, bound as usize);
        frame::encode(header, group, self.salt, bytes);
        buffer.finish();
    }

    /// Writes a frame after the last one, with the zeros that belong after it. Nothing is durable
    /// yet.
    pub(crate) fn write(&mut self, buffer: &mut FrameBuffer) -> io::Result<()> {
        let (current, length) = (&mut self.current, buffer.frame().len());
        let end = current.end + length as u64;
        assert!(end <= current.bytes, "room was reserved");
        let mut until = end;
        if end > current.zeroed {
            until = if end <= current.reused {
                // The rest of the page too, so that the kernel need not read the page first, and
                // recovery finds zeros behind the last record.
                end.next_multiple_of(PAGE_BYTES).min(current.bytes)
            } else if length < ZEROED_FRAME_BYTES_MAX {
                (end + ZEROED_STEP_BYTES).min(current.bytes)
            } else {
                end
            };
            current.zeroed = until;
        }
        if let Some(direct) = &current.direct {
            match direct.write(buffer, current.end, until) {
                Err(error) if is_refusal(&error) => {
                    self.spare.note_refusal(&error);
                    current.direct = None;
                }
                written => return written,
            }
        }
        buffer.pad((until - end) as usize);
        current.file.write_at(buffer.padded(), current.end)
    }

    /// Makes the last written frame durable.
    pub(crate) fn sync(&mut self, buffer: &FrameBuffer) -> io::Result<()> {
        let length = buffer.frame().len() as u64;
        match &mut self.current.direct {
            Some(direct) => direct.sync(buffer)?,
            None => self.current.file.sync_data()?,
        }
        self.sequence += 1;
        self.current.end += length;
        self.usage.synced(self.sequence, length);
        Ok(())
    }
}
