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

use super::data;
use crate::{
    sys::{self, Result, set_errno, syscall},
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
    let fd = cookie as c_int;
    table::take(fd);
    sys::returned(syscall!(SYS_close, fd).map(|done| done as c_int))
}

/// A stream that owns a descriptor.
///
/// # Safety
/// `mode` is a string.
pub(crate) unsafe fn stream(fd: c_int, mode: *const c_char) -> Result<*mut FILE> {
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

/// Makes the standard streams of routed descriptors cookie streams, as the program starts.
pub(crate) fn route_standard_streams() {
    (0..3)
        .filter(|fd| table::get(*fd).is_some())
        .for_each(replace);
}

/// The standard stream of a descriptor, as programs name it now.
pub(crate) fn standard(fd: c_int) -> Option<*mut FILE> {
    // SAFETY: the variables are the C library's, and are only read.
    unsafe {
        match fd {
            0 => Some(stdin),
            1 => Some(stdout),
            2 => Some(stderr),
            _ => None,
        }
    }
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
