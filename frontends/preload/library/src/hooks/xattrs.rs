//! Extended attributes.

use std::ffi::{c_char, c_int, c_void};

use libc::{size_t, ssize_t};
use preload_frontend::wire::{Place, Reader, Request};

use super::hooks;
use crate::{
    client::{self, Failure},
    route::on_path,
    sys::{self, Result, syscall},
    table,
};

/// Which file a call is about.
#[derive(Debug, Clone, Copy)]
enum Target {
    Path { path: *const c_char, follows: bool },
    Descriptor(c_int),
}

/// Does a call in the volume, or in the kernel.
fn on_target<T>(
    target: Target,
    volume: impl Fn(Place<'_>, u8) -> Result<T, Failure>,
    kernel: impl FnOnce(Target) -> Result<T>,
) -> Result<T> {
    match target {
        Target::Descriptor(fd) => match table::get(fd) {
            Some(open) => volume(Place::inode(open.ino()), 0).map_err(Failure::errno),
            None => kernel(target),
        },
        Target::Path { path, follows } => on_path(
            libc::AT_FDCWD,
            path,
            |place| volume(place, follows.into()),
            |_, path| kernel(Target::Path { path, follows }),
        ),
    }
}

/// Copies the rest of a reply to the caller. A caller may ask for its length alone.
fn copied(reply: &Reader<'_>, to: *mut c_void, count: size_t) -> Result<ssize_t> {
    let value = reply.rest();
    if count > 0 {
        if value.len() > count {
            return Err(libc::ERANGE);
        }
        // SAFETY: the caller's memory has `count` bytes.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to.cast(), value.len()) };
    }
    Ok(value.len() as ssize_t)
}

/// A name. Errors: `EOPNOTSUPP` for names that the volume does not keep, such as ACLs.
fn name<'a>(name: *const c_char) -> Result<&'a [u8]> {
    // SAFETY: the callers have the contract of a system call with this name.
    let name = unsafe { sys::bytes(name) };
    if name.starts_with(b"user.") || name.starts_with(b"trusted.") {
        Ok(name)
    } else {
        Err(libc::EOPNOTSUPP)
    }
}

fn get(target: Target, key: *const c_char, to: *mut c_void, count: size_t) -> Result<ssize_t> {
    let volume = |place: Place<'_>, follows| {
        let name = name(key)?;
        let request = Request::GetXattr {
            place,
            follows,
            name,
        };
        Ok(client::request(&request, |reply| {
            Some(copied(reply, to, count))
        })??)
    };
    on_target(target, volume, |target| {
        let read = match target {
            Target::Path {
                path,
                follows: true,
            } => syscall!(SYS_getxattr, path, key, to, count),
            Target::Path { path, .. } => syscall!(SYS_lgetxattr, path, key, to, count),
            Target::Descriptor(fd) => syscall!(SYS_fgetxattr, fd, key, to, count),
        };
        read.map(|len| len as ssize_t)
    })
}

fn set(
    target: Target,
    key: *const c_char,
    from: *const c_void,
    count: size_t,
    flags: c_int,
) -> Result<c_int> {
    let volume = |place: Place<'_>, follows| {
        if count > 65_536 {
            return Err(Failure::Errno(libc::E2BIG));
        }
        let value = if count == 0 {
            &[]
        } else {
            // SAFETY: the caller's memory has `count` bytes.
            unsafe { std::slice::from_raw_parts(from.cast::<u8>(), count) }
        };
        let name = name(key)?;
        let flags = flags.cast_unsigned();
        client::order(&Request::SetXattr {
            place,
            follows,
            name,
            value,
            flags,
        })?;
        Ok(0)
    };
    on_target(target, volume, |target| {
        let set = match target {
            Target::Path {
                path,
                follows: true,
            } => {
                syscall!(SYS_setxattr, path, key, from, count, flags)
            }
            Target::Path { path, .. } => syscall!(SYS_lsetxattr, path, key, from, count, flags),
            Target::Descriptor(fd) => syscall!(SYS_fsetxattr, fd, key, from, count, flags),
        };
        set.map(|done| done as c_int)
    })
}

fn list(target: Target, to: *mut c_char, count: size_t) -> Result<ssize_t> {
    let volume = |place: Place<'_>, follows| {
        let request = Request::ListXattr { place, follows };
        Ok(client::request(&request, |reply| {
            Some(copied(reply, to.cast(), count))
        })??)
    };
    on_target(target, volume, |target| {
        let listed = match target {
            Target::Path {
                path,
                follows: true,
            } => syscall!(SYS_listxattr, path, to, count),
            Target::Path { path, .. } => syscall!(SYS_llistxattr, path, to, count),
            Target::Descriptor(fd) => syscall!(SYS_flistxattr, fd, to, count),
        };
        listed.map(|len| len as ssize_t)
    })
}

fn remove(target: Target, key: *const c_char) -> Result<c_int> {
    let volume = |place: Place<'_>, follows| {
        let name = name(key)?;
        client::order(&Request::RemoveXattr {
            place,
            follows,
            name,
        })?;
        Ok(0)
    };
    on_target(target, volume, |target| {
        let removed = match target {
            Target::Path {
                path,
                follows: true,
            } => syscall!(SYS_removexattr, path, key),
            Target::Path { path, .. } => syscall!(SYS_lremovexattr, path, key),
            Target::Descriptor(fd) => syscall!(SYS_fremovexattr, fd, key),
        };
        removed.map(|done| done as c_int)
    })
}

const fn followed(path: *const c_char) -> Target {
    let follows = true;
    Target::Path { path, follows }
}

const fn link(path: *const c_char) -> Target {
    let follows = false;
    Target::Path { path, follows }
}

hooks! {
    getxattr(path: *const c_char, key: *const c_char, to: *mut c_void, count: size_t) -> ssize_t {
        get(followed(path), key, to, count)
    }
    lgetxattr(path: *const c_char, key: *const c_char, to: *mut c_void, count: size_t) -> ssize_t {
        get(link(path), key, to, count)
    }
    fgetxattr(fd: c_int, key: *const c_char, to: *mut c_void, count: size_t) -> ssize_t {
        get(Target::Descriptor(fd), key, to, count)
    }
    setxattr(path: *const c_char, key: *const c_char, from: *const c_void, count: size_t,
        flags: c_int) -> c_int {
        set(followed(path), key, from, count, flags)
    }
    lsetxattr(path: *const c_char, key: *const c_char, from: *const c_void, count: size_t,
        flags: c_int) -> c_int {
        set(link(path), key, from, count, flags)
    }
    fsetxattr(fd: c_int, key: *const c_char, from: *const c_void, count: size_t, flags: c_int)
        -> c_int {
        set(Target::Descriptor(fd), key, from, count, flags)
    }
    listxattr(path: *const c_char, to: *mut c_char, count: size_t) -> ssize_t {
        list(followed(path), to, count)
    }
    llistxattr(path: *const c_char, to: *mut c_char, count: size_t) -> ssize_t {
        list(link(path), to, count)
    }
    flistxattr(fd: c_int, to: *mut c_char, count: size_t) -> ssize_t {
        list(Target::Descriptor(fd), to, count)
    }
    removexattr(path: *const c_char, key: *const c_char) -> c_int {
        remove(followed(path), key)
    }
    lremovexattr(path: *const c_char, key: *const c_char) -> c_int {
        remove(link(path), key)
    }
    fremovexattr(fd: c_int, key: *const c_char) -> c_int {
        remove(Target::Descriptor(fd), key)
    }
}
