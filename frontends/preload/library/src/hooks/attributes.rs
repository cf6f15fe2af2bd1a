//! `stat` and its relatives, permissions, owners, times and space.

use std::ffi::{c_char, c_int, c_uint};

use libc::{gid_t, mode_t, off_t, timespec, timeval, uid_t};
use preload_frontend::wire::{Changes, Place, Request, Status, set};

use super::{aliases, hooks};
use crate::{
    client::{self, Failure},
    route::on_path,
    sys::{Result, syscall},
    table,
};

type Stat = libc::stat;
type Stat64 = libc::stat64;
type Statx = libc::statx;

const AT: c_int = libc::AT_FDCWD;
const NO_FOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;
/// The device of all inodes of volumes: no other file system has this one.
const DEVICE: u64 = 0x4c_4600;

/// Fills in the fields as the kernel would.
fn filled(status: &Status) -> Stat {
    // SAFETY: all bytes zero are a valid value.
    let mut stat: Stat = unsafe { std::mem::zeroed() };
    stat.st_dev = DEVICE;
    stat.st_ino = status.ino;
    stat.st_nlink = status.links;
    stat.st_mode = status.mode;
    stat.st_uid = status.uid;
    stat.st_gid = status.gid;
    stat.st_size = status.size.cast_signed();
    stat.st_blksize = 4_096;
    stat.st_blocks = status.size.div_ceil(512).cast_signed();
    stat.st_atime = status.atime;
    stat.st_atime_nsec = status.atime_ns.into();
    stat.st_mtime = status.mtime;
    stat.st_mtime_nsec = status.mtime_ns.into();
    stat.st_ctime = status.ctime;
    stat.st_ctime_nsec = status.ctime_ns.into();
    stat
}

/// The attributes of the inode at a path, or of a routed descriptor if the path is empty.
fn look<T>(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    volume: impl Fn(&Status) -> T,
    kernel: impl Fn(c_int, *const c_char) -> Result<T>,
) -> Result<T> {
    if let Some(open) = by_descriptor(dirfd, path, flags) {
        return Ok(volume(&super::data::status(open.ino())?));
    }
    on_path(
        dirfd,
        path,
        |place| Ok(volume(&client::status(place, flags & NO_FOLLOW == 0)?)),
        kernel,
    )
}

/// The routed descriptor that a call with `AT_EMPTY_PATH` is about.
fn by_descriptor(dirfd: c_int, path: *const c_char, flags: c_int) -> Option<table::Open> {
    // SAFETY: the callers have the contract of a system call with this path.
    let is_empty = path.is_null() || unsafe { *path } == 0;
    let is_wanted = flags & libc::AT_EMPTY_PATH != 0 && is_empty;
    if is_wanted { table::get(dirfd) } else { None }
}

