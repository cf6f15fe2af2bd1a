//! `open` and its relatives.

use std::{
    ffi::{c_char, c_int, c_uint},
    sync::atomic::{AtomicU32, Ordering},
};

use preload_frontend::wire::Request;

use super::{aliases, hooks};
use crate::{
    client::{self, Failure},
    reserve,
    route::on_path,
    sys::{self, Errno, Result, next, syscall},
};

const AT: c_int = libc::AT_FDCWD;

static UMASK: AtomicU32 = AtomicU32::new(u32::MAX);

/// A mode without the bits of the process's mask.
pub(crate) fn masked(mode: c_uint) -> u32 {
    let mut mask = UMASK.load(Ordering::Relaxed);
    if mask == u32::MAX {
        // The only way to read it is to set it.
        mask = syscall!(SYS_umask, 0o22).unwrap_or(0o22) as u32;
        let _ = syscall!(SYS_umask, mask);
        UMASK.store(mask, Ordering::Relaxed);
    }
    mode & !mask
}

/// The user and the group of the inodes that the process creates.
pub(crate) fn user() -> (u32, u32) {
    let uid = syscall!(SYS_geteuid).unwrap_or_default() as u32;
    let gid = syscall!(SYS_getegid).unwrap_or_default() as u32;
    (uid, gid)
}

/// Opens a path in the volume or in the kernel.
pub(crate) fn open_at(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> Result<c_int> {
    on_path(
        dirfd,
        path,
        |place| {
            if flags & libc::O_TMPFILE == libc::O_TMPFILE {
                return Err(Failure::Errno(libc::EOPNOTSUPP));
            }
            let creates = flags & libc::O_CREAT != 0;
            let (mode, (uid, gid)) = if creates {
                (masked(mode), user())
            } else {
                (0, (0, 0))
            };
            let request = Request::Open {
                place,
                flags: flags.cast_unsigned(),
                mode,
                uid,
                gid,
            };
            let opened = client::request(&request, |reply| {
                Some((reply.get::<u64>()?, reply.get::<u32>()?))
            });
            let (ino, kind) = opened?;
            let is_directory = kind == libc::S_IFDIR;
            Ok(reserve::open(ino, is_directory, flags)?)
        },
        |dirfd, path| match next!(openat: fn(c_int, *const c_char, c_int, c_uint) -> c_int) {
            // SAFETY: the caller has the contract of this function.
            Some(openat) => failed(unsafe { openat(dirfd, path, flags, mode) }),
            None => Err(libc::ENOSYS),
        },
    )
}

/// A result of the C library, whose `errno` stays as it is.
pub(crate) fn failed(result: c_int) -> Result<c_int> {
    if result < 0 {
        Err(sys::errno() as Errno)
    } else {
        Ok(result)
    }
}

hooks! {
    openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        open_at(dirfd, path, flags, mode)
    }
    open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        open_at(AT, path, flags, mode)
    }
    creat(path: *const c_char, mode: c_uint) -> c_int {
        open_at(AT, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
    }
    __open_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(AT, path, flags, 0)
    }
    __openat_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(dirfd, path, flags, 0)
    }
    umask(mask: c_uint) -> c_int {
        UMASK.store(mask & 0o777, Ordering::Relaxed);
        syscall!(SYS_umask, mask).map(|old| old as c_int)
    }
}

aliases! {
    open64 = open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    openat64 = openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    creat64 = creat(path: *const c_char, mode: c_uint) -> c_int;
    __open64_2 = __open_2(path: *const c_char, flags: c_int) -> c_int;
    __openat64_2 = __openat_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int;
}
