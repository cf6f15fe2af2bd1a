//! Writing whole pages around the system's page cache.
//!
//! The journal is written once and read only by a recovery, so the page cache gains nothing from
//! it. A write around it costs no copy and no pages to clean, and its sync is a third shorter. The
//! file system takes such writes in whole pages from aligned memory. Each write therefore begins
//! with the bytes that its first page holds already, and ends with zeros up to the end of a page.
//!
//! Invariants
//! - The bytes of a page that belong to durable records are written again as they are. A sector is
//!   written whole or not at all, so a torn write leaves them.
//! - The file system took one such write when the segment was opened. Otherwise the segment is
//!   written through the page cache.

use std::{path::Path, sync::Arc};

use super::segment::PAGE_BYTES;
use crate::storage::{Storage, StorageFile};

const PAGE: usize = PAGE_BYTES as usize;

/// A segment open for writes of whole pages.
#[derive(Debug)]
pub(crate) struct DirectFile {
    file: Arc<dyn StorageFile>,
    /// What the page of the segment's end holds before that end.
    page: Vec<u8>,
}

impl DirectFile {
    /// Opens the segment at `path`, of `bytes`, whose records end at `end`. `file` reads it. None if
    /// the file system does not take such writes.
    pub(crate) fn open(
        storage: &dyn Storage,
        path: &Path,
        file: &dyn StorageFile,
        (end, bytes): (u64, u64),
    ) -> Option<Self> {
        if !bytes.is_multiple_of(PAGE_BYTES) {
            return None;
        }
        let opened = storage.open_direct(path)?;
        let start = end - end % PAGE_BYTES;
        let mut page = vec![0; (end - start) as usize];
        file.read_at(&mut page, start).ok()?;
        let mut probe = FrameBuffer::default();
        probe.begin(&page, 0);
        if start < bytes {
            probe.pad(PAGE - page.len());
            opened.write_at(probe.pages(), start).ok()?;
        }
        Some(Self { file: opened, page })
    }

    /// What precedes the next frame in its page.
    pub(super) fn page(&self) -> &[u8] {
        &self.page
    }

    /// Writes the frame in `buffer` at `at`, and zeros behind it up to `until` and the end of a page.
    pub(super) fn write(
        &self,
        buffer: &mut FrameBuffer,
        at: u64,
        until: u64,
    ) -> std::io::Result<()> {
        let end = at + buffer.frame().len() as u64;
        buffer.pad((until.max(end).next_multiple_of(PAGE_BYTES) - end) as usize);
        self.file
            .write_at(buffer.pages(), at - self.page.len() as u64)
    }

    /// Makes the last written frame durable. The segment ends behind it.
    pub(super) fn sync(&mut self, buffer: &FrameBuffer) -> std::io::Result<()> {
        self.file.sync_data()?;
        let ended = &buffer.bytes[buffer.page..buffer.end];
        self.page.clear();
        self.page
            .extend_from_slice(&ended[ended.len() - ended.len() % PAGE..]);
        Ok(())
    }
}

/// Memory for one frame, at the place that it has in its page.
#[derive(Debug, Default)]
pub(crate) struct FrameBuffer {
    bytes: Vec<u8>,
    /// Where the first page starts: the first aligned byte.
    page: usize,
    frame: usize,
    end: usize,
}

impl FrameBuffer {
    /// The memory behind `before`, to which a frame of at most `bound` bytes is appended.
    pub(super) fn begin(&mut self, before: &[u8], bound: usize) -> &mut Vec<u8> {
        self.bytes.clear();
        // The frame then moves nowhere while it grows.
        self.bytes.reserve(before.len() + bound + 3 * PAGE);
        self.page = self.bytes.as_ptr().align_offset(PAGE).min(PAGE);
        self.bytes.resize(self.page, 0);
        self.bytes.extend_from_slice(before);
        self.frame = self.bytes.len();
        self.end = self.frame;
        &mut self.bytes
    }

    /// Notes that the frame is complete.
    pub(super) fn finish(&mut self) {
        self.end = self.bytes.len();
    }

    /// The frame.
    pub(crate) fn frame(&self) -> &[u8] {
        &self.bytes[self.frame..self.end]
    }

    /// The frame with what was padded.
    pub(super) fn padded(&self) -> &[u8] {
        &self.bytes[self.frame..]
    }

    /// Puts `zeros` behind the frame.
    pub(super) fn pad(&mut self, zeros: usize) {
        self.bytes.resize(self.end + zeros, 0);
        self.align();
    }

    /// The pages with the frame and what was padded.
    fn pages(&self) -> &[u8] {
        &self.bytes[self.page..]
    }

    /// Moves the pages to aligned memory, if they had to move while they grew.
    fn align(&mut self) {
        if self.bytes[self.page..].as_ptr().align_offset(PAGE) == 0 {
            return;
        }
        let (frame, end) = (self.frame - self.page, self.end - self.page);
        let pages = self.bytes.split_off(self.page);
        let mut moved: Vec<u8> = Vec::with_capacity(pages.len() + PAGE);
        let page = moved.as_ptr().align_offset(PAGE).min(PAGE);
        moved.resize(page, 0);
        moved.extend_from_slice(&pages);
        *self = Self {
            bytes: moved,
            page,
            frame: page + frame,
            end: page + end,
        };
    }

    /// Gives memory beyond `bytes` back.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        self.bytes.shrink_to(bytes);
    }
}

#[cfg(test)]
mod tests;
