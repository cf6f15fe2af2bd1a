//! System calls, `errno`, and the functions of the C library that the hooks replace.

use std::{
    arch::asm,
    ffi::{CStr, c_char, c_int, c_long},
};

/// The number of an error.
pub(crate) type Errno = c_int;
/// The result of a call.
pub(crate) type Result<T, E = Errno> = std::result::Result<T, E>;

/// The descriptor of a mapping without a file.
pub(crate) const NO_FILE: c_int = -1;

/// Calls the kernel. It does not touch `errno`.
pub(crate) fn call(number: c_long, arguments: [usize; 6]) -> Result<usize> {
    let mut result: isize = number as isize;
    // SAFETY: the callers' pointers are valid for the call, or the kernel refuses them. The
    // instruction changes rcx, r11, and the memory that the call writes to.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") arguments[0], in("rsi") arguments[1], in("rdx") arguments[2],
            in("r10") arguments[3], in("r8") arguments[4], in("r9") arguments[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if (-4_095..0).contains(&result) {
        return Err(-result as Errno);
    }
    Ok(result as usize)
}

/// A system call by its number and up to six arguments of any integer or pointer type.
macro_rules! syscall {
    ($number:ident $(, $argument:expr)*) => {{
        let given: &[usize] = &[$($argument as usize),*];
        let mut arguments = [0; 6];
        arguments[..given.len()].copy_from_slice(given);
        $crate::sys::call(libc::$number, arguments)
    }};
}
pub(crate) use syscall;

/// The function of the C library with this name and type, as `Option`. It is searched once.
macro_rules! next {
    ($name:ident: fn($($argument:ty),* $(,)?) -> $result:ty) => {{
        static FOUND: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        let mut found = FOUND.load(std::sync::atomic::Ordering::Relaxed);
        if found.is_null() {
            let name = concat!(stringify!($name), "\0");
            // SAFETY: the name ends with a NUL.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
            FOUND.store(found, std::sync::atomic::Ordering::Relaxed);
        }
        // SAFETY: null is `None`, and the C library's function has this type.
        unsafe {
            std::mem::transmute::<
                *mut std::ffi::c_void,
                Option<unsafe extern "C" fn($($argument),*) -> $result>,
            >(found)
        }
    }};
}
pub(crate) use next;

/// The results by which functions of the C library report a failure.
pub(crate) trait Failed {
    /// That result.
    const FAILED: Self;
}

macro_rules! minus_one {
    ($($type:ty),*) => { $(impl Failed for $type { const FAILED: Self = -1; })* };
}
minus_one!(i32, i64, isize);

impl<T> Failed for *mut T {
    const FAILED: Self = std::ptr::null_mut();
}

/// Returns a result in the C library's way.
pub(crate) fn returned<T: Failed>(result: Result<T>) -> T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        T::FAILED
    })
}

/// Sets `errno`.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno }
}

/// Reads `errno`.
pub(crate) fn errno() -> Errno {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() }
}

/// The bytes of a string without its NUL.
///
/// # Safety
/// `text` points to a string that outlives the result.
pub(crate) unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// Writes a message to the standard error, in several writes.
pub(crate) fn complain(parts: &[&[u8]]) {
    let all = [&b"landfast preload: "[..]];
    for part in all.iter().chain(parts).chain(&[&b"\n"[..]]) {
        // There is no one left to tell if this fails.
        let _ = syscall!(SYS_write, 2, part.as_ptr(), part.len());
    }
}

/// A path on the stack, which ends with a NUL.
#[derive(Clone)]
pub(crate) struct PathBuffer {
    bytes: [u8; Self::BYTES],
    len: usize,
}

impl std::fmt::Debug for PathBuffer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        String::from_utf8_lossy(self.as_bytes()).fmt(formatter)
    }
}

impl PathBuffer {
    /// The longest path of the kernel, below the longest place of a volume or folder of a server.
    const BYTES: usize = 4_096 + 1_024;

    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; Self::BYTES],
            len: 0,
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    /// Errors: `ENAMETOOLONG`.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let end = self.len + bytes.len();
        if end >= Self::BYTES {
            return Err(libc::ENAMETOOLONG);
        }
        self.bytes[self.len..end].copy_from_slice(bytes);
        self.bytes[end] = 0;
        self.len = end;
        Ok(())
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = len.min(self.len);
        self.bytes[self.len] = 0;
    }

    /// Appends a number in decimal digits.
    pub(crate) fn push_number(&mut self, mut number: u64) -> Result<()> {
        let mut digits = [0; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return self.push(&digits[first..]);
            }
        }
    }

    /// Fills it with the bytes that `fill` writes to its argument; `fill` returns their number.
    pub(crate) fn fill(&mut self, fill: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<()> {
        let len = fill(&mut self.bytes[..Self::BYTES - 1])?;
        self.len = len.min(Self::BYTES - 1);
        self.bytes[self.len] = 0;
        Ok(())
    }
}
