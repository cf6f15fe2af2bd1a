//! The empty files that stand for open inodes, in the server's folder.
//!
//! A program's descriptor is one of such a file, so its number is taken in the kernel too. The file
//! of an inode is named by its number, with a `d` before that of a directory. Its description has
//! the flags of the open, and the position. `flock` and `fcntl` lock the file itself.

use std::ffi::c_int;

use preload_frontend::server::OPEN_FOLDER;

use crate::{
    connection,
    sys::{PathBuffer, Result, syscall},
    table::{self, Open},
};

/// The flags that the kernel keeps.
const KEPT: c_int = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_CLOEXEC
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC;
/// The most descriptors that are looked at if `/proc` is missing.
const WITHOUT_PROC: usize = 1_024;

/// Opens a descriptor for an inode. Errors: `EMFILE`, `ENFILE`, and those of the folder.
pub(crate) fn open(ino: u64, is_directory: bool, flags: c_int) -> Result<c_int> {
    let started = connection::get().ok_or(libc::EIO)?;
    let mut path = PathBuffer::new();
    path.push(started.folder.as_bytes())?;
    path.push(b"/")?;
    path.push(OPEN_FOLDER.as_bytes())?;
    path.push(if is_directory { b"/d" } else { b"/" })?;
    path.push_number(ino)?;
    let kept = (flags & KEPT) | libc::O_CREAT | libc::O_LARGEFILE;
    let fd = syscall!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), kept, 0o600)? as c_int;
    let routed = table::set(fd, Some(Open::new(ino, is_directory, flags)));
    if let Err(errno) = routed {
        let _ = syscall!(SYS_close, fd);
        return Err(errno);
    }
    Ok(fd)
}

/// Routes the descriptors that this program has from the one before its exec, or its parent.
pub(crate) fn find_inherited() {
    let mut is_listed = false;
    let path = c"/proc/self/fd".as_ptr();
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    if let Ok(folder) = syscall!(SYS_openat, libc::AT_FDCWD, path, flags, 0) {
        is_listed = true;
        let mut entries = [0_u64; 512];
        while let Ok(len @ 1..) = syscall!(
            SYS_getdents64,
            folder,
            entries.as_mut_ptr(),
            size_of_val(&entries)
        ) {
            // SAFETY: the kernel has written that many bytes.
            let bytes = unsafe { std::slice::from_raw_parts(entries.as_ptr().cast::<u8>(), len) };
            each_number(bytes, find_one);
        }
        let _ = syscall!(SYS_close, folder);
    }
    if !is_listed {
        (0..WITHOUT_PROC as c_int).for_each(find_one);
    }
}

/// Calls `found` for each name of a directory that is a number.
fn each_number(mut entries: &[u8], mut found: impl FnMut(c_int)) {
    // Inode and offset of 8 bytes, length of 2, type of 1, then the name.
    while let Some(len) = entries.get(16..18).and_then(|len| len.try_into().ok()) {
        let len = usize::from(u16::from_ne_bytes(len));
        let name = entries.get(19..len).unwrap_or_default();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if let Some(number) = number(name) {
            found(number as c_int);
        }
        entries = entries.get(len.max(1)..).unwrap_or_default();
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then_some(())?;
    digits.iter().try_fold(0_u64, |number, digit| {
        number.checked_mul(10)?.checked_add((digit - b'0').into())
    })
}

/// Routes a descriptor if it is one of a file of the server.
fn find_one(fd: c_int) {
    let mut link = PathBuffer::new();
    let mut target = PathBuffer::new();
    let named = link
        .push(b"/proc/self/fd/")
        .and_then(|()| link.push_number(fd.unsigned_abs().into()));
    let read = named.and_then(|()| {
        target.fill(|bytes| {
            let at = libc::AT_FDCWD;
            syscall!(
                SYS_readlinkat,
                at,
                link.as_ptr(),
                bytes.as_mut_ptr(),
                bytes.len()
            )
        })
    });
    if read.is_err() {
        return;
    }
    let Some(name) = connection::in_folder(target.as_bytes(), OPEN_FOLDER) else {
        return;
    };
    let name = name.strip_prefix(b"/").unwrap_or(name);
    let (is_directory, digits) = match name.strip_prefix(b"d") {
        Some(digits) => (true, digits),
        None => (false, name),
    };
    let flags = syscall!(SYS_fcntl, fd, libc::F_GETFL).unwrap_or_default() as c_int;
    if let Some(ino) = number(digits) {
        // One beyond the table stays unrouted, as at its open.
        let _ = table::set(fd, Some(Open::new(ino, is_directory, flags)));
    }
}
