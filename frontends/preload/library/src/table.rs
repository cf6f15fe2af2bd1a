//! Which descriptors are routed, and to which inodes.
//!
//! A fork copies the table with the rest of the memory. After exec it is read again from the
//! descriptors (`reserve`).

use std::{
    ffi::c_int,
    sync::atomic::{AtomicU64, Ordering},
};

/// Descriptors from here on are never routed: `open` fails with `EMFILE`.
pub(crate) const DESCRIPTORS: usize = 1 << 16;

const DIRECTORY: u64 = 1 << 63;
const APPENDS: u64 = 1 << 62;
const NO_READ: u64 = 1 << 61;
const NO_WRITE: u64 = 1 << 60;
const INO: u64 = NO_WRITE - 1;

static TABLE: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];

/// The open inode that a routed descriptor stands for, with its access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Open(u64);

impl Open {
    /// An inode that was opened with `flags`.
    pub(crate) fn new(ino: u64, is_directory: bool, flags: c_int) -> Self {
        let access = match flags & libc::O_ACCMODE {
            _ if flags & libc::O_PATH != 0 => NO_READ | NO_WRITE,
            libc::O_RDONLY => NO_WRITE,
            libc::O_WRONLY => NO_READ,
            _ => 0,
        };
        let directory = if is_directory { DIRECTORY } else { 0 };
        Self(ino & INO | directory | access).appending(flags & libc::O_APPEND != 0)
    }

    /// The same, with or without `O_APPEND`.
    pub(crate) fn appending(self, appends: bool) -> Self {
        Self(self.0 & !APPENDS | if appends { APPENDS } else { 0 })
    }

    pub(crate) fn ino(self) -> u64 {
        self.0 & INO
    }

    pub(crate) fn is_directory(self) -> bool {
        self.0 & DIRECTORY != 0
    }

    pub(crate) fn appends(self) -> bool {
        self.0 & APPENDS != 0
    }

    pub(crate) fn may_read(self) -> bool {
        self.0 & NO_READ == 0
    }

    pub(crate) fn may_write(self) -> bool {
        self.0 & NO_WRITE == 0
    }
}

/// The open inode that a descriptor stands for; `None` if it is not routed.
pub(crate) fn get(fd: c_int) -> Option<Open> {
    let entry = TABLE.get(usize::try_from(fd).ok()?)?;
    let open = entry.load(Ordering::Acquire);
    (open != 0).then_some(Open(open))
}

/// Routes a descriptor, or with `None` no longer. Errors: `EMFILE`.
pub(crate) fn set(fd: c_int, open: Option<Open>) -> Result<(), c_int> {
    let index = usize::try_from(fd).map_err(|_| libc::EBADF)?;
    match TABLE.get(index) {
        Some(entry) => entry.store(open.map_or(0, |open| open.0), Ordering::Release),
        None if open.is_some() => return Err(libc::EMFILE),
        None => {}
    }
    Ok(())
}

/// Takes a descriptor out of the table.
pub(crate) fn take(fd: c_int) -> Option<Open> {
    let open = get(fd)?;
    set(fd, None).ok()?;
    Some(open)
}
