//! Which paths are in the volume.
//!
//! A path is normalised as text: `..` takes its predecessor away, even if that is a symbolic link.
//! So no path outside of the volume costs a request. A relative path is joined to the working
//! directory only if it could lead into the volume, or out of it.

use std::{
    ffi::{c_char, c_int},
    sync::atomic::{AtomicU8, Ordering},
};

use preload_frontend::{server::CWD_FOLDER, wire::Place};

use crate::{
    client::Failure,
    connection,
    sys::{self, PathBuffer, Result, syscall},
    table,
};

/// The inode of the volume's root.
pub(crate) const ROOT: u64 = 1;

/// The working directory leads into the volume in no way but by `..`.
const ELSEWHERE: u8 = 0;
/// It is above the volume.
const ABOVE: u8 = 1;
/// It is in the volume.
const INSIDE: u8 = 2;

static CWD: AtomicU8 = AtomicU8::new(ELSEWHERE);

/// Where a path leads.
#[derive(Debug)]
enum Route<'p> {
    Volume(Place<'p>),
    Kernel(c_int, *const c_char),
}

/// Does a call in the volume or in the kernel, wherever its path leads. `kernel` is given a folder
/// and a path. A path that leaves the volume by a link is tried again, from there.
pub(crate) fn on_path<T>(
    dirfd: c_int,
    path: *const c_char,
    volume: impl Fn(Place<'_>) -> Result<T, Failure>,
    kernel: impl FnOnce(c_int, *const c_char) -> Result<T>,
) -> Result<T> {
    let mut buffer = PathBuffer::new();
    match route(dirfd, path, &mut buffer)? {
        Route::Kernel(dirfd, path) => kernel(dirfd, path),
        Route::Volume(place) => match volume(place) {
            Ok(value) => Ok(value),
            Err(Failure::Errno(errno)) => Err(errno),
            Err(Failure::Outside(path)) => kernel(libc::AT_FDCWD, path.as_ptr()),
        },
    }
}

/// A call with two paths. Both are in the volume, or none: otherwise it fails with `EXDEV`.
pub(crate) fn on_paths<T>(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    volume: impl FnOnce(Place<'_>, Place<'_>) -> Result<T, Failure>,
    kernel: impl FnOnce((c_int, *const c_char), (c_int, *const c_char)) -> Result<T>,
) -> Result<T> {
    let (mut one, mut two) = (PathBuffer::new(), PathBuffer::new());
    match (
        route(from.0, from.1, &mut one)?,
        route(to.0, to.1, &mut two)?,
    ) {
        (Route::Kernel(dirfd, path), Route::Kernel(to_dirfd, to_path)) => {
            kernel((dirfd, path), (to_dirfd, to_path))
        }
        (Route::Volume(from), Route::Volume(to)) => volume(from, to).map_err(Failure::errno),
        _ => Err(libc::EXDEV),
    }
}

/// Whether a path is in the volume, as far as its text tells.
pub(crate) fn is_inside(dirfd: c_int, path: *const c_char) -> bool {
    let mut buffer = PathBuffer::new();
    matches!(route(dirfd, path, &mut buffer), Ok(Route::Volume(_)))
}

fn route(dirfd: c_int, path: *const c_char, buffer: &mut PathBuffer) -> Result<Route<'_>> {
    let kernel = Ok(Route::Kernel(dirfd, path));
    let Some(started) = connection::get() else {
        return kernel;
    };
    if path.is_null() {
        return kernel;
    }
    // SAFETY: the callers have the contract of a system call with this path.
    let text = unsafe { sys::bytes(path) };
    let is_absolute = text.first() == Some(&b'/');
    if text.is_empty() {
        return kernel;
    }
    if !is_absolute && dirfd != libc::AT_FDCWD {
        return match table::get(dirfd) {
            Some(open) => {
                buffer.push(text)?;
                Ok(Route::Volume(Place::new(open.ino(), buffer.as_bytes())))
            }
            None => kernel,
        };
    }
    let cwd = CWD.load(Ordering::Relaxed);
    if !is_absolute && cwd == ELSEWHERE && !has_dots(text) {
        return kernel;
    }
    if !is_absolute {
        absolute_cwd(buffer)?;
    }
    normalise(buffer, text)?;
    let at = started.at.as_bytes();
    match buffer.as_bytes().strip_prefix(at) {
        Some(rest @ ([] | [b'/', ..])) => Ok(Route::Volume(Place::new(ROOT, rest_or_root(rest)))),
        // The kernel does not know the working directory in the volume.
        _ if !is_absolute && cwd == INSIDE => Ok(Route::Kernel(dirfd, buffer.as_ptr())),
        _ => kernel,
    }
}

