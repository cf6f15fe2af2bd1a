//! `mkstemp` and its relatives: the C library would make the name inside itself.

use std::{
    ffi::{c_char, c_int},
    sync::atomic::{AtomicU32, Ordering},
};

use super::{aliases, hooks, names::mkdir, open::open_at, pass};
use crate::{
    route,
    sys::{self, Result, syscall},
};

const AT: c_int = libc::AT_FDCWD;
const MARK: &[u8] = b"XXXXXX";
const TRIES: usize = 100;
const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Fills the mark of a template until `make` succeeds, or fails with something other than `EEXIST`.
fn filled<T>(
    template: *mut c_char,
    suffix: c_int,
    mut make: impl FnMut() -> Result<T>,
) -> Result<T> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // SAFETY: the callers have the contract of `mkstemp`.
    let len = unsafe { sys::bytes(template) }.len();
    let suffix = usize::try_from(suffix).map_err(|_| libc::EINVAL)?;
    let start = len.checked_sub(MARK.len() + suffix).ok_or(libc::EINVAL)?;
    // SAFETY: the range is in the template, which the caller lets us change.
    let mark =
        unsafe { std::slice::from_raw_parts_mut(template.cast::<u8>().add(start), MARK.len()) };
    if mark != MARK {
        return Err(libc::EINVAL);
    }
    for _ in 0..TRIES {
        let mut random = [0_u8; 6];
        if syscall!(SYS_getrandom, random.as_mut_ptr(), random.len(), 0).is_err() {
            let count = COUNT.fetch_add(1, Ordering::Relaxed).to_le_bytes();
            random[..4].copy_from_slice(&count);
        }
        for (letter, random) in mark.iter_mut().zip(random) {
            *letter = LETTERS[usize::from(random) % LETTERS.len()];
        }
        match make() {
            Err(libc::EEXIST) => {}
            made => return made,
        }
    }
    Err(libc::EEXIST)
}

fn make_file(template: *mut c_char, suffix: c_int, flags: c_int) -> Result<c_int> {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    filled(template, suffix, || open_at(AT, template, flags, 0o600))
}

hooks! {
    mkstemp(template: *mut c_char) -> c_int {
        if route::is_inside(AT, template) {
            return make_file(template, 0, 0);
        }
        pass!(mkstemp(template => *mut c_char) -> c_int)
    }
    mkostemp(template: *mut c_char, flags: c_int) -> c_int {
        if route::is_inside(AT, template) {
            return make_file(template, 0, flags);
        }
        pass!(mkostemp(template => *mut c_char, flags => c_int) -> c_int)
    }
    mkstemps(template: *mut c_char, suffix: c_int) -> c_int {
        if route::is_inside(AT, template) {
            return make_file(template, suffix, 0);
        }
        pass!(mkstemps(template => *mut c_char, suffix => c_int) -> c_int)
    }
    mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        if route::is_inside(AT, template) {
            return make_file(template, suffix, flags);
        }
        pass!(mkostemps(template => *mut c_char, suffix => c_int, flags => c_int) -> c_int)
    }
    mkdtemp(template: *mut c_char) -> *mut c_char {
        if !route::is_inside(AT, template) {
            pass!(mkdtemp(template => *mut c_char) -> *mut c_char);
        }
        filled(template, 0, || {
            // SAFETY: the template is a string.
            let made = unsafe { mkdir(template, 0o700) };
            if made == 0 { Ok(template) } else { Err(sys::errno()) }
        })
    }
}

aliases! {
    mkstemp64 = mkstemp(template: *mut c_char) -> c_int;
    mkostemp64 = mkostemp(template: *mut c_char, flags: c_int) -> c_int;
    mkstemps64 = mkstemps(template: *mut c_char, suffix: c_int) -> c_int;
    mkostemps64 = mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int;
}
