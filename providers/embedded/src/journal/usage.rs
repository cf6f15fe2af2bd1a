//! The usage of the journal while its thread writes it: its length, and how much of it no
//! checkpoint covers.
//!
//! One lock guards all lengths. Without it, a reader during a rotation could count the records of a
//! segment twice or not at all, and the allocation of the next segment depends on that count.

use std::io;

use parking_lot::Mutex;

/// A segment with a successor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClosedSegment {
    pub(crate) number: u64,
    pub(crate) last_sequence: u64,
    /// The bytes of records in it.
    pub(crate) bytes: u64,
    /// Where the bytes of records in its file end, if this start wrote it without a failure. The file
    /// may then be used again.
    pub(crate) reusable: Option<u64>,
}

/// How far a checkpoint covers the journal.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Folded {
    /// The number of the last record that it covers.
    pub(crate) sequence: u64,
    /// The total of `written_bytes` after that record.
    pub(crate) written_bytes: u64,
}

/// The length of the journal and its coverage by checkpoints.
#[derive(Debug, Default)]
pub(crate) struct JournalUsage {
    inner: Mutex<Inner>,
    /// Serializes the removal of segments.
    removing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Segments with a successor, oldest first.
    closed: Vec<ClosedSegment>,
    /// Bytes of records in the current segment.
    current_bytes: u64,
    /// Bytes of records that fit the current segment, including those in it.
    current_room: u64,
    /// Bytes of records written by this start, plus earlier ones that its first checkpoint does not
    /// cover.
    written_bytes: u64,
    /// How far the last checkpoint covers the journal.
    folded: Folded,
    /// The number of the last durable record of this start.
    sequence: u64,
    fsyncs: u64,
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
    /// Begins anew after a start or a return to the durable state. The current segment follows the
    /// `closed` ones, holds `current_bytes` of records and has room for `current_room`. No
    /// checkpoint covers `unfolded_bytes` of all these.
    pub(crate) fn begin(
        &self,
        closed: Vec<ClosedSegment>,
        (current_bytes, current_room): (u64, u64),
        unfolded_bytes: u64,
    ) {
        let mut inner = self.inner.lock();
        let (sequence, fsyncs) = (inner.sequence, inner.fsyncs);
        *inner = Inner {
            closed,
            current_bytes,
            current_room,
            written_bytes: unfolded_bytes,
            folded: Folded::default(),
            sequence,
            fsyncs,
        };
    }

    /// Notes that the journal continues after segment `number`, whose file has bytes of records up to
    /// `written`, in one with room for `room` bytes of records.
    pub(super) fn rotated(&self, number: u64, written: u64, room: u64) {
        let mut inner = self.inner.lock();
        let last_sequence = inner.sequence;
        let bytes = std::mem::take(&mut inner.current_bytes);
        inner.closed.push(ClosedSegment {
            number,
            last_sequence,
            bytes,
            reusable: Some(written),
        });
        inner.current_room = room;
    }

    /// Notes that record `sequence`, of `bytes` bytes, is durable.
    pub(super) fn synced(&self, sequence: u64, bytes: u64) {
        let mut inner = self.inner.lock();
        inner.sequence = sequence;
        inner.fsyncs += 1;
        inner.current_bytes += bytes;
        inner.written_bytes += bytes;
    }

    /// Bytes of records in all segments.
    pub(crate) fn bytes(&self) -> u64 {
        let inner = self.inner.lock();
        inner.closed_bytes() + inner.current_bytes
    }

    /// Bytes of records that no checkpoint covers.
    pub(super) fn bytes_to_fold(&self) -> u64 {
        self.inner.lock().bytes_to_fold()
    }

    /// Bytes of records that no checkpoint covers once the current segment is full.
    pub(super) fn bytes_to_fold_when_full(&self) -> u64 {
        let inner = self.inner.lock();
        inner.bytes_to_fold() + (inner.current_room - inner.current_bytes)
    }

    /// Bytes of records that fit the current segment, including those in it.
    pub(crate) fn current_room(&self) -> u64 {
        self.inner.lock().current_room
    }

    /// The number of segments.
    pub(crate) fn segments(&self) -> usize {
        self.inner.lock().closed.len() + 1
    }

    /// The number of syncs of records.
    pub(crate) fn fsyncs(&self) -> u64 {
        self.inner.lock().fsyncs
    }

    /// The coverage of a checkpoint of everything written so far.
    pub(crate) fn whole(&self) -> Folded {
        let inner = self.inner.lock();
        Folded {
            sequence: inner.sequence,
            written_bytes: inner.written_bytes,
        }
    }

    /// Notes a checkpoint.
    pub(crate) fn note_folded(&self, folded: Folded) {
        self.inner.lock().folded = folded;
    }

    /// Lets `remove` take the segments that the last checkpoint covers out of the journal, oldest
    /// first. It must be durable when it returns: the oldest goes first even across a power loss,
    /// because a gap would look like damage.
    pub(crate) fn remove_folded(
        &self,
        remove: impl Fn(ClosedSegment) -> io::Result<()>,
    ) -> io::Result<()> {
        let _one = self.removing.lock();
        let covered: Vec<ClosedSegment> = {
            let inner = self.inner.lock();
            let covered = inner
                .closed
                .iter()
                .take_while(|old| old.last_sequence <= inner.folded.sequence);
            covered.copied().collect()
        };
        for segment in covered {
            remove(segment)?;
            let mut inner = self.inner.lock();
            inner.closed.retain(|old| old.number != segment.number);
        }
        Ok(())
    }
}
