//! The memory that the server shares with its clients: buffers for requests, and the words on which
//! both sides wait.
//!
//! ```text
//! page 0   header words: magic, version, buffers, their bytes, doorbell, waiting, ticket, flags
//!          from byte 2,048: 256 position locks of 8 bytes
//! page 1   a record of 64 bytes for each buffer: state, owner, ticket, request and reply bytes
//! then     the buffers
//! ```
//!
//! A buffer goes through five states. A client takes it, writes a request, and posts it with the
//! next ticket. The server answers posted requests in the order of their tickets. The client reads
//! the reply and frees the buffer. A buffer whose owner has died is taken over.
//!
//! From FaaSFS, section 4.1. Unlike the paper, both sides wait with a futex instead of a semaphore.

// The only part outside of the library that needs `unsafe`. Memory that other processes change can
// be mapped in no other way, and a futex has no safe interface. All accesses are atomic, or copies
// of bytes whose values nothing relies on.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use crate::wire::{DATA_BYTES_MAX, OVERHEAD_BYTES, VERSION};

/// The first word of a region.
const MAGIC: u32 = u32::from_le_bytes(*b"lfpr");
/// The most buffers of a region.
pub const BUFFERS_MAX: u32 = 64;
const PAGE: usize = 4_096;
const RECORD_BYTES: usize = 64;
const LOCKS_AT: usize = 2_048;
/// The number of position locks.
pub const LOCKS: usize = 256;

/// The words of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Word {
    /// Which format the region has.
    Magic = 0,
    /// Its version.
    Version,
    /// The number of buffers.
    Buffers,
    /// The bytes of each.
    BufferBytes,
    /// Changes with every posted request; the server waits on it.
    Doorbell,
    /// 1 while the server waits, so that a client must wake it.
    IsWaiting,
    /// The ticket of the next request.
    Ticket,
    /// 1 while a processor is idle, so that both sides may spin.
    MaySpin,
    /// 1 once the server has ended.
    HasEnded,
    /// The number of requests that are done. Equal to [`Ticket`](Self::Ticket), which must be read
    /// after it, if none is under way.
    Done,
    /// The number of requests so far that may have changed the volume.
    Changes,
}

/// The words of a buffer's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Slot {
    /// A state of [`state`]; clients wait on it.
    State = 0,
    /// The process that has taken it.
    Owner,
    /// The place of its request in the order.
    Ticket,
    /// The bytes of the request.
    RequestBytes,
    /// The bytes of the reply.
    ReplyBytes,
}

/// The states of a buffer.
pub mod state {
    /// Any client may take it.
    pub const FREE: u32 = 0;
    /// A client writes a request, or reads the reply.
    pub const TAKEN: u32 = 1;
    /// The request is complete.
    pub const POSTED: u32 = 2;
    /// The reply is complete.
    pub const ANSWERED: u32 = 3;
    /// As `POSTED`, but the client does not wait: the server frees the buffer.
    pub const POSTED_ALONE: u32 = 4;
}

/// The number and the size of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// How many, at most [`BUFFERS_MAX`].
    pub count: u32,
    /// The bytes of each, a multiple of 4,096 and enough for one request.
    pub bytes: u32,
}

impl Default for Buffers {
    /// 10 of 2 MiB.
    fn default() -> Self {
        Self {
            count: 10,
            bytes: 2 << 20,
        }
    }
}

impl Buffers {
    /// The bytes of a region with these buffers; `None` if a bound is broken.
    pub fn region_bytes(self) -> Option<usize> {
        let is_valid = (1..=BUFFERS_MAX).contains(&self.count)
            && (self.bytes as usize).is_multiple_of(PAGE)
            && self.bytes as usize >= DATA_BYTES_MAX + OVERHEAD_BYTES;
        let bytes = (self.count as usize).checked_mul(self.bytes as usize)?;
        is_valid.then(|| 2 * PAGE + bytes)
    }
}

/// A mapped region. It is never unmapped: it lives as long as the process or the server.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    base: NonNull<u8>,
    buffers: Buffers,
}

