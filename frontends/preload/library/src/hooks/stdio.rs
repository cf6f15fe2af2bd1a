//! Streams of the C library on routed descriptors.
//!
//! The C library's streams call the kernel without the functions that we replace. So a stream on a
//! routed descriptor is a cookie stream, whose functions do the same as `read` and `write`. The
//! standard output becomes one as soon as its descriptor is routed, and stays one.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use libc::{FILE, off64_t, size_t, ssize_t};

use super::{aliases, data, descriptors, hooks, open::open_at, pass};
use crate::{
    route,
    sys::{self, Result, set_errno},
    table,
};

/// Where a stream has its descriptor; `fileno` reads it. Part of the C library's binary interface.
const FILENO_AT: usize = 112;

#[repr(C)]
struct CookieFunctions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: CookieFunctions,
    ) -> *mut FILE;
}

unsafe extern "C" fn cookie_read(cookie: *mut c_void, to: *mut c_char, count: size_t) -> ssize_t {
    // SAFETY: the C library's buffer has that many bytes.
    unsafe { data::read(cookie as c_int, to.cast(), count) }
}

unsafe extern "C" fn cookie_write(
    cookie: *mut c_void,
    from: *const c_char,
    count: size_t,
) -> ssize_t {
    // SAFETY: the C library's buffer has that many bytes. A cookie stream reports errors by 0.
    unsafe { data::write(cookie as c_int, from.cast(), count) }.max(0)
}

unsafe extern "C" fn cookie_seek(cookie: *mut c_void, to: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: the C library gives a valid place.
    unsafe {
        let position = data::lseek(cookie as c_int, *to, whence);
        if position < 0 {
            return -1;
        }
        to.write(position);
    }
    0
}

unsafe extern "C" fn cookie_close(cookie: *mut c_void) -> c_int {
    // SAFETY: the stream owned the descriptor.
    unsafe { descriptors::close(cookie as c_int) }
}

/// A stream that owns a descriptor.
unsafe fn stream(fd: c_int, mode: *const c_char) -> Result<*mut FILE> {
    let functions = CookieFunctions {
        read: cookie_read,
        write: cookie_write,
        seek: cookie_seek,
        close: cookie_close,
    };
    // SAFETY: the cookie is a number, and the mode a string. The stream has its descriptor at this
    // place.
    unsafe {
        let stream = fopencookie(fd as usize as *mut c_void, mode, functions);
        if stream.is_null() {
            return Err(sys::errno());
        }
        stream.cast::<u8>().add(FILENO_AT).cast::<c_int>().write(fd);
        Ok(stream)
    }
}

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

/// Makes the standard streams of routed descriptors cookie streams, as the program starts.
pub(crate) fn route_standard_streams() {
    (0..3)
        .filter(|fd| table::get(*fd).is_some())
        .for_each(replace);
}

/// Does the same for a descriptor that has just become routed.
pub(crate) fn note_route(fd: c_int) {
    if table::get(fd).is_some() {
        replace(fd);
    }
}

/// Makes the standard stream of a descriptor a cookie stream, once.
fn replace(fd: c_int) {
    static DONE: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
    let Some(done) = usize::try_from(fd).ok().and_then(|fd| DONE.get(fd)) else {
        return;
    };
    if done.swap(true, Ordering::Relaxed) {
        return;
    }
    let saved = sys::errno();
    // SAFETY: the variables are the C library's, which programs may set. No other thread of a
    // program uses a stream while it moves the stream's descriptor.
    unsafe {
        let (variable, mode) = match fd {
            0 => (&raw mut stdin, c"r"),
            1 => (&raw mut stdout, c"w"),
            _ => (&raw mut stderr, c"w"),
        };
        if let Ok(new) = stream(fd, mode.as_ptr()) {
            if fd == 2 {
                libc::setvbuf(new, ptr::null_mut(), libc::_IONBF, 0);
            }
            variable.write(new);
        }
    }
    set_errno(saved);
}

hooks! {
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        if !route::is_inside(libc::AT_FDCWD, path) {
            pass!(fopen(path => *const c_char, mode => *const c_char) -> *mut FILE);
        }
        let fd = open_at(libc::AT_FDCWD, path, flags(mode)?, 0o666)?;
        // SAFETY: the caller has the contract of this function.
        unsafe { stream(fd, mode) }.inspect_err(|_| {
            // SAFETY: a descriptor of this function's own.
            unsafe { descriptors::close(fd) };
        })
    }
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if table::get(fd).is_none() {
            pass!(fdopen(fd => c_int, mode => *const c_char) -> *mut FILE);
        }
        // SAFETY: the caller has the contract of this function.
        unsafe { stream(fd, mode) }
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
            Ok(match place {
                0 => stdin,
                1 => stdout,
                2 => stderr,
                _ => stream(place, mode)?,
            })
        }
    }
}

aliases! {
    fopen64 = fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    freopen64 = freopen(path: *const c_char, mode: *const c_char, old: *mut FILE) -> *mut FILE;
}
