//! What others may know of the journal while its thread writes it: how long it is, and what of it no checkpoint holds.
//!
//! The lengths are read and changed together: whoever asked while a segment is turned would find its records in the segment that
//! ends and in the one that begins, or in neither, and room for another segment is given by what he finds.

use std::{
    io,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use crate::{directory::layout, storage::Storage};

/// A segment that is no longer written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClosedSegment {
    pub(crate) number: u64,
    pub(crate) last_sequence: u64,
    pub(crate) bytes: u64,
}

/// How far a checkpoint holds the journal.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Folded {
    /// The number of the last record that it holds.
    pub(crate) sequence: u64,
    /// What [`JournalUsage::written_bytes`] was behind that record.
    pub(crate) written_bytes: u64,
}

/// What others may know of the journal.
#[derive(Debug, Default)]
pub(crate) struct JournalUsage {
    inner: Mutex<Inner>,
    fsyncs: AtomicU64,
    sequence: AtomicU64,
    /// One removes segments at a time.
    removing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Segments that are no longer written, oldest first.
    closed: Vec<ClosedSegment>,
    /// Bytes of records in the current segment.
    current_bytes: u64,
    /// Bytes of records that the current segment has room for, those in it included.
    current_room: u64,
    /// Bytes of records written in this start, and of those before that its first checkpoint does not hold.
    written_bytes: u64,
    /// As far as a checkpoint of this start, or the one it began with, holds it.
    folded: Folded,
}

impl Inner {
    fn closed_bytes(&self) -> u64 {
        self.closed.iter().map(|segment| segment.bytes).sum()
    }

    fn bytes_to_fold(&self) -> u64 {
        self.written_bytes - self.folded.written_bytes
    }
}

impl JournalUsage {
    /// A start, or a return to the durable state, goes on behind `closed` segments, in one that has `current_bytes` of records and
    /// room for `current_room`; of all these `unfolded_bytes` are in no checkpoint.
    pub(crate) fn begin(
        &self,
        closed: Vec<ClosedSegment>,
        (current_bytes, current_room): (u64, u64),
        unfolded_bytes: u64,
    ) {
        let (written_bytes, folded) = (unfolded_bytes, Folded::default());
        *self.inner.lock() = Inner {
            closed,
            current_bytes,
            current_room,
            written_bytes,
            folded,
        };
    }

    /// The journal goes on in a segment with room for `room` bytes of records, behind the one with this number.
    pub(super) fn rotated(&self, number: u64, room: u64) {
        let last_sequence = self.sequence.load(Ordering::Relaxed);
        let mut inner = self.inner.lock();
        let bytes = std::mem::take(&mut inner.current_bytes);
        inner.closed.push(ClosedSegment {
            number,
            last_sequence,
            bytes,
        });
        inner.current_room = room;
    }

    /// Record number `sequence`, which is as long, is durable.
    pub(super) fn synced(&self, sequence: u64, bytes: u64) {
        self.sequence.store(sequence, Ordering::Relaxed);
        self.fsyncs.fetch_add(1, Ordering::Relaxed);
        let mut inner = self.inner.lock();
        inner.current_bytes += bytes;
        inner.written_bytes += bytes;
    }

    /// Bytes of records in all segments.
    pub(crate) fn bytes(&self) -> u64 {
        let inner = self.inner.lock();
        inner.closed_bytes() + inner.current_bytes
    }

    /// How many bytes of records no checkpoint holds.
    pub(super) fn bytes_to_fold(&self) -> u64 {
        self.inner.lock().bytes_to_fold()
    }

    /// The same once the current segment is full.
    pub(super) fn bytes_to_fold_when_full(&self) -> u64 {
        let inner = self.inner.lock();
        inner.bytes_to_fold() + (inner.current_room - inner.current_bytes)
    }

    /// How many bytes of records the current segment has room for, those in it included.
    pub(crate) fn current_room(&self) -> u64 {
        self.inner.lock().current_room
    }

    /// How many segments there are.
    pub(crate) fn segments(&self) -> usize {
        self.inner.lock().closed.len() + 1
    }

    /// Syncs of records.
    pub(crate) fn fsyncs(&self) -> u64 {
        self.fsyncs.load(Ordering::Relaxed)
    }

    /// A checkpoint of all that is written.
    pub(crate) fn whole(&self) -> Folded {
        let written_bytes = self.inner.lock().written_bytes;
        Folded {
            sequence: self.sequence.load(Ordering::Relaxed),
            written_bytes,
        }
    }

    /// A checkpoint has taken in the records so far: removes the segments that hold no others.
    pub(crate) fn remove_until(
        &self,
        folded: Folded,
        journal: &Path,
        storage: &dyn Storage,
    ) -> io::Result<()> {
        self.inner.lock().folded = folded;
        self.remove_folded(journal, storage)
    }

    /// Removes the segments that the last checkpoint covers, oldest first.
    pub(crate) fn remove_folded(&self, journal: &Path, storage: &dyn Storage) -> io::Result<()> {
        let _one = self.removing.lock();
        let covered: Vec<u64> = {
            let inner = self.inner.lock();
            let covered = inner
                .closed
                .iter()
                .take_while(|old| old.last_sequence <= inner.folded.sequence);
            covered.map(|old| old.number).collect()
        };
        for number in covered {
            match storage.remove(&journal.join(layout::segment_file(number))) {
                // An earlier try has failed in its sync.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
            // Oldest first also after a power loss: a gap in the middle would read as damage.
            storage.sync_directory(journal)?;
            self.inner.lock().closed.retain(|old| old.number != number);
        }
        Ok(())
    }
}
