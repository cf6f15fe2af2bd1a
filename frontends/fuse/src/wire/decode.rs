//! The decoder of requests.

use super::{
    TRANSFER_BYTES_MAX,
    init::Init,
    reader::{Fault, Reader},
    request::{
        FileLock, Forgets, Header, LockKind, LockRequest, LockStyle, Operation, Read, Release,
        Request, SetAttr, SetTime, Time, Write,
    },
};

/// `FUSE_GETATTR_FH`
const GETATTR_HANDLE: u32 = 1;
/// `FUSE_LK_FLOCK`
const LOCK_FLOCK: u32 = 1;
/// `FUSE_OPEN_KILL_SUIDGID`
const OPEN_KILL: u32 = 1;
/// `FUSE_FSYNC_FDATASYNC`
const FSYNC_DATA: u32 = 1;
/// `FUSE_RELEASE_FLOCK_UNLOCK`
const RELEASE_FLOCK: u32 = 1 << 1;
/// `FUSE_READ_LOCKOWNER`
const READ_LOCK_OWNER: u32 = 1 << 1;
/// `FUSE_WRITE_CACHE`, `FUSE_WRITE_LOCKOWNER` and `FUSE_WRITE_KILL_SUIDGID`
const WRITE_CACHE: u32 = 1;
const WRITE_LOCK_OWNER: u32 = 1 << 1;
const WRITE_KILL: u32 = 1 << 2;
/// The highest time within a second.
const NANOSECONDS_MAX: u32 = 999_999_999;

impl<'a> Request<'a> {
    /// Decodes what one read of the device returned.
    ///
    /// The header is returned apart, so that a request with a fault in its body can be refused.
    ///
    /// # Errors
    /// A [`Fault`] of the header: nothing can be answered.
    pub fn decode(message: &'a [u8]) -> Result<(Header, Result<Self, Fault>), Fault> {
        let mut reader = Reader::new(message);
        let said = reader.u32()?;
        if usize::try_from(said) != Ok(message.len()) {
            let read = message.len();
            return Err(Fault::Length { said, read });
        }
        let header = Header {
            opcode: reader.u32()?,
            unique: reader.u64()?,
            inode: reader.u64()?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            pid: reader.u32()?,
        };
        let extension = usize::from(reader.u16()?) * 8;
        reader.u16()?;
        let body = reader.rest();
        // Extensions follow the body. We negotiate none, and skip them.
        let length = body.len().checked_sub(extension);
        let operation = length.ok_or(Fault::Truncated).and_then(|length| {
            let mut reader = Reader::new(&body[..length]);
            let operation = operation(header.opcode, &mut reader)?;
            reader.end()?;
            Ok(operation)
        });
        Ok((
            header,
            operation.map(|operation| Self { header, operation }),
        ))
    }
}

fn operation<'a>(opcode: u32, from: &mut Reader<'a>) -> Result<Operation<'a>, Fault> {
    Ok(match opcode {
        1 | 6 | 8..=13 | 35 | 45 | 51 => named(opcode, from)?,
        14..=16 | 18 | 20 | 25 | 27..=30 | 43 | 44 | 46 | 47 => opened(opcode, from)?,
        21..=24 => xattr(opcode, from)?,
        2 => Operation::Forget {
            lookups: from.u64()?,
        },
        3 => {
            let (flags, _, handle) = (from.u32()?, from.u32()?, from.u64()?);
            let handle = (flags & GETATTR_HANDLE != 0).then_some(handle);
            Operation::GetAttr { handle }
        }
        4 => Operation::SetAttr(set_attr(from)?),
        5 => Operation::ReadLink,
        17 => Operation::StatFs,
        26 => Operation::Init(Init::decode(from)?),
        31 => Operation::GetLock(lock(from)?),
        32 => Operation::SetLock(lock(from)?),
        33 => Operation::SetLockWait(lock(from)?),
        34 => {
            let (mask, _) = (from.u32()?, from.u32()?);
            Operation::Access { mask }
        }
        36 => Operation::Interrupt {
            unique: from.u64()?,
        },
        38 => Operation::Destroy,
        42 => batch_forget(from)?,
        50 => {
            from.u64()?;
            Operation::SyncFs
        }
        52 => {
            let (flags, _, handle) = (from.u32()?, from.u32()?, from.u64()?);
            let handle = (flags & GETATTR_HANDLE != 0).then_some(handle);
            let (flags, mask) = (from.u32()?, from.u32()?);
            Operation::StatX {
                handle,
                flags,
                mask,
            }
        }
        41 => {
            from.rest();
            Operation::NotifyReply
        }
        _ => {
            from.rest();
            Operation::Unsupported
        }
    })
}

