//! `fopen` and its relatives: streams on routed descriptors (see `streams`).

use std::ffi::{c_char, c_int};

use libc::FILE;

use super::{aliases, descriptors, hooks, open::open_at, pass, streams};
use crate::{
    route,
    sys::{self, Result},
    table,
};

/// The flags of a mode like `r+b`.
fn flags(mode: *const c_char) -> Result<c_int> {
    // SAFETY: the callers have the contract of `fopen`.
    let mode = unsafe { sys::bytes(mode) };
    let mode = mode.split(|byte| *byte == b',').next().unwrap_or_default();
    let has = |byte| mode.contains(&byte);
    let access = |one| if has(b'+') { libc::O_RDWR } else { one };
    let base = match mode.first() {
        Some(b'r') => access(libc::O_RDONLY),
        Some(b'w') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_APPEND,
        _ => return Err(libc::EINVAL),
    };
    let exclusive = if has(b'x') { libc::O_EXCL } else { 0 };
    let on_exec = if has(b'e') { libc::O_CLOEXEC } else { 0 };
    Ok(base | exclusive | on_exec)
}

hooks! {
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        if !route::is_inside(libc::AT_FDCWD, path) {
            pass!(fopen(path => *const c_char, mode => *const c_char) -> *mut FILE);
        }
        let fd = open_at(libc::AT_FDCWD, path, flags(mode)?, 0o666)?;
        // SAFETY: the caller has the contract of this function.
        unsafe { streams::stream(fd, mode) }.inspect_err(|_| {
            // SAFETY: a descriptor of this function's own.
            unsafe { descriptors::close(fd) };
        })
    }
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if table::get(fd).is_none() {
            pass!(fdopen(fd => c_int, mode => *const c_char) -> *mut FILE);
        }
        // SAFETY: the caller has the contract of this function.
        unsafe { streams::stream(fd, mode) }
    }
    freopen(path: *const c_char, mode: *const c_char, old: *mut FILE) -> *mut FILE {
        if path.is_null() || !route::is_inside(libc::AT_FDCWD, path) {
            pass!(freopen(path => *const c_char, mode => *const c_char, old => *mut FILE)
                -> *mut FILE);
        }
        let fd = open_at(libc::AT_FDCWD, path, flags(mode)?, 0o666)?;
        // SAFETY: the caller has the contract of this function. Its stream takes the new
        // descriptor's place only if it is a standard one, which programs name by the variable.
        unsafe {
            libc::fflush(old);
            let place = libc::fileno(old);
            if descriptors::dup2(fd, place) < 0 {
                return Err(sys::errno());
            }
            descriptors::close(fd);
            match streams::standard(place) {
                Some(standard) => Ok(standard),
                None => streams::stream(place, mode),
            }
        }
    }
}

aliases! {
    fopen64 = fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    freopen64 = freopen(path: *const c_char, mode: *const c_char, old: *mut FILE) -> *mut FILE;
}
