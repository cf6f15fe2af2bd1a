//! `opendir` and its relatives.
//!
//! A stream of a routed directory is a mapping of its own: a header, then all entries as `readdir`
//! returns them. All are fetched at the first read, so deleting while reading skips nothing. A
//! stream of the C library starts with a descriptor and a lock, which the header's mark never is.

use std::{
    ffi::{c_char, c_int, c_long, c_void},
    ptr,
};

use libc::{DIR, dirent, dirent64, size_t};
use preload_frontend::wire::{Reader, Request};

use super::{hooks, open::open_at, pass};
use crate::{
    client::{self, Failure},
    sys::{self, Result, errno, next, syscall},
    table,
};

/// The first word of a stream.
const MARK: u64 = 0xffff_ffff_6c66_6469;
/// The bytes of a mapping at first. It doubles as needed.
const BYTES: usize = 64 << 10;
/// Where the name starts in an entry.
const NAME_AT: usize = 19;

/// The header of a stream.
#[repr(C)]
struct Stream {
    mark: u64,
    fd: c_int,
    is_read: bool,
    /// Where the entries are, and the bytes of their mapping.
    entries: *mut u8,
    mapped: usize,
    /// The bytes of all entries.
    len: usize,
    /// The place of the next entry.
    next: usize,
}

fn map(bytes: usize) -> Result<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    syscall!(SYS_mmap, 0, bytes, protection, kind, sys::NO_FILE, 0).map(|base| base as *mut u8)
}

/// Our stream behind a pointer; `None` if it is the C library's.
///
/// # Safety
/// `stream` is an open stream of one of them.
unsafe fn ours<'s>(stream: *mut DIR) -> Option<&'s mut Stream> {
    // SAFETY: both kinds start with 8 bytes that can be read.
    unsafe {
        let is_ours = !stream.is_null() && stream.cast::<u64>().read() == MARK;
        is_ours.then(|| &mut *stream.cast::<Stream>())
    }
}

/// A stream for a routed directory, which owns the descriptor.
fn stream(fd: c_int) -> Result<*mut DIR> {
    let header = map(size_of::<Stream>())?.cast::<Stream>();
    let stream = Stream {
        mark: MARK,
        fd,
        is_read: false,
        entries: ptr::null_mut(),
        mapped: 0,
        len: 0,
        next: 0,
    };
    // SAFETY: the mapping is new and has a page.
    unsafe { header.write(stream) };
    Ok(header.cast())
}

impl Stream {
    /// Fetches all entries.
    fn fetch(&mut self) -> Result<()> {
        let open = table::get(self.fd).ok_or(libc::EBADF)?;
        (self.len, self.next) = (0, 0);
        let (mut listing, mut cookie) = (0, 0);
        loop {
            let request = Request::List {
                ino: open.ino(),
                listing,
                cookie,
            };
            let is_complete = client::request(&request, |reply| {
                listing = reply.get()?;
                let is_complete = reply.get::<u8>()? != 0;
                while !reply.rest().is_empty() {
                    cookie = reply.get()?;
                    self.push(reply).ok()?;
                }
                Some(is_complete)
            });
            if is_complete.map_err(Failure::errno)? {
                self.is_read = true;
                return Ok(());
            }
        }
    }

    /// Appends the next entry of a reply.
    fn push(&mut self, reply: &mut Reader<'_>) -> Result<()> {
        let (ino, kind, name) = (|| {
            Some((
                reply.get::<u64>()?,
                reply.get::<u8>()?,
                reply.get::<&[u8]>()?,
            ))
        })()
        .ok_or(libc::EPROTO)?;
        let bytes = (NAME_AT + name.len() + 1).next_multiple_of(8);
        // The last entry is read as a whole structure.
        let needed = self.len + bytes + size_of::<dirent64>();
        if needed > self.mapped {
            let larger = needed.next_power_of_two().max(BYTES);
            let flag = libc::MREMAP_MAYMOVE;
            self.entries = if self.entries.is_null() {
                map(larger)?
            } else {
                syscall!(SYS_mremap, self.entries, self.mapped, larger, flag)? as *mut u8
            };
            self.mapped = larger;
        }
        let offset = (self.len + bytes) as i64;
        // SAFETY: the mapping has room for the entry. The structure's fields are at these places,
        // and the place is aligned.
        unsafe {
            let entry = self.entries.add(self.len);
            entry.cast::<u64>().write(ino);
            entry.add(8).cast::<i64>().write(offset);
            entry.add(16).cast::<u16>().write(bytes as u16);
            entry.add(18).write(kind);
            ptr::copy_nonoverlapping(name.as_ptr(), entry.add(NAME_AT), name.len());
            entry.add(NAME_AT + name.len()).write(0);
        }
        self.len += bytes;
        Ok(())
    }

