//! Reads, writes and positions.
//!
//! The kernel's description of the reserved file has the position. A call that reads and moves it
//! holds the inode's position lock, as the kernel does for a description.

use std::ffi::{c_int, c_void};

use libc::{iovec, off_t, size_t, ssize_t};
use preload_frontend::wire::{DATA_BYTES_MAX, Place, Request, Status};

use super::{aliases, hooks, pass};
use crate::{
    client::{self, Failure, PositionLock},
    connection,
    sys::{Result, syscall},
    table::{self, Open},
};

/// The position after an append: the end of the file, which is asked for only if a call needs it.
/// It is also the highest position: 2 TiB, since the folder's file system has a limit.
const AT_END: i64 = 1 << 41;
/// The most parts of one call.
const IOV_MAX: c_int = 1_024;
/// The most bytes of one call, as Linux has it.
const COUNT_MAX: usize = 0x7fff_f000;

/// The position of a description.
pub(crate) fn position(fd: c_int, open: Open) -> Result<i64> {
    let position = syscall!(SYS_lseek, fd, 0, libc::SEEK_CUR)? as i64;
    if position < AT_END {
        return Ok(position);
    }
    let size = size(open.ino())?;
    set_position(fd, size)?;
    Ok(size)
}

fn set_position(fd: c_int, position: i64) -> Result<i64> {
    if position > AT_END {
        return Err(libc::EINVAL);
    }
    Ok(syscall!(SYS_lseek, fd, position, libc::SEEK_SET)? as i64)
}

fn size(ino: u64) -> Result<i64> {
    Ok(status(ino)?.size.cast_signed())
}

/// The attributes of an inode.
pub(crate) fn status(ino: u64) -> Result<Status> {
    client::status(Place::inode(ino), false).map_err(Failure::errno)
}

/// Reads `count` bytes to `to`; fewer at the end of the file.
fn read_at(open: Open, to: *mut c_void, count: usize, offset: i64) -> Result<usize> {
    if !open.may_read() {
        return Err(libc::EBADF);
    }
    if open.is_directory() {
        return Err(libc::EISDIR);
    }
    let offset = u64::try_from(offset).map_err(|_| libc::EINVAL)?;
    let count = count.min(COUNT_MAX);
    // A write that is under way may not be in the cache yet.
    let is_cached = connection::get().is_some_and(|start| {
        // SAFETY: the caller's memory has `count` bytes.
        let read = || unsafe { start.cache.read(open.ino(), offset, to.cast(), count) };
        count > 0 && start.region.is_quiet() && read()
    });
    if is_cached {
        return Ok(count);
    }
    let mut done = 0;
    while done < count {
        let part = (count - done).min(DATA_BYTES_MAX);
        let request = Request::Read {
            ino: open.ino(),
            offset: offset + done as u64,
            count: part as u32,
        };
        let read = client::request(&request, |reply| {
            let data = reply.rest();
            let len = data.len().min(part);
            // SAFETY: the caller's memory has `count` bytes, and the kernel would write them too.
            unsafe {
                let to = to.cast::<u8>().add(done);
                std::ptr::copy_nonoverlapping(data.as_ptr(), to, len);
            }
            Some(len)
        });
        match read {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(_) if done > 0 => break,
            Err(failure) => return Err(failure.errno()),
        }
    }
    Ok(done)
}

/// Writes `count` bytes at `offset`, or with `None` at the end of the file.
fn write_at(open: Open, from: *const c_void, count: usize, offset: Option<i64>) -> Result<usize> {
    if !open.may_write() {
        return Err(libc::EBADF);
    }
    let offset = offset
        .map(u64::try_from)
        .transpose()
        .map_err(|_| libc::EINVAL)?;
    let count = count.min(COUNT_MAX);
    let mut done = 0;
    while done < count {
        let part = (count - done).min(DATA_BYTES_MAX);
        // SAFETY: the caller's memory has `count` bytes.
        let data = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(done), part) };
        let ino = open.ino();
        let request = match offset {
            Some(offset) => Request::Write {
                ino,
                offset: offset + done as u64,
                data,
            },
            None => Request::Append { ino, data },
        };
        let is_posted = part == count && offset.is_some_and(|offset| may_post(ino, offset, part));
        let written = if is_posted {
            client::post(&request)
        } else {
            client::order(&request)
        };
        match written {
            Ok(()) => done += part,
            Err(_) if done > 0 => break,
            Err(failure) => return Err(failure.errno()),
        }
    }
    Ok(done)
}

