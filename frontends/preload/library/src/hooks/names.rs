//! Names: directories, links, renames.

use std::ffi::{c_char, c_int, c_uint};

use libc::{dev_t, mode_t, size_t, ssize_t};
use preload_frontend::wire::{Place, Request};

use super::{
    aliases, hooks,
    open::{masked, user},
};
use crate::{
    client,
    route::{on_path, on_paths},
    sys::{self, Result, syscall},
};

const AT: c_int = libc::AT_FDCWD;

/// A call whose reply is empty.
fn order(
    dirfd: c_int,
    path: *const c_char,
    request: impl Fn(Place<'_>) -> Result<Request<'_>>,
    kernel: impl FnOnce(c_int, *const c_char) -> Result<usize>,
) -> Result<c_int> {
    on_path(
        dirfd,
        path,
        |place| client::order(&request(place)?).map(|()| 0),
        |dirfd, path| kernel(dirfd, path).map(|done| done as c_int),
    )
}

fn rename_at(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    flags: c_uint,
) -> Result<c_int> {
    on_paths(
        from,
        to,
        |from, to| client::order(&Request::Rename { from, to, flags }).map(|()| 0),
        |from, to| {
            syscall!(SYS_renameat2, from.0, from.1, to.0, to.1, flags).map(|done| done as c_int)
        },
    )
}

fn link_at(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    flags: c_int,
) -> Result<c_int> {
    let follows = (flags & libc::AT_SYMLINK_FOLLOW != 0).into();
    on_paths(
        from,
        to,
        |from, to| client::order(&Request::Link { from, follows, to }).map(|()| 0),
        |from, to| {
            syscall!(SYS_linkat, from.0, from.1, to.0, to.1, flags).map(|done| done as c_int)
        },
    )
}

fn unlink_at(dirfd: c_int, path: *const c_char, flags: c_int) -> Result<c_int> {
    order(
        dirfd,
        path,
        |place| {
            Ok(if flags & libc::AT_REMOVEDIR == 0 {
                Request::Unlink { place }
            } else {
                Request::Rmdir { place }
            })
        },
        |dirfd, path| syscall!(SYS_unlinkat, dirfd, path, flags),
    )
}

fn readlink_at(
    dirfd: c_int,
    path: *const c_char,
    to: *mut c_char,
    count: size_t,
) -> Result<ssize_t> {
    on_path(
        dirfd,
        path,
        |place| {
            client::request(&Request::Readlink { place }, |reply| {
                let target = reply.rest();
                let len = target.len().min(count);
                // SAFETY: the caller's memory has `count` bytes.
                unsafe { std::ptr::copy_nonoverlapping(target.as_ptr(), to.cast(), len) };
                Some(len as ssize_t)
            })
        },
        |dirfd, path| syscall!(SYS_readlinkat, dirfd, path, to, count).map(|len| len as ssize_t),
    )
}

fn mkdir_at(dirfd: c_int, path: *const c_char, mode: mode_t) -> Result<c_int> {
    let (uid, gid) = user();
    order(
        dirfd,
        path,
        |place| {
            let mode = masked(mode);
            Ok(Request::Mkdir {
                place,
                mode,
                uid,
                gid,
            })
        },
        |dirfd, path| syscall!(SYS_mkdirat, dirfd, path, mode),
    )
}

fn symlink_at(target: *const c_char, dirfd: c_int, path: *const c_char) -> Result<c_int> {
    let (uid, gid) = user();
    order(
        dirfd,
        path,
        |place| {
            // SAFETY: the caller has the contract of `symlink`.
            let target = unsafe { sys::bytes(target) };
            Ok(Request::Symlink {
                target,
                place,
                uid,
                gid,
            })
        },
        |dirfd, path| syscall!(SYS_symlinkat, target, dirfd, path),
    )
}

/// FIFOs, sockets and devices are refused: the kernel could not open them.
fn mknod_at(dirfd: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> Result<c_int> {
    on_path(
        dirfd,
        path,
        |_| Err(libc::EPERM.into()),
        |dirfd, path| syscall!(SYS_mknodat, dirfd, path, mode, device).map(|done| done as c_int),
    )
}

hooks! {
    mkdir(path: *const c_char, mode: mode_t) -> c_int {
        mkdir_at(AT, path, mode)
    }
    mkdirat(dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        mkdir_at(dirfd, path, mode)
    }
    rmdir(path: *const c_char) -> c_int {
        unlink_at(AT, path, libc::AT_REMOVEDIR)
    }
    unlink(path: *const c_char) -> c_int {
        unlink_at(AT, path, 0)
    }
    unlinkat(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        unlink_at(dirfd, path, flags)
    }
    remove(path: *const c_char) -> c_int {
        match unlink_at(AT, path, 0) {
            Err(libc::EISDIR | libc::EPERM) => unlink_at(AT, path, libc::AT_REMOVEDIR),
            removed => removed,
        }
    }
    rename(from: *const c_char, to: *const c_char) -> c_int {
        rename_at((AT, from), (AT, to), 0)
    }
    renameat(from_dirfd: c_int, from: *const c_char, to_dirfd: c_int, to: *const c_char) -> c_int {
        rename_at((from_dirfd, from), (to_dirfd, to), 0)
    }
    renameat2(from_dirfd: c_int, from: *const c_char, to_dirfd: c_int, to: *const c_char,
        flags: c_uint) -> c_int {
        rename_at((from_dirfd, from), (to_dirfd, to), flags)
    }
    link(from: *const c_char, to: *const c_char) -> c_int {
        link_at((AT, from), (AT, to), 0)
    }
    linkat(from_dirfd: c_int, from: *const c_char, to_dirfd: c_int, to: *const c_char,
        flags: c_int) -> c_int {
        link_at((from_dirfd, from), (to_dirfd, to), flags)
    }
    symlink(target: *const c_char, path: *const c_char) -> c_int {
        symlink_at(target, AT, path)
    }
    symlinkat(target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int {
        symlink_at(target, dirfd, path)
    }
    readlink(path: *const c_char, to: *mut c_char, count: size_t) -> ssize_t {
        readlink_at(AT, path, to, count)
    }
    readlinkat(dirfd: c_int, path: *const c_char, to: *mut c_char, count: size_t) -> ssize_t {
        readlink_at(dirfd, path, to, count)
    }
    __readlink_chk(path: *const c_char, to: *mut c_char, count: size_t, _bytes: size_t) -> ssize_t {
        readlink_at(AT, path, to, count)
    }
    __readlinkat_chk(dirfd: c_int, path: *const c_char, to: *mut c_char, count: size_t,
        _bytes: size_t) -> ssize_t {
        readlink_at(dirfd, path, to, count)
    }
    mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        mknod_at(AT, path, mode, device)
    }
    mknodat(dirfd: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        mknod_at(dirfd, path, mode, device)
    }
    mkfifo(path: *const c_char, mode: mode_t) -> c_int {
        mknod_at(AT, path, mode | libc::S_IFIFO, 0)
    }
}

aliases! {
    __xmknod = xmknod(version: c_int, path: *const c_char, mode: mode_t, device: *mut dev_t)
        -> c_int;
}

/// `mknod`, as old programs call it.
unsafe extern "C" fn xmknod(
    _version: c_int,
    path: *const c_char,
    mode: mode_t,
    device: *mut dev_t,
) -> c_int {
    // SAFETY: the caller has the contract of `mknod`.
    unsafe { mknod(path, mode, *device) }
}
