//! The functions that replace the C library's, grouped by the objects that they work on.

pub(crate) mod attributes;
pub(crate) mod data;
pub(crate) mod descriptors;
pub(crate) mod directories;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod process;
pub(crate) mod refused;
pub(crate) mod space;
pub(crate) mod stdio;
pub(crate) mod streams;
pub(crate) mod temporary;
pub(crate) mod xattrs;

/// Exports functions under the C library's names. Each body is a [`Result`](crate::sys::Result).
macro_rules! hooks {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            let body = || -> $crate::sys::Result<$result> { $body };
            $crate::sys::returned(body())
        }
    )*};
}

/// Exports functions that are the same as others.
macro_rules! aliases {
    ($($name:ident = $other:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the contracts are the same.
            unsafe { $other($($argument),*) }
        }
    )*};
}

/// Calls the C library's own function, whose result and `errno` are returned as they are.
macro_rules! pass {
    ($name:ident($($argument:expr => $type:ty),* $(,)?) -> $result:ty) => {{
        match $crate::sys::next!($name: fn($($type),*) -> $result) {
            // SAFETY: the caller has the contract of this function.
            Some(next) => return Ok(unsafe { next($($argument),*) }),
            None => return Err(libc::ENOSYS),
        }
    }};
}

pub(crate) use {aliases, hooks, pass};