/// Operations on a directory and a name in it.
fn named<'a>(opcode: u32, from: &mut Reader<'a>) -> Result<Operation<'a>, Fault> {
    Ok(match opcode {
        1 => Operation::Lookup { name: from.name()? },
        6 => Operation::Symlink {
            name: from.name()?,
            target: from.text()?,
        },
        8 => {
            let (mode, rdev, umask, _) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
            Operation::MkNod {
                name: from.name()?,
                mode,
                rdev,
                umask,
            }
        }
        9 => {
            let (mode, umask) = (from.u32()?, from.u32()?);
            Operation::MkDir {
                name: from.name()?,
                mode,
                umask,
            }
        }
        10 => Operation::Unlink { name: from.name()? },
        11 => Operation::RmDir { name: from.name()? },
        12 | 45 => {
            let directory_new = from.u64()?;
            let (flags, _) = if opcode == 45 {
                (from.u32()?, from.u32()?)
            } else {
                (0, 0)
            };
            let (name, name_new) = (from.name()?, from.name()?);
            Operation::Rename {
                name,
                directory_new,
                name_new,
                flags,
            }
        }
        13 => Operation::Link {
            inode: from.u64()?,
            name: from.name()?,
        },
        _ => {
            let (flags, mode, umask) = (from.u32()?, from.u32()?, from.u32()?);
            let kills_privileges = from.u32()? & OPEN_KILL != 0;
            if opcode == 35 {
                let name = from.name()?;
                Operation::Create {
                    name,
                    flags,
                    mode,
                    umask,
                    kills_privileges,
                }
            } else {
                // The kernel sends "/" for the name that the file does not have.
                from.text()?;
                Operation::TmpFile { flags, mode, umask }
            }
        }
    })
}

/// Operations that open a file, or use an open one.
fn opened<'a>(opcode: u32, from: &mut Reader<'a>) -> Result<Operation<'a>, Fault> {
    Ok(match opcode {
        14 | 27 => {
            let (flags, open_flags) = (from.u32()?, from.u32()?);
            match opcode {
                14 => Operation::Open {
                    flags,
                    kills_privileges: open_flags & OPEN_KILL != 0,
                },
                _ => Operation::OpenDir { flags },
            }
        }
        15 => Operation::Read(read(from)?),
        16 => Operation::Write(write(from)?),
        18 => Operation::Release(release(from)?),
        20 | 30 => {
            let (handle, flags, _) = (from.u64()?, from.u32()?, from.u32()?);
            let data_only = flags & FSYNC_DATA != 0;
            match opcode {
                20 => Operation::FSync { handle, data_only },
                _ => Operation::FSyncDir { handle, data_only },
            }
        }
        25 => {
            let (handle, _, lock_owner) = (from.u64()?, from.u64()?, from.u64()?);
            Operation::Flush { handle, lock_owner }
        }
        28 => Operation::ReadDir(read(from)?),
        29 => Operation::ReleaseDir(release(from)?),
        43 => {
            let (handle, offset, length) = (from.u64()?, from.u64()?, from.u64()?);
            let (mode, _) = (from.u32()?, from.u32()?);
            Operation::Fallocate {
                handle,
                offset,
                length,
                mode,
            }
        }
        44 => Operation::ReadDirPlus(read(from)?),
        46 => {
            let (handle, offset, whence, _) = (from.u64()?, from.u64()?, from.u32()?, from.u32()?);
            Operation::LSeek {
                handle,
                offset,
                whence,
            }
        }
        _ => Operation::CopyFileRange {
            handle_in: from.u64()?,
            offset_in: from.u64()?,
            inode_out: from.u64()?,
            handle_out: from.u64()?,
            offset_out: from.u64()?,
            length: from.u64()?,
            flags: from.u64()?,
        },
    })
}

fn xattr<'a>(opcode: u32, from: &mut Reader<'a>) -> Result<Operation<'a>, Fault> {
    Ok(match opcode {
        21 => {
            let (size, flags) = (transfer(from.u32()?)?, from.u32()?);
            let (name, value) = (from.text()?, from.bytes(size as usize)?);
            Operation::SetXattr { name, value, flags }
        }
        22 | 23 => {
            let (size, _) = (transfer(from.u32()?)?, from.u32()?);
            match opcode {
                22 => Operation::GetXattr {
                    name: from.text()?,
                    size,
                },
                _ => Operation::ListXattr { size },
            }
        }
        _ => Operation::RemoveXattr { name: from.text()? },
    })
}

fn read(from: &mut Reader<'_>) -> Result<Read, Fault> {
    let (handle, offset, size) = (from.u64()?, from.u64()?, transfer(from.u32()?)?);
    let (read_flags, lock_owner) = (from.u32()?, from.u64()?);
    let (flags, _) = (from.u32()?, from.u32()?);
    let lock_owner = (read_flags & READ_LOCK_OWNER != 0).then_some(lock_owner);
    Ok(Read {
        handle,
        offset,
        size,
        flags,
        lock_owner,
    })
}

