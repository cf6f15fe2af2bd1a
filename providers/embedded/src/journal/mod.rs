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

pub(crate) mod frame;
pub(crate) mod segment;
pub(crate) mod thread;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use self::segment::{Allocated, SEGMENT_HEADER_BYTES, SegmentHeader, Spare};
use crate::storage::{Storage, StorageFile};

/// How far zeros are written ahead of the records.
const ZEROED_STEP_BYTES: u64 = 1 << 18;

/// Frames of this size are written without zeros ahead: a change of metadata then costs less than writing
/// everything twice.
const ZEROED_FRAME_BYTES_MAX: usize = 1 << 15;

/// A segment that is no longer written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClosedSegment {
    pub(crate) number: u64,
    pub(crate) last_sequence: u64,
    pub(crate) bytes: u64,
}

/// What others may know of the journal while the thread writes it.
#[derive(Debug, Default)]
pub(crate) struct JournalFacts {
    /// Segments that are no longer written, oldest first.
    pub(crate) closed: Mutex<Vec<ClosedSegment>>,
    /// Bytes of records in the current segment.
    pub(crate) current_bytes: AtomicU64,
    /// Bytes of records that the current segment has room for.
    pub(crate) current_room: AtomicU64,
    /// Syncs of records.
    pub(crate) fsyncs: AtomicU64,
    /// The number of the last record written.
    pub(crate) sequence: AtomicU64,
    /// The number of the last record that a checkpoint of this start, or the one it began with, holds.
    folded: AtomicU64,
    /// One removes segments at a time.
    removing: Mutex<()>,
}

impl JournalFacts {
    /// Bytes of records in all segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.closed_bytes() + self.current_bytes.load(Ordering::Relaxed)
    }

    /// The same once the current segment is full.
    pub(crate) fn bytes_when_full(&self) -> u64 {
        self.closed_bytes() + self.current_room.load(Ordering::Relaxed)
    }

    fn closed_bytes(&self) -> u64 {
        self.closed.lock().iter().map(|segment| segment.bytes).sum()
    }

    /// A checkpoint has taken in the records up to number `sequence`: removes the segments that hold no others.
    pub(crate) fn remove_until(&self, sequence: u64, spare: &Spare, storage: &dyn Storage) -> io::Result<()> {
        self.folded.store(sequence, Ordering::Relaxed);
        self.remove_folded(spare, storage)
    }

    /// Removes the segments that the last checkpoint covers, oldest first.
    pub(crate) fn remove_folded(&self, spare: &Spare, storage: &dyn Storage) -> io::Result<()> {
        let _one = self.removing.lock();
        let sequence = self.folded.load(Ordering::Relaxed);
        let covered: Vec<u64> = {
            let closed = self.closed.lock();
            closed.iter().take_while(|old| old.last_sequence <= sequence).map(|old| old.number).collect()
        };
        for number in covered {
            match storage.remove(&spare.directory().join(segment::file_name(number))) {
                // An earlier try has failed in its sync.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
            // Oldest first also after a power loss: a gap in the middle would read as damage.
            storage.sync_directory(spare.directory())?;
            self.closed.lock().retain(|old| old.number != number);
        }
        Ok(())
    }
}

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
        };
        let (file, bytes) = self.spare.promote(spare, header, self.salt)?;
        self.facts.closed.lock().push(ClosedSegment {
            number: self.current.number,
            last_sequence: self.sequence,
            bytes: self.current.end - SEGMENT_HEADER_BYTES,
        });
        self.current = CurrentSegment {
            number: header.number,
            file,
            end: SEGMENT_HEADER_BYTES,
            bytes,
            zeroed: SEGMENT_HEADER_BYTES,
        };
        self.facts.current_bytes.store(0, Ordering::Relaxed);
        self.facts.current_room.store(bytes - SEGMENT_HEADER_BYTES, Ordering::Relaxed);
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
        self.facts.sequence.store(self.sequence, Ordering::Relaxed);
        self.facts.fsyncs.fetch_add(1, Ordering::Relaxed);
        self.facts.current_bytes.store(self.current.end - SEGMENT_HEADER_BYTES, Ordering::Relaxed);
        Ok(())
    }
}
