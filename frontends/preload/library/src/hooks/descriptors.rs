//! Descriptors as such: `close`, `dup`, `fcntl`, and calls that change the length of a file.

use std::{
    ffi::{c_int, c_long, c_uint},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use libc::off_t;
use preload_frontend::wire::{Changes, Place, Request, set};

use super::{aliases, data, hooks, open::failed, pass, streams};
use crate::{
    client::{self, Failure},
    sys::{Result, next, syscall},
    table::{self, DESCRIPTORS},
};

/// Gives `new` the route of `old`, which it is now a copy of.
fn copied(old: c_int, new: c_int) -> Result<c_int> {
    table::set(new, table::get(old)).inspect_err(|_| {
        let _ = syscall!(SYS_close, new);
    })?;
    streams::note_route(new);
    Ok(new)
}

fn duplicate(old: c_int, new: c_int, flags: c_int) -> Result<c_int> {
    let replaced = table::take(new);
    let result = match next!(dup3: fn(c_int, c_int, c_int) -> c_int) {
        // SAFETY: any numbers are allowed.
        Some(dup3) => failed(unsafe { dup3(old, new, flags) }),
        None => Err(libc::ENOSYS),
    };
    match result {
        Ok(new) => copied(old, new),
        Err(errno) => {
            table::set(new, replaced)?;
            Err(errno)
        }
    }
}

/// Ends the routes of a range of descriptors, which are closed.
fn forget(first: c_uint, last: c_uint) {
    for fd in first..=last.min(DESCRIPTORS as c_uint - 1) {
        if table::take(fd.cast_signed()).is_some() {
            let _ = syscall!(SYS_close, fd);
        }
    }
}

/// `fcntl` on a routed descriptor.
fn control(fd: c_int, open: table::Open, command: c_int, argument: c_long) -> Result<c_int> {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let new = syscall!(SYS_fcntl, fd, command, argument)? as c_int;
            copied(fd, new)
        }
        libc::F_SETFL => {
            let result = syscall!(SYS_fcntl, fd, command, argument)?;
            let appends = argument as c_int & libc::O_APPEND != 0;
            table::set(fd, Some(open.appending(appends)))?;
            Ok(result as c_int)
        }
        libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW
        | libc::F_OFD_GETLK => lock(fd, command, argument as *mut libc::flock),
        _ => syscall!(SYS_fcntl, fd, command, argument).map(|result| result as c_int),
    }
}

/// Locks bytes of the reserved file, whose length and positions are not those of the routed one.
fn lock(fd: c_int, command: c_int, given: *mut libc::flock) -> Result<c_int> {
    if given.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller has the contract of `fcntl` with a lock.
    let given = unsafe { &mut *given };
    let mut lock = *given;
    let open = table::get(fd).ok_or(libc::EBADF)?;
    let base = match c_int::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => data::position(fd, open)?,
        libc::SEEK_END => data::status(open.ino())?.size.cast_signed(),
        _ => return Err(libc::EINVAL),
    };
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = base.checked_add(lock.l_start).ok_or(libc::EOVERFLOW)?;
    // Through the C library, since it waits where a thread can be cancelled.
    let result = match next!(fcntl: fn(c_int, c_int, *mut libc::flock) -> c_int) {
        // SAFETY: the lock outlives the call.
        Some(fcntl) => failed(unsafe { fcntl(fd, command, &raw mut lock) })?,
        None => return Err(libc::ENOSYS),
    };
    let is_test = matches!(command, libc::F_GETLK | libc::F_OFD_GETLK);
    let is_unlocked = c_int::from(lock.l_type) == c_int::from(libc::F_UNLCK);
    if is_test == is_unlocked {
        note_lock(open.ino());
    }
    if is_test && is_unlocked {
        given.l_type = lock.l_type;
    } else if is_test {
        *given = lock;
    }
    Ok(result)
}

/// Tells the server of a lock that is granted, or was found free, so that the commit checks it.
fn note_lock(ino: u64) {
    /// The inode that this program told it of last: one lock of a transaction is enough.
    static LAST: AtomicU64 = AtomicU64::new(0);
    if LAST.swap(ino, Ordering::Relaxed) != ino {
        // It fails only if the server has ended, and then nothing is committed.
        let _ = client::order(&Request::Locked { ino });
    }
}

/// Sets the length of a routed file.
fn truncate(open: table::Open, size: off_t) -> Result<c_int> {
    if !open.may_write() || open.is_directory() {
        return Err(libc::EINVAL);
    }
    let changes = Changes {
        set: set::SIZE,
        size: u64::try_from(size).map_err(|_| libc::EINVAL)?,
        ..Changes::default()
    };
    let request = Request::Change {
        place: Place::inode(open.ino()),
        follows: 0,
        changes,
    };
    client::order(&request).map_err(Failure::errno)?;
    Ok(0)
}

fn allocate(open: table::Open, mode: c_int, offset: off_t, count: off_t) -> Result<c_int> {
    if !open.may_write() {
        return Err(libc::EBADF);
    }
    let request = Request::Allocate {
        ino: open.ino(),
        mode: mode.cast_unsigned(),
        offset: u64::try_from(offset).map_err(|_| libc::EINVAL)?,
        count: u64::try_from(count).map_err(|_| libc::EINVAL)?,
    };
    client::order(&request).map_err(Failure::errno)?;
    Ok(0)
}

