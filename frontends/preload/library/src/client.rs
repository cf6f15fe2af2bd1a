//! Requests to the server, through the shared buffers.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use preload_frontend::{
    shared::{self, Region, Slot, Word, state},
    wire::{OUTSIDE, Place, Reader, Request, Status},
};

use crate::{
    connection,
    sys::{Errno, PathBuffer, errno, set_errno, syscall},
};

/// How many times a client looks for the reply before it waits, if a processor is idle: 16 us.
const SPINS: u32 = 400;
/// How many times a client looks for a free buffer before it pauses, for 50 us each time.
const BUSY_SPINS: u32 = 20;
/// After how many pauses it looks whether the server has ended: about 1 s.
const BUSY_PAUSES: u32 = 20_000;
/// How often a waiting client looks whether the server has ended.
const WAIT: Duration = Duration::from_secs(1);

/// The reason why the server did not do a call.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The call fails with this error.
    Errno(Errno),
    /// The path leads to this one, outside of the volume.
    Outside(PathBuffer),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl Failure {
    /// The error of a call that cannot leave the volume.
    pub(crate) fn errno(self) -> Errno {
        match self {
            Self::Errno(errno) => errno,
            Self::Outside(_) => libc::EXDEV,
        }
    }
}

/// Sends a request, and reads the payload of its reply. Errors: the server's, and `EIO` if it has
/// ended.
pub(crate) fn request<T>(
    request: &Request<'_>,
    read: impl FnOnce(&mut Reader<'_>) -> Option<T>,
) -> Result<T, Failure> {
    let saved = errno();
    let region = connection::region().ok_or(libc::EIO)?;
    let buffer = Buffer::take(region)?;
    let result = buffer.exchange(request, read);
    set_errno(saved);
    result
}

/// A request whose reply is empty.
pub(crate) fn order(request: &Request<'_>) -> Result<(), Failure> {
    self::request(request, |_| Some(()))
}

/// Posts a write without waiting for its reply. Errors: `ENAMETOOLONG` if it does not fit.
pub(crate) fn post(request: &Request<'_>) -> Result<(), Failure> {
    let saved = errno();
    let region = connection::region().ok_or(libc::EIO)?;
    let buffer = Buffer::take(region)?;
    let posted = buffer.post(request, state::POSTED_ALONE);
    if posted.is_ok() {
        // The server frees it.
        std::mem::forget(buffer);
    }
    set_errno(saved);
    posted
}

/// The attributes of the inode at a place. `follows` says whether a link at its end is followed.
pub(crate) fn status(place: Place<'_>, follows: bool) -> Result<Status, Failure> {
    if let Some(start) = connection::get() {
        let changes = start.region.word(Word::Changes).load(Ordering::Acquire);
        // A change that is under way may not be counted yet.
        if start.region.is_quiet()
            && let Some(found) = start.cache.status(changes, place, follows)
        {
            return found.map_err(Failure::Errno);
        }
    }
    let follows = follows.into();
    self::request(&Request::Stat { place, follows }, |reply| reply.get())
}

/// A buffer that this thread has taken. Dropping it frees it.
struct Buffer<'r> {
    region: &'r Region,
    index: u32,
}

impl<'r> Buffer<'r> {
    /// Takes a free buffer, or that of a dead process; waits for one if there is none. Errors: `EIO`
    /// if the server has ended.
    fn take(region: &'r Region) -> Result<Self, Errno> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let count = region.buffers().count;
        let first = LAST.load(Ordering::Relaxed);
        let pid = syscall!(SYS_getpid).unwrap_or_default() as u32;
        for pauses in 1_u32.. {
            if region.word(Word::HasEnded).load(Ordering::Relaxed) != 0 {
                break;
            }
            for index in (0..count).map(|index| (first + index) % count) {
                let word = region.slot(index, Slot::State);
                let is_taken = |state| {
                    let order = (Ordering::Acquire, Ordering::Relaxed);
                    let changed = word.compare_exchange(state, state::TAKEN, order.0, order.1);
                    changed.is_ok()
                };
                if is_taken(state::FREE) {
                    region
                        .slot(index, Slot::Owner)
                        .store(pid, Ordering::Relaxed);
                    LAST.store(index, Ordering::Relaxed);
                    return Ok(Self { region, index });
                }
            }
            if pauses < BUSY_SPINS {
                std::hint::spin_loop();
                continue;
            }
            for index in 0..count {
                free_if_dead(region, index);
            }
            if pauses.is_multiple_of(BUSY_PAUSES) && !connection::is_served() {
                break;
            }
            let pause = libc::timespec {
                tv_sec: 0,
                tv_nsec: 50_000,
            };
            let _ = syscall!(SYS_nanosleep, &raw const pause, 0);
        }
        Err(libc::EIO)
    }

