//! Bytes of files that clients read without a request, in memory that only the server can write.
//!
//! A line has the bytes of one page of a file, as far as the transaction has read or written them:
//! its extent. So a read that finds its bytes here depends on nothing that the transaction has not
//! recorded. A read at the end of a file is never answered here, since it depends on the length.
//!
//! Replies to `Stat` are kept too, until the next request that may change anything: each as bytes of a
//! file that no inode has, in the page of the number of changes so far. The question is a part of
//! the bytes, so that two questions are never confused.
//!
//! Each line has a sequence number, which is odd while the server changes the line. A reader copies
//! the bytes, and takes them only if the number was even and is the same afterwards.
//!
//! From FaaSFS, section 4.1.

// As in `shared`: the memory is mapped, and its bytes may change while they are copied. A copy that
// may be torn is dropped.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::BorrowedFd,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering, fence},
};

use crate::{
    shared::{self, Access},
    wire::{Field as _, Place, Reader, Status, Writer},
};

/// The number of lines.
const LINES: usize = 4_096;
/// The bytes of a line.
const PAGE: u64 = 4_096;
const HEADER_BYTES: usize = 64;
/// The mark of the files for replies.
const REPLIES: u64 = 1 << 63;
/// The longest question: paths over 491 bytes are always requests.
const QUESTION_BYTES: usize = 512;
/// A status of the reply, and a [`Status`].
const REPLY_BYTES: usize = 4 + 72;
/// The bytes of the memory.
pub const CACHE_BYTES: usize = LINES * (HEADER_BYTES + PAGE as usize);

/// The words of a line's header.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
enum Word {
    Sequence = 0,
    /// The inode; 0 if the line is empty.
    Ino,
    /// The number of the page in the file.
    Page,
    /// The first byte of the extent, and in the upper half the end of it.
    Extent,
}

/// The mapped memory. It is never unmapped.
#[derive(Debug)]
pub struct Cache {
    base: NonNull<u8>,
}

// SAFETY: the memory stays mapped. All words are atomic, and copies that may be torn are dropped.
unsafe impl Send for Cache {}
// SAFETY: as above.
unsafe impl Sync for Cache {}

impl Cache {
    /// Maps the server's memory, whose file has [`CACHE_BYTES`].
    pub fn create(file: BorrowedFd<'_>) -> io::Result<Self> {
        let base = shared::map(file, CACHE_BYTES, Access::ReadWrite)?;
        Ok(Self { base })
    }