fn write<'a>(from: &mut Reader<'a>) -> Result<Write<'a>, Fault> {
    let (handle, offset, size) = (from.u64()?, from.u64()?, transfer(from.u32()?)?);
    let (write_flags, lock_owner) = (from.u32()?, from.u64()?);
    let (flags, _) = (from.u32()?, from.u32()?);
    Ok(Write {
        handle,
        offset,
        data: from.bytes(size as usize)?,
        flags,
        lock_owner: (write_flags & WRITE_LOCK_OWNER != 0).then_some(lock_owner),
        is_cached: write_flags & WRITE_CACHE != 0,
        kills_privileges: write_flags & WRITE_KILL != 0,
    })
}

fn transfer(size: u32) -> Result<u32, Fault> {
    in_range(size <= TRANSFER_BYTES_MAX, "size", size.into()).map(|()| size)
}

fn in_range(is_right: bool, field: &'static str, value: u64) -> Result<(), Fault> {
    if is_right {
        Ok(())
    } else {
        Err(Fault::Value { field, value })
    }
}

fn release(from: &mut Reader<'_>) -> Result<Release, Fault> {
    let (handle, flags, release_flags) = (from.u64()?, from.u32()?, from.u32()?);
    let owner = from.u64()?;
    let flock_owner = (release_flags & RELEASE_FLOCK != 0).then_some(owner);
    Ok(Release {
        handle,
        flags,
        flock_owner,
    })
}

fn lock(from: &mut Reader<'_>) -> Result<LockRequest, Fault> {
    let (handle, owner) = (from.u64()?, from.u64()?);
    let (start, end) = (from.u64()?, from.u64()?);
    in_range(start <= end, "end", end)?;
    let kind = match from.u32()? {
        0 => LockKind::Shared,
        1 => LockKind::Exclusive,
        2 => LockKind::Unlocked,
        value => {
            return Err(Fault::Value {
                field: "type",
                value: value.into(),
            });
        }
    };
    let (pid, flags, _) = (from.u32()?, from.u32()?, from.u32()?);
    let style = if flags & LOCK_FLOCK == 0 {
        LockStyle::Posix
    } else {
        LockStyle::Flock
    };
    let lock = FileLock {
        start,
        end,
        kind,
        pid,
    };
    Ok(LockRequest {
        handle,
        owner,
        lock,
        style,
    })
}

fn batch_forget<'a>(from: &mut Reader<'a>) -> Result<Operation<'a>, Fault> {
    let (count, _) = (from.u32()? as usize, from.u32()?);
    let bytes = count.checked_mul(16).ok_or(Fault::Truncated)?;
    Ok(Operation::BatchForget(Forgets(from.bytes(bytes)?)))
}

/// The bits of `fuse_setattr_in.valid`, by their place: mode, uid, gid, size, atime, mtime, fh,
/// atime now, mtime now, lock owner, ctime, kill privileges.
fn set_attr(from: &mut Reader<'_>) -> Result<SetAttr, Fault> {
    let (valid, _) = (from.u32()?, from.u32()?);
    let (handle, size, lock_owner) = (from.u64()?, from.u64()?, from.u64()?);
    let seconds = [from.u64()?, from.u64()?, from.u64()?];
    let nanoseconds = [from.u32()?, from.u32()?, from.u32()?];
    let (mode, _, uid, gid, _) = (
        from.u32()?,
        from.u32()?,
        from.u32()?,
        from.u32()?,
        from.u32()?,
    );
    let has = |bit: u32| valid & (1 << bit) != 0;
    let time = |index: usize, bit: u32| -> Result<Option<Time>, Fault> {
        if !has(bit) {
            return Ok(None);
        }
        let (seconds, nanoseconds) = (seconds[index].cast_signed(), nanoseconds[index]);
        in_range(nanoseconds <= NANOSECONDS_MAX, "nsec", nanoseconds.into())?;
        Ok(Some(Time {
            seconds,
            nanoseconds,
        }))
    };
    let now_or = |index: usize, bit: u32, now: u32| {
        if has(bit) && has(now) {
            return Ok(Some(SetTime::Now));
        }
        Ok(time(index, bit)?.map(SetTime::At))
    };
    Ok(SetAttr {
        mode: has(0).then_some(mode),
        uid: has(1).then_some(uid),
        gid: has(2).then_some(gid),
        size: has(3).then_some(size),
        atime: now_or(0, 4, 7)?,
        mtime: now_or(1, 5, 8)?,
        ctime: time(2, 10)?,
        handle: has(6).then_some(handle),
        lock_owner: has(9).then_some(lock_owner),
        kills_privileges: has(11),
    })
}