    fn read(&mut self) -> Result<*mut dirent64> {
        if !self.is_read {
            self.fetch()?;
        }
        if self.next >= self.len {
            return Ok(ptr::null_mut());
        }
        // SAFETY: the place is the start of an entry, and its length follows.
        unsafe {
            let entry = self.entries.add(self.next);
            self.next += usize::from(entry.add(16).cast::<u16>().read());
            Ok(entry.cast())
        }
    }

    fn unmap(&mut self) {
        if !self.entries.is_null() {
            let _ = syscall!(SYS_munmap, self.entries, self.mapped);
        }
        self.mark = 0;
        let _ = syscall!(SYS_munmap, &raw mut *self, size_of::<Stream>());
    }
}

type Compare = Option<unsafe extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int>;
type Filter = Option<unsafe extern "C" fn(*const dirent64) -> c_int>;

/// `scandir` of a routed path: the list and its entries belong to the caller, from `malloc`.
unsafe fn scan(
    path: *const c_char,
    list: *mut *mut *mut dirent64,
    filter: Filter,
    compare: Compare,
) -> Result<c_int> {
    // SAFETY: the caller has the contract of `scandir`.
    unsafe {
        let opened = opendir(path);
        if opened.is_null() {
            return Err(errno());
        }
        let (mut found, mut count) = (ptr::null_mut::<*mut dirent64>(), 0_usize);
        loop {
            let entry = readdir64(opened);
            if entry.is_null() {
                break;
            }
            if filter.is_some_and(|filter| filter(entry) == 0) {
                continue;
            }
            let bytes = usize::from((*entry).d_reclen);
            let copy = libc::malloc(bytes.max(size_of::<dirent64>()));
            let larger = libc::realloc(found.cast(), (count + 1) * size_of::<*mut dirent64>());
            if copy.is_null() || larger.is_null() {
                closedir(opened);
                return Err(libc::ENOMEM);
            }
            ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast(), bytes);
            found = larger.cast();
            found.add(count).write(copy.cast());
            count += 1;
        }
        closedir(opened);
        if let (Some(compare), true) = (compare, count > 0) {
            let compare: unsafe extern "C" fn(*const c_void, *const c_void) -> c_int =
                std::mem::transmute(compare);
            libc::qsort(
                found.cast(),
                count,
                size_of::<*mut dirent64>(),
                Some(compare),
            );
        }
        list.write(found);
        Ok(count as c_int)
    }
}