    /// Maps the memory of a client. Allocates nothing.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<Self> {
        let base = shared::map(file, CACHE_BYTES, Access::Read)?;
        Ok(Self { base })
    }

    /// Copies bytes of a file to `to`. Returns whether all of them are here.
    ///
    /// # Safety
    /// `to` has room for `count` bytes.
    pub unsafe fn read(&self, ino: u64, offset: u64, to: *mut u8, count: usize) -> bool {
        let mut done = 0;
        while done < count {
            let Some(at) = offset.checked_add(done as u64) else {
                return false;
            };
            let from = at % PAGE;
            let part = ((PAGE - from) as usize).min(count - done);
            // SAFETY: the caller's memory has `count` bytes.
            let to = unsafe { to.add(done) };
            // SAFETY: the part ends before them.
            if !unsafe { self.read_line(ino, at / PAGE, from, to, part) } {
                return false;
            }
            done += part;
        }
        true
    }

    /// Whether the bytes are here, all in one page.
    pub fn has(&self, ino: u64, offset: u64, count: usize) -> bool {
        let from = offset % PAGE;
        let is_in_page = from + count as u64 <= PAGE;
        is_in_page && self.sequence_of(ino, offset / PAGE, from, count).is_some()
    }

    /// # Safety
    /// `to` has room for `count` bytes, and `from + count` is at most a page.
    unsafe fn read_line(&self, ino: u64, page: u64, from: u64, to: *mut u8, count: usize) -> bool {
        let Some(before) = self.sequence_of(ino, page, from, count) else {
            return false;
        };
        let line = line_of(ino, page);
        // SAFETY: the range is in the line, and the caller's memory has room.
        unsafe { ptr::copy_nonoverlapping(self.bytes(line).add(from as usize), to, count) };
        fence(Ordering::Acquire);
        self.word(line, Word::Sequence).load(Ordering::Relaxed) == before
    }

    /// The sequence number of the line that has these bytes, if there is one.
    fn sequence_of(&self, ino: u64, page: u64, from: u64, count: usize) -> Option<u64> {
        let line = line_of(ino, page);
        let word = |word| self.word(line, word).load(Ordering::Relaxed);
        let sequence = self.word(line, Word::Sequence).load(Ordering::Acquire);
        let extent = word(Word::Extent);
        let is_here = sequence.is_multiple_of(2)
            && word(Word::Ino) == ino
            && word(Word::Page) == page
            && extent & u64::from(u32::MAX) <= from
            && from + count as u64 <= extent >> 32;
        is_here.then_some(sequence)
    }

    /// The reply to `Stat` after this number of changes, if it is here: attributes, or an errno.
    pub fn status(
        &self,
        changes: u32,
        place: Place<'_>,
        follows: bool,
    ) -> Option<Result<Status, i32>> {
        let mut question = [0; QUESTION_BYTES];
        let (file, len) = asked(place, follows, &mut question)?;
        let mut kept = [0; QUESTION_BYTES + REPLY_BYTES];
        let count = len + REPLY_BYTES;
        // SAFETY: the array has that many bytes.
        let is_here = unsafe { self.read(file, page(changes), kept.as_mut_ptr(), count) };
        let mut reply = Reader::new(kept[..count].strip_prefix(&question[..len])?);
        match reply.get().filter(|_| is_here)? {
            0 => reply.get().map(Ok),
            errno => Some(Err(errno)),
        }
    }

    /// Notes a reply to `Stat`. Only the server calls it.
    pub fn note_status(
        &self,
        changes: u32,
        place: Place<'_>,
        follows: bool,
        errno: i32,
        status: &[u8],
    ) {
        let mut bytes = [0; QUESTION_BYTES + REPLY_BYTES];
        if let Some((file, len)) = asked(place, follows, &mut bytes[..QUESTION_BYTES]) {
            let count = len + REPLY_BYTES;
            let reply = &mut bytes[len..count];
            reply[..4].copy_from_slice(&errno.to_le_bytes());
            reply[4..4 + status.len()].copy_from_slice(status);
            self.note(file, page(changes), &bytes[..count]);
        }
    }

    /// Notes bytes that the transaction has read or written. Only the server calls it, one thread.
    pub fn note(&self, ino: u64, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let Some(at) = offset.checked_add(done as u64) else {
                return;
            };
            let from = at % PAGE;
            let part = ((PAGE - from) as usize).min(data.len() - done);
            self.note_line(ino, at / PAGE, from, &data[done..done + part]);
            done += part;
        }
    }

    fn note_line(&self, ino: u64, page: u64, from: u64, data: &[u8]) {
        let line = line_of(ino, page);
        let word = |word| self.word(line, word).load(Ordering::Relaxed);
        let extent = word(Word::Extent);
        let (old_from, old_until) = (extent & u64::from(u32::MAX), extent >> 32);
        let until = from + data.len() as u64;
        let is_same = word(Word::Ino) == ino && word(Word::Page) == page;
        let meets = is_same && from <= old_until && old_from <= until;
        let (first, last) = if meets {
            (from.min(old_from), until.max(old_until))
        } else {
            (from, until)
        };
        self.change(line, || {
            let set = |word, value| self.word(line, word).store(value, Ordering::Relaxed);
            set(Word::Ino, ino);
            set(Word::Page, page);
            set(Word::Extent, last << 32 | first);
            // SAFETY: the range is in the line, which this process has mapped for writing.
            unsafe {
                let to = self.bytes(line).add(from as usize);
                ptr::copy_nonoverlapping(data.as_ptr(), to, data.len());
            }
        });
    }

    /// Forgets all bytes of a file. Only the server calls it.
    pub fn forget(&self, ino: u64) {
        for line in 0..LINES {
            let word = self.word(line, Word::Ino);
            if word.load(Ordering::Relaxed) == ino {
                self.change(line, || word.store(0, Ordering::Relaxed));
            }
        }
    }

    fn change(&self, line: usize, change: impl FnOnce()) {
        let sequence = self.word(line, Word::Sequence);
        let before = sequence.load(Ordering::Relaxed);
        sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        sequence.store(before + 2, Ordering::Release);
    }

    fn word(&self, line: usize, word: Word) -> &AtomicU64 {
        let offset = line * HEADER_BYTES + word as usize * 8;
        // SAFETY: the headers are mapped, the offset is aligned, and words are accessed only
        // atomically.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    fn bytes(&self, line: usize) -> *mut u8 {
        let offset = LINES * HEADER_BYTES + line * PAGE as usize;
        // SAFETY: the lines are mapped.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

fn page(changes: u32) -> u64 {
    u64::from(changes) * PAGE
}

/// Writes a question of `stat`. Returns the file of its reply, and its length.
fn asked(place: Place<'_>, follows: bool, to: &mut [u8]) -> Option<(u64, usize)> {
    let mut writer = Writer::new(to);
    u8::from(follows).put(&mut writer)?;
    place.put(&mut writer)?;
    let len = writer.len();
    // FNV-1a: a collision only costs a request.
    let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = to[..len].iter().fold(0xcbf2_9ce4_8422_2325, hash);
    Some((hash | REPLIES, len))
}

/// The only line that may have a page.
fn line_of(ino: u64, page: u64) -> usize {
    (ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).wrapping_add(page) as usize % LINES
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    fn cache() -> (Cache, Cache) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(CACHE_BYTES as u64).expect("its length");
        let server = Cache::create(file.as_fd()).expect("mapped");
        let client = Cache::open(file.as_fd()).expect("mapped");
        (server, client)
    }

    fn read(cache: &Cache, ino: u64, offset: u64, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        // SAFETY: the memory has that many bytes.
        let is_here = unsafe { cache.read(ino, offset, bytes.as_mut_ptr(), count) };
        is_here.then_some(bytes)
    }

    #[test]
    fn only_noted_bytes_are_read() {
        let (server, client) = cache();
        assert_eq!(read(&client, 7, 0, 1), None);
        server.note(7, 4_090, b"0123456789");
        assert_eq!(
            read(&client, 7, 4_090, 10).as_deref(),
            Some(&b"0123456789"[..])
        );
        assert_eq!(read(&client, 7, 4_095, 3).as_deref(), Some(&b"567"[..]));
        assert_eq!(read(&client, 7, 4_089, 2), None);
        assert_eq!(read(&client, 7, 4_095, 6), None);
        assert_eq!(read(&client, 8, 4_090, 1), None);
        // Bytes that meet an extent lengthen it, others replace it.
        server.note(7, 4_100, b"ab");
        assert_eq!(read(&client, 7, 4_095, 7).as_deref(), Some(&b"56789ab"[..]));
        server.note(7, 5_000, b"c");
        assert_eq!(read(&client, 7, 5_000, 1).as_deref(), Some(&b"c"[..]));
        assert_eq!(read(&client, 7, 4_100, 1), None);
        server.forget(7);
        assert_eq!(read(&client, 7, 5_000, 1), None);
        assert_eq!(read(&client, 7, 4_090, 1), None);
    }

    #[test]
    fn a_line_that_changes_is_not_read() {
        let (server, client) = cache();
        server.note(7, 0, b"one");
        let line = line_of(7, 0);
        server.change(line, || assert_eq!(read(&client, 7, 0, 3), None));
        assert_eq!(read(&client, 7, 0, 3).as_deref(), Some(&b"one"[..]));
    }
}