/// The path of the root itself must not be empty, as that of a descriptor is.
fn rest_or_root(rest: &[u8]) -> &[u8] {
    if rest.is_empty() { b"/" } else { rest }
}

fn has_dots(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name == b"..")
}

/// Appends a path to an absolute one without a slash at its end, or replaces it if it is absolute
/// itself. A slash at the end of `path` stays.
fn normalise(buffer: &mut PathBuffer, path: &[u8]) -> Result<()> {
    if path.first() == Some(&b'/') {
        buffer.truncate(0);
    }
    let mut ends_with_slash = false;
    for name in path.split(|byte| *byte == b'/') {
        ends_with_slash = matches!(name, b"" | b"." | b"..");
        match name {
            b"" | b"." => {}
            b".." => {
                let start = buffer.as_bytes().iter().rposition(|byte| *byte == b'/');
                buffer.truncate(start.unwrap_or(0));
            }
            _ => {
                buffer.push(b"/")?;
                buffer.push(name)?;
            }
        }
    }
    if ends_with_slash || buffer.as_bytes().is_empty() {
        buffer.push(b"/")?;
    }
    Ok(())
}

/// The working directory as the program sees it, without a slash at its end.
pub(crate) fn absolute_cwd(buffer: &mut PathBuffer) -> Result<()> {
    let cwd = connection::kernel_cwd()?;
    buffer.truncate(0);
    if let Some(path) = connection::in_folder(cwd.as_bytes(), CWD_FOLDER) {
        let started = connection::get().ok_or(libc::EIO)?;
        buffer.push(started.at.as_bytes())?;
        return buffer.push(path);
    }
    let path = cwd.as_bytes();
    buffer.push(if path == b"/" { b"" } else { path })
}

/// Whether the working directory is in the volume.
pub(crate) fn is_cwd_inside() -> bool {
    connection::get().is_some() && CWD.load(Ordering::Relaxed) == INSIDE
}

/// Notes where the working directory is, after it has changed.
pub(crate) fn note_cwd() {
    let (Some(started), Ok(cwd)) = (connection::get(), connection::kernel_cwd()) else {
        return;
    };
    let path = cwd.as_bytes();
    let at = started.at.as_bytes();
    let place = if connection::in_folder(path, CWD_FOLDER).is_some() {
        INSIDE
    } else if path == b"/" || matches!(at.strip_prefix(path), Some([b'/', ..])) {
        ABOVE
    } else {
        ELSEWHERE
    };
    CWD.store(place, Ordering::Relaxed);
}

/// Changes the kernel's working directory to the mirror of a path in the volume, which starts with a
/// slash. The caller knows that it is a directory.
pub(crate) fn enter(path: &[u8]) -> Result<()> {
    let started = connection::get().ok_or(libc::EIO)?;
    let mut mirror = PathBuffer::new();
    mirror.push(started.folder.as_bytes())?;
    mirror.push(b"/")?;
    mirror.push(CWD_FOLDER.as_bytes())?;
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        mirror.push(b"/")?;
        mirror.push(name)?;
        match syscall!(SYS_mkdirat, libc::AT_FDCWD, mirror.as_ptr(), 0o700) {
            Ok(_) | Err(libc::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    syscall!(SYS_chdir, mirror.as_ptr())?;
    CWD.store(INSIDE, Ordering::Relaxed);
    Ok(())
}
