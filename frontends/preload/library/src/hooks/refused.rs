//! Calls that the kernel would do inside itself. Refused as by a file system without them, so that
//! programs fall back to reads and writes.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use libc::{off_t, size_t, ssize_t};

use super::{aliases, hooks, pass};
use crate::{
    hooks::data,
    sys::{self, Result, syscall},
    table::{self, Open},
};

/// A private mapping of a routed file: a copy of its bytes. Writes of others are not seen in it.
fn map_copy(
    open: Open,
    fd: c_int,
    address: *mut c_void,
    count: size_t,
    protection: c_int,
    flags: c_int,
    offset: off_t,
) -> Result<*mut c_void> {
    if flags & libc::MAP_TYPE != libc::MAP_PRIVATE {
        // No mapping is shared with the volume.
        return Err(libc::ENODEV);
    }
    if !open.may_read() {
        return Err(libc::EACCES);
    }
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let kind = flags | libc::MAP_ANONYMOUS;
    let base = syscall!(SYS_mmap, address, count, writable, kind, sys::NO_FILE, 0)?;
    let mut done = 0;
    while done < count {
        let to = (base + done) as *mut c_void;
        // SAFETY: the mapping has this many bytes left.
        let read = unsafe { data::pread(fd, to, count - done, offset + done as off_t) };
        match read {
            0 => break,
            1.. => done += read as usize,
            _ => {
                let _ = syscall!(SYS_munmap, base, count);
                return Err(libc::EIO);
            }
        }
    }
    if protection != writable {
        syscall!(SYS_mprotect, base, count, protection)?;
    }
    Ok(base as *mut c_void)
}

hooks! {
    mmap(address: *mut c_void, count: size_t, protection: c_int, flags: c_int, fd: c_int,
        offset: off_t) -> *mut c_void {
        let routed = if flags & libc::MAP_ANONYMOUS == 0 { table::get(fd) } else { None };
        let mapped = match routed {
            Some(open) => map_copy(open, fd, address, count, protection, flags, offset),
            None => syscall!(SYS_mmap, address, count, protection, flags, fd, offset)
                .map(|base| base as *mut c_void),
        };
        Ok(mapped.unwrap_or_else(|errno| {
            crate::sys::set_errno(errno);
            libc::MAP_FAILED
        }))
    }
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        if table::get(to).or(table::get(from)).is_some() {
            return Err(libc::EINVAL);
        }
        pass!(sendfile(to => c_int, from => c_int, offset => *mut off_t, count => size_t)
            -> ssize_t)
    }
    copy_file_range(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t,
        count: size_t, flags: c_uint) -> ssize_t {
        if table::get(to).or(table::get(from)).is_some() {
            return Err(libc::EXDEV);
        }
        pass!(copy_file_range(from => c_int, from_offset => *mut off_t, to => c_int,
            to_offset => *mut off_t, count => size_t, flags => c_uint) -> ssize_t)
    }
    splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t,
        count: size_t, flags: c_uint) -> ssize_t {
        if table::get(to).or(table::get(from)).is_some() {
            return Err(libc::EINVAL);
        }
        pass!(splice(from => c_int, from_offset => *mut off_t, to => c_int,
            to_offset => *mut off_t, count => size_t, flags => c_uint) -> ssize_t)
    }
    ioctl(fd: c_int, request: c_ulong, argument: c_long) -> c_int {
        /// `FICLONE` and `FICLONERANGE`: they would clone the reserved file.
        const CLONES: [c_ulong; 2] = [0x4004_9409, 0x4020_940d];
        if CLONES.contains(&request) && table::get(fd).is_some() {
            return Err(libc::EOPNOTSUPP);
        }
        pass!(ioctl(fd => c_int, request => c_ulong, argument => c_long) -> c_int)
    }
}

aliases! {
    mmap64 = mmap(address: *mut c_void, count: size_t, protection: c_int, flags: c_int, fd: c_int,
        offset: off_t) -> *mut c_void;
    sendfile64 = sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
}