fn stat_at(dirfd: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> Result<c_int> {
    look(
        dirfd,
        path,
        flags,
        |status| {
            // SAFETY: the caller has the contract of `stat`.
            unsafe { to.write(filled(status)) };
            0
        },
        |dirfd, path| syscall!(SYS_newfstatat, dirfd, path, to, flags).map(|done| done as c_int),
    )
}

fn stat_fd(fd: c_int, to: *mut Stat) -> Result<c_int> {
    match table::get(fd) {
        Some(open) => {
            let stat = filled(&super::data::status(open.ino())?);
            // SAFETY: the caller has the contract of `fstat`.
            unsafe { to.write(stat) };
            Ok(0)
        }
        None => syscall!(SYS_fstat, fd, to).map(|done| done as c_int),
    }
}

fn write_statx(to: *mut Statx, stat: &Stat) {
    let time = |seconds, nanoseconds| {
        // SAFETY: all bytes zero are a time.
        let mut time: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        time.tv_sec = seconds;
        time.tv_nsec = nanoseconds as u32;
        time
    };
    // SAFETY: all bytes zero are a valid value.
    let mut all: Statx = unsafe { std::mem::zeroed() };
    all.stx_mask = libc::STATX_BASIC_STATS;
    all.stx_blksize = stat.st_blksize as u32;
    all.stx_nlink = stat.st_nlink as u32;
    all.stx_uid = stat.st_uid;
    all.stx_gid = stat.st_gid;
    all.stx_mode = stat.st_mode as u16;
    all.stx_ino = stat.st_ino;
    all.stx_size = stat.st_size.cast_unsigned();
    all.stx_blocks = stat.st_blocks.cast_unsigned();
    all.stx_atime = time(stat.st_atime, stat.st_atime_nsec);
    all.stx_mtime = time(stat.st_mtime, stat.st_mtime_nsec);
    all.stx_ctime = time(stat.st_ctime, stat.st_ctime_nsec);
    all.stx_dev_major = libc::major(stat.st_dev);
    all.stx_dev_minor = libc::minor(stat.st_dev);
    // SAFETY: the caller has the contract of `statx`.
    unsafe { to.write(all) };
}

/// Whether the permissions allow the access that `mode` asks for.
fn allows(status: &Status, mode: c_int, flags: c_int) -> Result<c_int> {
    let (uid, gid) = if flags & libc::AT_EACCESS == 0 {
        (syscall!(SYS_getuid)? as u32, syscall!(SYS_getgid)? as u32)
    } else {
        super::open::user()
    };
    let bits = if uid == 0 {
        let is_directory = status.mode & libc::S_IFMT == libc::S_IFDIR;
        if is_directory || status.mode & 0o111 != 0 {
            7
        } else {
            6
        }
    } else if uid == status.uid {
        status.mode >> 6 & 7
    } else if gid == status.gid || is_member(status.gid) {
        status.mode >> 3 & 7
    } else {
        status.mode & 7
    };
    let missing = mode & 7 & !bits.cast_signed();
    if missing == 0 {
        Ok(0)
    } else {
        Err(libc::EACCES)
    }
}

fn is_member(gid: gid_t) -> bool {
    let mut groups = [0; 256];
    let count = syscall!(SYS_getgroups, groups.len(), groups.as_mut_ptr()).unwrap_or(0);
    groups[..count].contains(&gid)
}

fn access_at(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> Result<c_int> {
    look(
        dirfd,
        path,
        flags,
        |status| allows(status, mode, flags),
        |dirfd, path| {
            Ok(Ok(
                syscall!(SYS_faccessat2, dirfd, path, mode, flags)? as c_int
            ))
        },
    )?
}

/// Changes attributes of the inode at a path, or of a routed descriptor if the path is empty.
fn change_at(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    changes: Changes,
    kernel: impl FnOnce(c_int, *const c_char) -> Result<usize>,
) -> Result<c_int> {
    let follows = (flags & NO_FOLLOW == 0).into();
    let change = |place: Place<'_>| {
        client::order(&Request::Change {
            place,
            follows,
            changes,
        })
    };
    if let Some(open) = by_descriptor(dirfd, path, flags) {
        change(Place::inode(open.ino())).map_err(Failure::errno)?;
        return Ok(0);
    }
    on_path(
        dirfd,
        path,
        |place| change(place).map(|()| 0),
        |dirfd, path| kernel(dirfd, path).map(|done| done as c_int),
    )
}

/// Changes attributes of a descriptor.
fn change_fd(fd: c_int, changes: Changes, kernel: impl FnOnce() -> Result<usize>) -> Result<c_int> {
    if table::get(fd).is_none() {
        return kernel().map(|done| done as c_int);
    }
    let flags = libc::AT_EMPTY_PATH;
    change_at(fd, std::ptr::null(), flags, changes, |_, _| {
        Err(libc::EBADF)
    })
}

fn owner(uid: uid_t, gid: gid_t) -> Changes {
    let bit = |id: u32, bit| if id == u32::MAX { 0 } else { bit };
    Changes {
        set: bit(uid, set::UID) | bit(gid, set::GID),
        uid,
        gid,
        ..Changes::default()
    }
}

fn mode(mode: mode_t) -> Changes {
    Changes {
        set: set::MODE,
        mode,
        ..Changes::default()
    }
}

/// The times of `utimensat`; null is now.
fn times(times: *const timespec) -> Result<Changes> {
    let mut changes = Changes::default();
    if times.is_null() {
        changes.set = set::ATIME_NOW | set::MTIME_NOW;
        return Ok(changes);
    }
    // SAFETY: the caller has the contract of `utimensat`: two times.
    let (access, data) = unsafe { (*times, *times.add(1)) };
    let one = |time: timespec, to, now| match time.tv_nsec {
        libc::UTIME_OMIT => Ok((0, 0, 0)),
        libc::UTIME_NOW => Ok((now, 0, 0)),
        nanoseconds @ 0..1_000_000_000 => Ok((to, time.tv_sec, nanoseconds as u32)),
        _ => Err(libc::EINVAL),
    };
    let access = one(access, set::ATIME, set::ATIME_NOW)?;
    let data = one(data, set::MTIME, set::MTIME_NOW)?;
    changes.set = access.0 | data.0;
    (changes.atime, changes.atime_ns) = (access.1, access.2);
    (changes.mtime, changes.mtime_ns) = (data.1, data.2);
    Ok(changes)
}

fn utimens_at(
    dirfd: c_int,
    path: *const c_char,
    given: *const timespec,
    flags: c_int,
) -> Result<c_int> {
    let kernel = |dirfd, path| syscall!(SYS_utimensat, dirfd, path, given, flags);
    if path.is_null() {
        // As `futimens` calls it.
        return change_fd(dirfd, times(given)?, || kernel(dirfd, path));
    }
    change_at(dirfd, path, flags, times(given)?, kernel)
}

/// The times of calls with microseconds.
fn utimes_at(
    dirfd: c_int,
    path: *const c_char,
    given: *const timeval,
    flags: c_int,
) -> Result<c_int> {
    if given.is_null() {
        return utimens_at(dirfd, path, std::ptr::null(), flags);
    }
    // SAFETY: the caller has the contract of `utimes`: two times.
    let both = unsafe { [*given, *given.add(1)] };
    let both = both.map(|time| timespec {
        tv_sec: time.tv_sec,
        tv_nsec: time.tv_usec.saturating_mul(1_000),
    });
    utimens_at(dirfd, path, both.as_ptr(), flags)
}

hooks! {
    stat(path: *const c_char, to: *mut Stat) -> c_int {
        stat_at(AT, path, to, 0)
    }
    lstat(path: *const c_char, to: *mut Stat) -> c_int {
        stat_at(AT, path, to, NO_FOLLOW)
    }
    fstat(fd: c_int, to: *mut Stat) -> c_int {
        stat_fd(fd, to)
    }
    fstatat(dirfd: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int {
        stat_at(dirfd, path, to, flags)
    }
    __xstat(_version: c_int, path: *const c_char, to: *mut Stat) -> c_int {
        stat_at(AT, path, to, 0)
    }
    __lxstat(_version: c_int, path: *const c_char, to: *mut Stat) -> c_int {
        stat_at(AT, path, to, NO_FOLLOW)
    }
    __fxstat(_version: c_int, fd: c_int, to: *mut Stat) -> c_int {
        stat_fd(fd, to)
    }
    __fxstatat(_version: c_int, dirfd: c_int, path: *const c_char, to: *mut Stat, flags: c_int)
        -> c_int {
        stat_at(dirfd, path, to, flags)
    }
    statx(dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut Statx) -> c_int {
        look(
            dirfd,
            path,
            flags,
            |status| {
                write_statx(to, &filled(status));
                0
            },
            |dirfd, path| {
                syscall!(SYS_statx, dirfd, path, flags, mask, to).map(|done| done as c_int)
            },
        )
    }
    access(path: *const c_char, mode: c_int) -> c_int {
        access_at(AT, path, mode, 0)
    }
    eaccess(path: *const c_char, mode: c_int) -> c_int {
        access_at(AT, path, mode, libc::AT_EACCESS)
    }
    euidaccess(path: *const c_char, mode: c_int) -> c_int {
        access_at(AT, path, mode, libc::AT_EACCESS)
    }
    faccessat(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        access_at(dirfd, path, mode, flags)
    }
    chmod(path: *const c_char, bits: mode_t) -> c_int {
        change_at(AT, path, 0, mode(bits), |dirfd, path| {
            syscall!(SYS_fchmodat, dirfd, path, bits)
        })
    }
    fchmod(fd: c_int, bits: mode_t) -> c_int {
        change_fd(fd, mode(bits), || syscall!(SYS_fchmod, fd, bits))
    }
    fchmodat(dirfd: c_int, path: *const c_char, bits: mode_t, flags: c_int) -> c_int {
        change_at(dirfd, path, flags, mode(bits), |dirfd, path| {
            // The C library emulates the flags.
            match crate::sys::next!(fchmodat: fn(c_int, *const c_char, mode_t, c_int) -> c_int) {
                // SAFETY: the caller has the contract of this function.
                Some(next) => super::open::failed(unsafe { next(dirfd, path, bits, flags) })
                    .map(|done| done as usize),
                None => Err(libc::ENOSYS),
            }
        })
    }
    chown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        change_at(AT, path, 0, owner(uid, gid), |dirfd, path| {
            syscall!(SYS_fchownat, dirfd, path, uid, gid, 0)
        })
    }
    lchown(path: *const c_char, uid: uid_t, gid: gid_t) -> c_int {
        change_at(AT, path, NO_FOLLOW, owner(uid, gid), |dirfd, path| {
            syscall!(SYS_fchownat, dirfd, path, uid, gid, NO_FOLLOW)
        })
    }
    fchown(fd: c_int, uid: uid_t, gid: gid_t) -> c_int {
        change_fd(fd, owner(uid, gid), || syscall!(SYS_fchown, fd, uid, gid))
    }
    fchownat(dirfd: c_int, path: *const c_char, uid: uid_t, gid: gid_t, flags: c_int) -> c_int {
        change_at(dirfd, path, flags, owner(uid, gid), |dirfd, path| {
            syscall!(SYS_fchownat, dirfd, path, uid, gid, flags)
        })
    }
    truncate(path: *const c_char, size: off_t) -> c_int {
        let changes = Changes {
            set: set::SIZE,
            size: u64::try_from(size).map_err(|_| libc::EINVAL)?,
            ..Changes::default()
        };
        change_at(AT, path, 0, changes, |dirfd, path| {
            if dirfd != AT {
                return Err(libc::EBADF);
            }
            syscall!(SYS_truncate, path, size)
        })
    }
    utimensat(dirfd: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        utimens_at(dirfd, path, times, flags)
    }
    futimens(fd: c_int, times: *const timespec) -> c_int {
        utimens_at(fd, std::ptr::null(), times, 0)
    }
    utimes(path: *const c_char, times: *const timeval) -> c_int {
        utimes_at(AT, path, times, 0)
    }
    lutimes(path: *const c_char, times: *const timeval) -> c_int {
        utimes_at(AT, path, times, NO_FOLLOW)
    }
    futimes(fd: c_int, times: *const timeval) -> c_int {
        utimes_at(fd, std::ptr::null(), times, 0)
    }
    futimesat(dirfd: c_int, path: *const c_char, times: *const timeval) -> c_int {
        utimes_at(dirfd, path, times, 0)
    }
    utime(path: *const c_char, times: *const libc::utimbuf) -> c_int {
        if times.is_null() {
            return utimens_at(AT, path, std::ptr::null(), 0);
        }
        // SAFETY: the caller has the contract of this function.
        let times = unsafe { *times };
        let both = [times.actime, times.modtime].map(|tv_sec| timespec { tv_sec, tv_nsec: 0 });
        utimens_at(AT, path, both.as_ptr(), 0)
    }
}

// Both structures are the same on x86-64.
aliases! {
    truncate64 = truncate(path: *const c_char, size: off_t) -> c_int;
}

macro_rules! wide {
    ($($name:ident = $other:ident($($argument:ident: $type:ty),*; $to:ident $(, $flags:ident)?);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($argument: $type,)* $to: *mut Stat64 $(, $flags: c_int)?
        ) -> c_int {
            // SAFETY: the contracts are the same, and so are the structures.
            unsafe { $other($($argument,)* $to.cast::<Stat>() $(, $flags)?) }
        }
    )*};
}

wide! {
    stat64 = stat(path: *const c_char; to);
    lstat64 = lstat(path: *const c_char; to);
    fstat64 = fstat(fd: c_int; to);
    fstatat64 = fstatat(dirfd: c_int, path: *const c_char; to, flags);
    __xstat64 = __xstat(version: c_int, path: *const c_char; to);
    __lxstat64 = __lxstat(version: c_int, path: *const c_char; to);
    __fxstat64 = __fxstat(version: c_int, fd: c_int; to);
    __fxstatat64 = __fxstatat(version: c_int, dirfd: c_int, path: *const c_char; to, flags);
}