    fn exchange<T>(
        &self,
        request: &Request<'_>,
        read: impl FnOnce(&mut Reader<'_>) -> Option<T>,
    ) -> Result<T, Failure> {
        self.post(request, state::POSTED)?;
        let (region, index) = (self.region, self.index);
        let bytes = region.buffers().bytes as usize;
        let word = |word| region.slot(index, word);
        self.wait(word(Slot::State))?;
        let len = word(Slot::ReplyBytes).load(Ordering::Relaxed) as usize;
        // SAFETY: the server has answered, so the buffer is this thread's again.
        let reply = unsafe { std::slice::from_raw_parts(region.buffer(index), len.min(bytes)) };
        let mut reader = Reader::new(reply);
        match reader.get::<i32>() {
            Some(0) => read(&mut reader).ok_or(Failure::Errno(libc::EPROTO)),
            Some(OUTSIDE) => {
                let mut path = PathBuffer::new();
                path.push(reader.rest())?;
                Err(Failure::Outside(path))
            }
            Some(errno) => Err(Failure::Errno(errno)),
            None => Err(Failure::Errno(libc::EPROTO)),
        }
    }

    /// Writes a request, and hands the buffer to the server.
    fn post(&self, request: &Request<'_>, posted: u32) -> Result<(), Failure> {
        let (region, index) = (self.region, self.index);
        let bytes = region.buffers().bytes as usize;
        // SAFETY: the state says that the buffer is this thread's until it is posted.
        let message = unsafe { std::slice::from_raw_parts_mut(region.buffer(index), bytes) };
        let len = request.encode(message).ok_or(libc::ENAMETOOLONG)?;
        let word = |word| region.slot(index, word);
        word(Slot::RequestBytes).store(len as u32, Ordering::Relaxed);
        let ticket = region.word(Word::Ticket).fetch_add(1, Ordering::AcqRel);
        word(Slot::Ticket).store(ticket, Ordering::Relaxed);
        word(Slot::State).store(posted, Ordering::SeqCst);
        let doorbell = region.word(Word::Doorbell);
        doorbell.fetch_add(1, Ordering::SeqCst);
        if region.word(Word::IsWaiting).load(Ordering::SeqCst) != 0 {
            shared::futex_wake(doorbell);
        }
        Ok(())
    }

    fn wait(&self, state: &AtomicU32) -> Result<(), Failure> {
        let is_answered = || state.load(Ordering::Acquire) == state::ANSWERED;
        if self.region.word(Word::MaySpin).load(Ordering::Relaxed) != 0 {
            for _ in 0..SPINS {
                if is_answered() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        while !is_answered() {
            shared::futex_wait(state, state::POSTED, WAIT);
            if !is_answered() && !connection::is_served() {
                return Err(Failure::Errno(libc::EIO));
            }
        }
        Ok(())
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let state = self.region.slot(self.index, Slot::State);
        state.store(state::FREE, Ordering::Release);
    }
}

/// Frees the buffer of a process that ended while it held it. A posted one waits for its reply.
fn free_if_dead(region: &Region, index: u32) {
    let word = region.slot(index, Slot::State);
    let seen = word.load(Ordering::Acquire);
    let owner = region.slot(index, Slot::Owner).load(Ordering::Relaxed);
    let is_held = matches!(seen, state::TAKEN | state::ANSWERED);
    if is_held && !shared::is_alive(owner) {
        // Another owner may have it since: then the owner is another one too.
        let is_same = region.slot(index, Slot::Owner).load(Ordering::Relaxed) == owner;
        if is_same {
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = word.compare_exchange(seen, state::FREE, order.0, order.1);
        }
    }
}

/// Holds the position of an inode's descriptions while a call reads and moves it.
#[derive(Debug)]
pub(crate) struct PositionLock {
    /// The word, if this thread has set it: a signal handler may meet its own thread's lock.
    word: Option<&'static std::sync::atomic::AtomicU64>,
}

impl PositionLock {
    pub(crate) fn take(ino: u64) -> Self {
        let Some(region) = connection::region() else {
            return Self { word: None };
        };
        let word = region.position_lock(ino);
        let pid = syscall!(SYS_getpid).unwrap_or_default() as u64;
        let tid = syscall!(SYS_gettid).unwrap_or_default() as u64;
        let mine = pid << 32 | tid;
        let mut tries = 0_u32;
        loop {
            let order = (Ordering::Acquire, Ordering::Relaxed);
            let Err(holder) = word.compare_exchange_weak(0, mine, order.0, order.1) else {
                return Self { word: Some(word) };
            };
            if holder == mine {
                return Self { word: None };
            }
            tries += 1;
            if tries < 100 {
                std::hint::spin_loop();
                continue;
            }
            if holder != 0 && tries.is_multiple_of(16) && !shared::is_alive((holder >> 32) as u32) {
                let _ = word.compare_exchange(holder, 0, order.0, order.1);
            }
            let pause = libc::timespec {
                tv_sec: 0,
                tv_nsec: 20_000,
            };
            let _ = syscall!(SYS_nanosleep, &raw const pause, 0);
        }
    }
}

impl Drop for PositionLock {
    fn drop(&mut self) {
        if let Some(word) = self.word {
            word.store(0, Ordering::Release);
        }
    }
}
