//! `statfs`, `statvfs` and their relatives.

use std::ffi::{c_char, c_int};

use preload_frontend::wire::Request;

use super::{aliases, hooks, pass};
use crate::{
    client::{self, Failure},
    route,
    sys::Result,
    table,
};

type Statfs = libc::statfs64;
type Statvfs = libc::statvfs64;

/// The magic number of FUSE: programs know it as a file system without surprises.
const KIND: i64 = 0x6573_5546;

/// The space of the volume: block bytes, blocks, free blocks, keys.
fn space() -> Result<(u32, [u64; 3])> {
    let space = client::request(&Request::Space {}, |reply| {
        Some((reply.get()?, [reply.get()?, reply.get()?, reply.get()?]))
    });
    space.map_err(Failure::errno)
}

fn write_statfs(to: *mut Statfs) -> Result<c_int> {
    let (block_bytes, [blocks, free, keys]) = space()?;
    // SAFETY: all bytes zero are a valid value, and the caller has the contract of `statfs`.
    unsafe {
        let mut all: Statfs = std::mem::zeroed();
        all.f_type = KIND;
        all.f_bsize = block_bytes.into();
        all.f_frsize = block_bytes.into();
        (all.f_blocks, all.f_bfree, all.f_bavail) = (blocks, free, free);
        (all.f_files, all.f_ffree) = (keys + free, free);
        all.f_namelen = 255;
        to.write(all);
    }
    Ok(0)
}

fn write_statvfs(to: *mut Statvfs) -> Result<c_int> {
    let (block_bytes, [blocks, free, keys]) = space()?;
    // SAFETY: all bytes zero are a valid value, and the caller has the contract of `statvfs`.
    unsafe {
        let mut all: Statvfs = std::mem::zeroed();
        all.f_bsize = block_bytes.into();
        all.f_frsize = block_bytes.into();
        (all.f_blocks, all.f_bfree, all.f_bavail) = (blocks, free, free);
        (all.f_files, all.f_ffree, all.f_favail) = (keys + free, free, free);
        all.f_namemax = 255;
        to.write(all);
    }
    Ok(0)
}

// The structures with and without 64 are the same on x86-64.
hooks! {
    statfs64(path: *const c_char, to: *mut Statfs) -> c_int {
        if route::is_inside(libc::AT_FDCWD, path) {
            return write_statfs(to);
        }
        pass!(statfs64(path => *const c_char, to => *mut Statfs) -> c_int)
    }
    fstatfs64(fd: c_int, to: *mut Statfs) -> c_int {
        if table::get(fd).is_some() {
            return write_statfs(to);
        }
        pass!(fstatfs64(fd => c_int, to => *mut Statfs) -> c_int)
    }
    statvfs64(path: *const c_char, to: *mut Statvfs) -> c_int {
        if route::is_inside(libc::AT_FDCWD, path) {
            return write_statvfs(to);
        }
        pass!(statvfs64(path => *const c_char, to => *mut Statvfs) -> c_int)
    }
    fstatvfs64(fd: c_int, to: *mut Statvfs) -> c_int {
        if table::get(fd).is_some() {
            return write_statvfs(to);
        }
        pass!(fstatvfs64(fd => c_int, to => *mut Statvfs) -> c_int)
    }
}

aliases! {
    statfs = statfs64(path: *const c_char, to: *mut Statfs) -> c_int;
    fstatfs = fstatfs64(fd: c_int, to: *mut Statfs) -> c_int;
    statvfs = statvfs64(path: *const c_char, to: *mut Statvfs) -> c_int;
    fstatvfs = fstatvfs64(fd: c_int, to: *mut Statvfs) -> c_int;
}