fn sync() -> Result<c_int> {
    client::order(&Request::Sync {}).map_err(Failure::errno)?;
    Ok(0)
}

hooks! {
    close(fd: c_int) -> c_int {
        table::take(fd);
        pass!(close(fd => c_int) -> c_int)
    }
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        const CLOSE_ON_EXEC: c_int = 4;
        if flags & CLOSE_ON_EXEC == 0 {
            forget(first, last);
        }
        syscall!(SYS_close_range, first, last, flags).map(|result| result as c_int)
    }
    dup(old: c_int) -> c_int {
        match table::get(old) {
            Some(_) => copied(old, syscall!(SYS_dup, old)? as c_int),
            None => pass!(dup(old => c_int) -> c_int),
        }
    }
    dup2(old: c_int, new: c_int) -> c_int {
        if old == new {
            // It only checks the descriptor, which dup3 refuses.
            return syscall!(SYS_dup2, old, new).map(|new| new as c_int);
        }
        duplicate(old, new, 0)
    }
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        duplicate(old, new, flags)
    }
    fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
        match table::get(fd) {
            Some(open) => control(fd, open, command, argument),
            None => pass!(fcntl(fd => c_int, command => c_int, argument => c_long) -> c_int),
        }
    }
    lockf(fd: c_int, command: c_int, len: off_t) -> c_int {
        if table::get(fd).is_none() {
            pass!(lockf(fd => c_int, command => c_int, len => off_t) -> c_int);
        }
        let (kind, how) = match command {
            libc::F_ULOCK => (libc::F_UNLCK, libc::F_SETLK),
            libc::F_LOCK => (libc::F_WRLCK, libc::F_SETLKW),
            libc::F_TLOCK => (libc::F_WRLCK, libc::F_SETLK),
            libc::F_TEST => (libc::F_RDLCK, libc::F_GETLK),
            _ => return Err(libc::EINVAL),
        };
        let mut range = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_CUR as libc::c_short,
            l_start: 0,
            l_len: len,
            l_pid: 0,
        };
        lock(fd, how, &raw mut range)?;
        let is_held = command == libc::F_TEST && range.l_type != libc::F_UNLCK as libc::c_short;
        if is_held { Err(libc::EACCES) } else { Ok(0) }
    }
    flock(fd: c_int, operation: c_int) -> c_int {
        let Some(open) = table::get(fd) else {
            pass!(flock(fd => c_int, operation => c_int) -> c_int)
        };
        let locked = syscall!(SYS_flock, fd, operation)?;
        if operation & libc::LOCK_UN == 0 {
            note_lock(open.ino());
        }
        Ok(locked as c_int)
    }
    fsync(fd: c_int) -> c_int {
        match table::get(fd) {
            Some(_) => sync(),
            None => pass!(fsync(fd => c_int) -> c_int),
        }
    }
    fdatasync(fd: c_int) -> c_int {
        match table::get(fd) {
            Some(_) => sync(),
            None => pass!(fdatasync(fd => c_int) -> c_int),
        }
    }
    syncfs(fd: c_int) -> c_int {
        match table::get(fd) {
            Some(_) => sync(),
            None => pass!(syncfs(fd => c_int) -> c_int),
        }
    }
    ftruncate(fd: c_int, size: off_t) -> c_int {
        match table::get(fd) {
            Some(open) => truncate(open, size),
            None => pass!(ftruncate(fd => c_int, size => off_t) -> c_int),
        }
    }
    fallocate(fd: c_int, mode: c_int, offset: off_t, count: off_t) -> c_int {
        match table::get(fd) {
            Some(open) => allocate(open, mode, offset, count),
            None => pass!(fallocate(fd => c_int, mode => c_int, offset => off_t, count => off_t)
                -> c_int),
        }
    }
    posix_fallocate(fd: c_int, offset: off_t, count: off_t) -> c_int {
        match table::get(fd) {
            // It returns the error.
            Some(open) => Ok(allocate(open, 0, offset, count).err().unwrap_or(0)),
            None => pass!(posix_fallocate(fd => c_int, offset => off_t, count => off_t) -> c_int),
        }
    }
}

aliases! {
    fcntl64 = fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    lockf64 = lockf(fd: c_int, command: c_int, len: off_t) -> c_int;
    ftruncate64 = ftruncate(fd: c_int, size: off_t) -> c_int;
    fallocate64 = fallocate(fd: c_int, mode: c_int, offset: off_t, count: off_t) -> c_int;
    posix_fallocate64 = posix_fallocate(fd: c_int, offset: off_t, count: off_t) -> c_int;
}

/// `closefrom`: it returns nothing.
#[unsafe(no_mangle)]
pub extern "C" fn closefrom(first: c_int) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let first = first.max(0).cast_unsigned();
    forget(first, c_uint::MAX);
    let closed = syscall!(SYS_close_range, first, c_uint::MAX, 0);
    if closed.is_err() && !TOLD.swap(true, Ordering::Relaxed) {
        crate::sys::complain(&[b"the kernel has no close_range, so closefrom closes nothing"]);
    }
}