hooks! {
    opendir(path: *const c_char) -> *mut DIR {
        if !crate::route::is_inside(libc::AT_FDCWD, path) {
            pass!(opendir(path => *const c_char) -> *mut DIR);
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: a descriptor of this function's own.
        let fd = open_at(libc::AT_FDCWD, path, flags, 0)?;
        // SAFETY: as above; a link may have led out of the volume.
        Ok(unsafe { fdopendir(fd) })
    }
    fdopendir(fd: c_int) -> *mut DIR {
        match table::get(fd) {
            Some(open) if open.is_directory() => stream(fd),
            Some(_) => Err(libc::ENOTDIR),
            None => pass!(fdopendir(fd => c_int) -> *mut DIR),
        }
    }
    readdir64(stream: *mut DIR) -> *mut dirent64 {
        // SAFETY: the caller has the contract of `readdir`.
        match unsafe { ours(stream) } {
            Some(stream) => stream.read(),
            None => pass!(readdir64(stream => *mut DIR) -> *mut dirent64),
        }
    }
    readdir(stream: *mut DIR) -> *mut dirent {
        // SAFETY: the caller has the contract of `readdir`; both structures are the same here.
        match unsafe { ours(stream) } {
            Some(stream) => stream.read().map(<*mut dirent64>::cast),
            None => pass!(readdir(stream => *mut DIR) -> *mut dirent),
        }
    }
    closedir(stream: *mut DIR) -> c_int {
        // SAFETY: the caller has the contract of `closedir`.
        let Some(ours) = (unsafe { ours(stream) }) else {
            pass!(closedir(stream => *mut DIR) -> c_int)
        };
        let fd = ours.fd;
        ours.unmap();
        table::take(fd);
        syscall!(SYS_close, fd).map(|closed| closed as c_int)
    }
    dirfd(stream: *mut DIR) -> c_int {
        // SAFETY: the caller has the contract of `dirfd`.
        match unsafe { ours(stream) } {
            Some(stream) => Ok(stream.fd),
            None => pass!(dirfd(stream => *mut DIR) -> c_int),
        }
    }
    telldir(stream: *mut DIR) -> c_long {
        // SAFETY: the caller has the contract of `telldir`.
        match unsafe { ours(stream) } {
            Some(stream) => Ok(stream.next as c_long),
            None => pass!(telldir(stream => *mut DIR) -> c_long),
        }
    }
    scandir64(path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare)
        -> c_int {
        if !crate::route::is_inside(libc::AT_FDCWD, path) {
            pass!(scandir64(path => *const c_char, list => *mut *mut *mut dirent64,
                filter => Filter, compare => Compare) -> c_int);
        }
        // SAFETY: the caller has the contract of this function.
        unsafe { scan(path, list, filter, compare) }
    }
    scandir(path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare)
        -> c_int {
        if !crate::route::is_inside(libc::AT_FDCWD, path) {
            pass!(scandir(path => *const c_char, list => *mut *mut *mut dirent64,
                filter => Filter, compare => Compare) -> c_int);
        }
        // SAFETY: the caller has the contract of this function.
        unsafe { scan(path, list, filter, compare) }
    }
    readdir64_r(stream: *mut DIR, entry: *mut dirent64, result: *mut *mut dirent64) -> c_int {
        // SAFETY: the caller has the contract of this function.
        let Some(ours) = (unsafe { ours(stream) }) else {
            pass!(readdir64_r(stream => *mut DIR, entry => *mut dirent64,
                result => *mut *mut dirent64) -> c_int)
        };
        // It returns the error.
        Ok(match ours.read() {
            Err(errno) => errno,
            Ok(found) => {
                // SAFETY: as above.
                unsafe {
                    if found.is_null() {
                        result.write(found);
                    } else {
                        let bytes = usize::from((*found).d_reclen);
                        ptr::copy_nonoverlapping(found.cast::<u8>(), entry.cast(), bytes);
                        result.write(entry);
                    }
                }
                0
            }
        })
    }
    getdents64(fd: c_int, to: *mut c_void, count: size_t) -> isize {
        if table::get(fd).is_some() {
            // Nothing but direct readers of directories calls it, and none is known.
            return Err(libc::ENOSYS);
        }
        pass!(getdents64(fd => c_int, to => *mut c_void, count => size_t) -> isize)
    }
}

/// `rewinddir`: the next read fetches the entries again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rewinddir(stream: *mut DIR) {
    // SAFETY: the caller has the contract of this function.
    if let Some(stream) = unsafe { ours(stream) } {
        (stream.is_read, stream.len, stream.next) = (false, 0, 0);
    } else if let Some(next) = next!(rewinddir: fn(*mut DIR) -> ()) {
        // SAFETY: as above.
        unsafe { next(stream) };
    }
}

/// `seekdir` to a place that `telldir` returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seekdir(stream: *mut DIR, place: c_long) {
    // SAFETY: the caller has the contract of this function.
    if let Some(stream) = unsafe { ours(stream) } {
        stream.next = (place.max(0) as usize).min(stream.len);
    } else if let Some(next) = next!(seekdir: fn(*mut DIR, c_long) -> ()) {
        // SAFETY: as above.
        unsafe { next(stream, place) };
    }
}