// SAFETY: the memory stays mapped, and all accesses are atomic or copies of plain bytes.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps and initialises the region of a server. `file` must have the size of the region.
    pub fn create(file: BorrowedFd<'_>, buffers: Buffers) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let len = buffers.region_bytes().ok_or_else(invalid)?;
        let base = map(file, len, Access::ReadWrite)?;
        let region = Self { base, buffers };
        region.word(Word::Version).store(VERSION, Ordering::Relaxed);
        let count = region.word(Word::Buffers);
        count.store(buffers.count, Ordering::Relaxed);
        let bytes = region.word(Word::BufferBytes);
        bytes.store(buffers.bytes, Ordering::Relaxed);
        region.word(Word::Magic).store(MAGIC, Ordering::Release);
        Ok(region)
    }

    /// Maps the region of a server whose file has `len` bytes. Errors: `InvalidData` if it is none
    /// of this version. Allocates nothing.
    pub fn open(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        if len < 2 * PAGE {
            return Err(invalid());
        }
        let base = map(file, len, Access::ReadWrite)?;
        let mut buffers = Buffers { count: 0, bytes: 0 };
        let region = Self { base, buffers };
        let read = |word| region.word(word).load(Ordering::Acquire);
        buffers.count = read(Word::Buffers);
        buffers.bytes = read(Word::BufferBytes);
        let is_ours = read(Word::Magic) == MAGIC && read(Word::Version) == VERSION;
        if !is_ours || buffers.region_bytes() != Some(len) {
            return Err(invalid());
        }
        Ok(Self { base, buffers })
    }

    /// The buffers that it has.
    pub fn buffers(&self) -> Buffers {
        self.buffers
    }

    /// A word of the header.
    pub fn word(&self, word: Word) -> &AtomicU32 {
        self.atomic(word as usize * 4)
    }

    /// A word of buffer `index`. Panics if there is no such buffer.
    pub fn slot(&self, index: u32, slot: Slot) -> &AtomicU32 {
        assert!(index < BUFFERS_MAX, "there is no such buffer");
        self.atomic(PAGE + index as usize * RECORD_BYTES + slot as usize * 4)
    }

    /// Whether no request is posted or under way: then the cache has all writes so far.
    pub fn is_quiet(&self) -> bool {
        // In this order: requests that are done later than this are not counted, and all that were
        // posted before are.
        let done = self.word(Word::Done).load(Ordering::Acquire);
        self.word(Word::Ticket).load(Ordering::Acquire) == done
    }

    /// The lock of the positions of the files with this inode, among others.
    pub fn position_lock(&self, ino: u64) -> &AtomicU64 {
        let offset = LOCKS_AT + (ino as usize % LOCKS) * 8;
        // SAFETY: the first page is mapped, the offset is aligned and in it, and the memory is
        // accessed only atomically.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The start of buffer `index`. Panics if there is no such buffer.
    pub fn buffer(&self, index: u32) -> *mut u8 {
        assert!(index < self.buffers.count, "there is no such buffer");
        let offset = 2 * PAGE + index as usize * self.buffers.bytes as usize;
        // SAFETY: the region has that many buffers, so the offset is in the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// A copy of the first `len` bytes of a buffer; of all its bytes if it has fewer.
    pub fn copy_out(&self, index: u32, len: u32) -> Vec<u8> {
        let len = len.min(self.buffers.bytes) as usize;
        let mut bytes = Vec::with_capacity(len);
        // SAFETY: both ranges have `len` bytes, and any bytes are valid.
        unsafe {
            ptr::copy_nonoverlapping(self.buffer(index), bytes.as_mut_ptr(), len);
            bytes.set_len(len);
        }
        bytes
    }

    /// Copies `parts` to the start of a buffer, and returns their length. Panics if they do not fit.
    pub fn copy_in(&self, index: u32, parts: &[&[u8]]) -> u32 {
        let mut len = 0;
        for part in parts {
            assert!(len + part.len() <= self.buffers.bytes as usize, "too long");
            // SAFETY: the buffer has room for the part, and the source is not shared memory.
            unsafe {
                let to = self.buffer(index).add(len);
                ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
            }
            len += part.len();
        }
        len as u32
    }

    fn atomic(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the callers' offsets are multiples of 4 in the first two pages, which are mapped,
        // and the memory is accessed only atomically.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

/// Waits while `word` has `value`, at most for `timeout`. It may return early.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: the word and the time outlive the call, which changes neither.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            &raw const timeout,
        );
    }
}

/// Wakes all that wait on `word`.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word outlives the call, which does not change it.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Whether the process exists, as far as this process can see.
pub fn is_alive(pid: u32) -> bool {
    // SAFETY: signal 0 is sent to no process.
    let sent = unsafe { libc::syscall(libc::SYS_kill, libc::c_long::from(pid), 0) };
    sent == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// The access that a process has to a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// Maps the first `len` bytes of a file, shared.
pub(crate) fn map(file: BorrowedFd<'_>, len: usize, access: Access) -> io::Result<NonNull<u8>> {
    let protection = match access {
        Access::Read => libc::PROT_READ,
        Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
    };
    // SAFETY: a new mapping at an address that the kernel chooses.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsFd as _};

    use super::*;

    fn file(len: usize) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(len as u64).expect("its length");
        file
    }

    #[test]
    fn both_sides_see_one_region() {
        let buffers = Buffers {
            count: 2,
            bytes: 2 << 20,
        };
        let len = buffers.region_bytes().expect("valid");
        let file = file(len);
        let server = Region::create(file.as_fd(), buffers).expect("mapped");
        let client = Region::open(file.as_fd(), len).expect("mapped");
        assert_eq!(client.buffers(), buffers);
        assert_eq!(server.copy_in(1, &[b"hel", b"lo"]), 5);
        assert_eq!(client.copy_out(1, 5), b"hello");
        client.slot(1, Slot::State).store(7, Ordering::Release);
        assert_eq!(server.slot(1, Slot::State).load(Ordering::Acquire), 7);
        assert_eq!(server.slot(0, Slot::State).load(Ordering::Acquire), 0);
    }

    #[test]
    fn what_is_no_region_is_refused() {
        let len = Buffers::default().region_bytes().expect("valid");
        assert!(Region::open(file(len).as_fd(), len).is_err());
        assert!(Region::open(file(1).as_fd(), 1).is_err());
        for (count, bytes) in [(0, 2 << 20), (65, 2 << 20), (1, 4_096), (1, (2 << 20) + 1)] {
            assert_eq!(Buffers { count, bytes }.region_bytes(), None);
        }
    }

    #[test]
    fn a_dead_process_is_recognised() {
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(0x7fff_fff0));
    }
}