/// Whether a write need not wait: the transaction has these bytes, so nothing is left that could
/// fail but the limit of its size.
fn may_post(ino: u64, offset: u64, count: usize) -> bool {
    connection::get().is_some_and(|start| start.cache.has(ino, offset, count))
}

/// `read` on a routed descriptor.
pub(crate) fn read_next(fd: c_int, open: Open, to: *mut c_void, count: usize) -> Result<usize> {
    let _lock = PositionLock::take(open.ino());
    let position = position(fd, open)?;
    let read = read_at(open, to, count, position)?;
    set_position(fd, position + read as i64)?;
    Ok(read)
}

/// `write` on a routed descriptor.
pub(crate) fn write_next(
    fd: c_int,
    open: Open,
    from: *const c_void,
    count: usize,
) -> Result<usize> {
    let _lock = PositionLock::take(open.ino());
    if open.appends() {
        let written = write_at(open, from, count, None)?;
        set_position(fd, AT_END)?;
        return Ok(written);
    }
    let position = position(fd, open)?;
    let written = write_at(open, from, count, Some(position))?;
    set_position(fd, position + written as i64)?;
    Ok(written)
}

/// Runs `one` on each part, until one is short.
///
/// # Safety
/// `parts` points to `count` parts.
unsafe fn each_part(
    parts: *const iovec,
    count: c_int,
    mut one: impl FnMut(&iovec, usize) -> Result<usize>,
) -> Result<usize> {
    if !(0..=IOV_MAX).contains(&count) {
        return Err(libc::EINVAL);
    }
    let mut done = 0;
    for index in 0..count as usize {
        // SAFETY: as the caller promises.
        let part = unsafe { &*parts.add(index) };
        match one(part, done) {
            Ok(len) => {
                done += len;
                if len < part.iov_len {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// `lseek` on a routed descriptor.
pub(crate) fn seek(fd: c_int, open: Open, offset: i64, whence: c_int) -> Result<i64> {
    let _lock = PositionLock::take(open.ino());
    let base = match whence {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => position(fd, open)?,
        libc::SEEK_END => size(open.ino())?,
        libc::SEEK_DATA | libc::SEEK_HOLE => {
            let request = Request::Seek {
                ino: open.ino(),
                offset: u64::try_from(offset).map_err(|_| libc::ENXIO)?,
                whence: whence.cast_unsigned(),
            };
            let found = client::request(&request, |reply| reply.get::<u64>());
            let found = found.map_err(Failure::errno)?;
            return set_position(fd, found.cast_signed());
        }
        _ => return Err(libc::EINVAL),
    };
    let position = base.checked_add(offset).ok_or(libc::EOVERFLOW)?;
    if position < 0 {
        return Err(libc::EINVAL);
    }
    set_position(fd, position)
}

hooks! {
    read(fd: c_int, to: *mut c_void, count: size_t) -> ssize_t {
        match table::get(fd) {
            Some(open) => read_next(fd, open, to, count).map(|read| read as ssize_t),
            None => pass!(read(fd => c_int, to => *mut c_void, count => size_t) -> ssize_t),
        }
    }
    write(fd: c_int, from: *const c_void, count: size_t) -> ssize_t {
        match table::get(fd) {
            Some(open) => write_next(fd, open, from, count).map(|written| written as ssize_t),
            None => pass!(write(fd => c_int, from => *const c_void, count => size_t) -> ssize_t),
        }
    }
    pread(fd: c_int, to: *mut c_void, count: size_t, offset: off_t) -> ssize_t {
        match table::get(fd) {
            Some(open) => read_at(open, to, count, offset).map(|read| read as ssize_t),
            None => pass!(pread(fd => c_int, to => *mut c_void, count => size_t, offset => off_t)
                -> ssize_t),
        }
    }
    pwrite(fd: c_int, from: *const c_void, count: size_t, offset: off_t) -> ssize_t {
        match table::get(fd) {
            Some(open) => {
                // As Linux has it, a descriptor that appends ignores the offset.
                let offset = (!open.appends()).then_some(offset);
                write_at(open, from, count, offset).map(|written| written as ssize_t)
            }
            None => pass!(pwrite(fd => c_int, from => *const c_void, count => size_t,
                offset => off_t) -> ssize_t),
        }
    }
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        let Some(open) = table::get(fd) else {
            pass!(readv(fd => c_int, parts => *const iovec, count => c_int) -> ssize_t)
        };
        let read = |part: &iovec, _| read_next(fd, open, part.iov_base, part.iov_len);
        // SAFETY: the caller has the contract of this function.
        unsafe { each_part(parts, count, read) }.map(|read| read as ssize_t)
    }
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        let Some(open) = table::get(fd) else {
            pass!(writev(fd => c_int, parts => *const iovec, count => c_int) -> ssize_t)
        };
        let write = |part: &iovec, _| write_next(fd, open, part.iov_base, part.iov_len);
        // SAFETY: the caller has the contract of this function.
        unsafe { each_part(parts, count, write) }.map(|written| written as ssize_t)
    }
    preadv(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        let Some(open) = table::get(fd) else {
            pass!(preadv(fd => c_int, parts => *const iovec, count => c_int, offset => off_t)
                -> ssize_t)
        };
        let read = |part: &iovec, done| {
            read_at(open, part.iov_base, part.iov_len, offset + done as i64)
        };
        // SAFETY: the caller has the contract of this function.
        unsafe { each_part(parts, count, read) }.map(|read| read as ssize_t)
    }
    pwritev(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        let Some(open) = table::get(fd) else {
            pass!(pwritev(fd => c_int, parts => *const iovec, count => c_int, offset => off_t)
                -> ssize_t)
        };
        let write = |part: &iovec, done| {
            let offset = (!open.appends()).then_some(offset + done as i64);
            write_at(open, part.iov_base, part.iov_len, offset)
        };
        // SAFETY: the caller has the contract of this function.
        unsafe { each_part(parts, count, write) }.map(|written| written as ssize_t)
    }
    lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
        match table::get(fd) {
            Some(open) => seek(fd, open, offset, whence),
            None => pass!(lseek(fd => c_int, offset => off_t, whence => c_int) -> off_t),
        }
    }
}

aliases! {
    pread64 = pread(fd: c_int, to: *mut c_void, count: size_t, offset: off_t) -> ssize_t;
    pwrite64 = pwrite(fd: c_int, from: *const c_void, count: size_t, offset: off_t) -> ssize_t;
    preadv64 = preadv(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    pwritev64 = pwritev(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    lseek64 = lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
}

/// `read` with a check of the buffer's size, by programs that are built with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    count: size_t,
    _bytes: size_t,
) -> ssize_t {
    // SAFETY: the caller has the contract of `read`.
    unsafe { read(fd, to, count) }
}

/// `pread` with a check of the buffer's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __pread_chk(
    fd: c_int,
    to: *mut c_void,
    count: size_t,
    offset: off_t,
    _bytes: size_t,
) -> ssize_t {
    // SAFETY: the caller has the contract of `pread`.
    unsafe { pread(fd, to, count, offset) }
}

/// `pread64` with a check of the buffer's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __pread64_chk(
    fd: c_int,
    to: *mut c_void,
    count: size_t,
    offset: off_t,
    bytes: size_t,
) -> ssize_t {
    // SAFETY: the caller has the contract of `pread64`.
    unsafe { __pread_chk(fd, to, count, offset, bytes) }
}
