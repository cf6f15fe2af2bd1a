//! Reading segments in parts, and what follows the last record of one.

use std::{io, ops::Range};

use super::{frame::HEADER_BYTES, segment::SegmentHeader};
use crate::storage::{PAGE_BYTES, StorageFile};

/// The least number of bytes read from a segment at once.
const WINDOW_BYTES: u64 = 1 << 20;

/// A part of a file in memory that moves as it is read, because segments are large.
pub(super) struct Window<'file> {
    file: &'file dyn StorageFile,
    until: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'file> Window<'file> {
    /// A window on the bytes of `file` before `until`.
    pub(super) fn new(file: &'file dyn StorageFile, until: u64) -> Self {
        Self {
            file,
            until,
            start: 0,
            bytes: Vec::new(),
        }
    }

    /// The `length` bytes at `at`, or as many as the file has.
    pub(super) fn at(&mut self, at: u64, length: u64) -> io::Result<&[u8]> {
        let end = at.saturating_add(length).min(self.until);
        if at < self.start || end > self.start + self.bytes.len() as u64 {
            let wanted = length.max(WINDOW_BYTES).min(self.until.saturating_sub(at));
            self.bytes.resize(wanted as usize, 0);
            self.file.read_at(&mut self.bytes, at)?;
            self.start = at;
        }
        let from = (at - self.start) as usize;
        Ok(&self.bytes[from..from + end.saturating_sub(at) as usize])
    }
}

/// What follows the last record of a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tail {
    /// Where the bytes of a torn record end, which is the start of the tail if there are none.
    pub(super) end: u64,
    /// Whether some part of the tail, as long as a frame's header, has what the search looks for.
    pub(super) has_match: bool,
}

/// Reads the bytes `rest` of a segment, and searches them with `is_match`.
///
/// Errors: those of the file.
pub(super) fn read(
    file: &dyn StorageFile,
    rest: Range<u64>,
    header: &SegmentHeader,
    is_match: impl Fn(&[u8]) -> bool,
) -> io::Result<Tail> {
    // In a reused part, only the rest of the page was zeroed behind the record.
    let page_end = rest.start.next_multiple_of(PAGE_BYTES);
    let mut tail = Tail {
        end: rest.start,
        has_match: false,
    };
    let mut window = Window::new(file, rest.end);
    let mut at = rest.start;
    while at < rest.end {
        // Parts overlap, because a header may start in one and end in the next.
        let bytes = window.at(at, WINDOW_BYTES + HEADER_BYTES as u64)?;
        let nonzero = last_nonzero(bytes);
        if nonzero > 0 {
            tail.has_match |= is_match(&bytes[..bytes.len().min(nonzero + HEADER_BYTES)]);
            let torn = if at + nonzero as u64 > header.reused {
                nonzero
            } else {
                let in_page = page_end.saturating_sub(at).min(bytes.len() as u64);
                last_nonzero(&bytes[..in_page as usize])
            };
            if torn > 0 {
                tail.end = at + torn as u64;
            }
        }
        at += WINDOW_BYTES;
    }
    Ok(tail)
}

/// Where the zeros at the end of `bytes` start. Compares whole blocks, because most of a segment is
/// zeros.
fn last_nonzero(bytes: &[u8]) -> usize {
    const BLOCK: usize = PAGE_BYTES as usize;
    let zeros = [0; BLOCK];
    let mut end = bytes.len();
    while end >= BLOCK && bytes[end - BLOCK..end] == zeros {
        end -= BLOCK;
    }
    let block = &bytes[end.saturating_sub(BLOCK)..end];
    end - block.iter().rev().take_while(|byte| **byte == 0).count()
}
