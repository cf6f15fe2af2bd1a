//! The decoder of requests.

use super::{
    TRANSFER_BYTES_MAX,
    init::Init,
    reader::{Fault, Reader},
    request::{
        CopyFileRange, FileLock, Forgets, Header, LockKind, LockRequest, LockStyle, Operation,
        Read, Release, Request, SetAttr, SetTime, Time, Write,
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
/// `FUSE_READ_LOCKOWNER` and `FUSE_WRITE_LOCKOWNER`
const TRANSFER_LOCK_OWNER: u32 = 1 << 1;
/// `FUSE_WRITE_CACHE`
const WRITE_CACHE: u32 = 1;
/// `FUSE_WRITE_KILL_SUIDGID`
const WRITE_KILL: u32 = 1 << 2;
/// The highest time within a second.
const NANOSECONDS_MAX: u32 = 999_999_999;

impl<'a> Request<'a> {
    /// Decodes the message that one read of the device returned.
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
        1 | 6 | 8..=13 | 21..=24 | 35 | 45 | 51 => return named(opcode, from),
        14..=16 | 18 | 20 | 25 | 27..=30 | 43 | 44 | 46 | 47 => return opened(opcode, from),
        2 => Operation::Forget(from.u64()?),
        3 => {
            let (flags, handle) = (from.padded()?, from.u64()?);
            Operation::GetAttr((flags & GETATTR_HANDLE != 0).then_some(handle))
        }
        4 => Operation::SetAttr(set_attr(from)?),
        5 => Operation::ReadLink,
        17 => Operation::StatFs,
        26 => Operation::Init(Init::decode(from)?),
        31 => Operation::GetLock(lock(from)?),
        32 => Operation::SetLock(lock(from)?),
        33 => Operation::SetLockWait(lock(from)?),
        34 => Operation::Access(from.padded()?),
        36 => Operation::Interrupt(from.u64()?),
        38 => Operation::Destroy,
        42 => {
            let count = from.padded()? as usize;
            let bytes = count.checked_mul(16).ok_or(Fault::Truncated)?;
            Operation::BatchForget(Forgets(from.bytes(bytes)?))
        }
        50 => from.u64().map(|_| Operation::SyncFs)?,
        52 => {
            let (getattr_flags, handle) = (from.padded()?, from.u64()?);
            Operation::StatX {
                handle: (getattr_flags & GETATTR_HANDLE != 0).then_some(handle),
                flags: from.u32()?,
                mask: from.u32()?,
            }
        }
        _ => {
            from.rest();
            let is_reply = opcode == 41;
            return Ok(if is_reply {
                Operation::NotifyReply
            } else {
                Operation::Unsupported
            });
        }
    })
}

/// Operations on a name: of an entry in a directory, or of an extended attribute. The fields are
/// read in the order in which they are written here.
fn named<'a>(opcode: u32, from: &mut Reader<'a>) -> Result<Operation<'a>, Fault> {
    Ok(match opcode {
        1 => Operation::Lookup(from.name()?),
        6 => Operation::Symlink {
            name: from.name()?,
            target: from.text()?,
        },
        8 => Operation::MkNod {
            mode: from.u32()?,
            rdev: from.u32()?,
            umask: from.padded()?,
            name: from.name()?,
        },
        9 => Operation::MkDir {
            mode: from.u32()?,
            umask: from.u32()?,
            name: from.name()?,
        },
        10 => Operation::Unlink(from.name()?),
        11 => Operation::RmDir(from.name()?),
        12 | 45 => Operation::Rename {
            directory_new: from.u64()?,
            flags: if opcode == 45 { from.padded()? } else { 0 },
            name: from.name()?,
            name_new: from.name()?,
        },
        13 => Operation::Link {
            inode: from.u64()?,
            name: from.name()?,
        },
        21 => {
            let (size, flags) = (transfer(from.u32()?)?, from.u32()?);
            let (name, value) = (from.text()?, from.bytes(size as usize)?);
            Operation::SetXattr { name, value, flags }
        }
        22 => Operation::GetXattr {
            size: transfer(from.padded()?)?,
            name: from.text()?,
        },
        23 => Operation::ListXattr(transfer(from.padded()?)?),
        24 => Operation::RemoveXattr(from.text()?),
        35 => Operation::Create {
            flags: from.u32()?,
            mode: from.u32()?,
            umask: from.u32()?,
            kills_privileges: from.u32()? & OPEN_KILL != 0,
            name: from.name()?,
        },
        _ => {
            let (flags, mode, umask) = (from.u32()?, from.u32()?, from.padded()?);
            // The kernel sends "/" for the name that the file does not have.
            from.text()?;
            Operation::TmpFile { flags, mode, umask }
        }
    })
}

/// Operations that open a file, or use an open one. The fields are read in the order in which they
/// are written here.
fn opened<'a>(opcode: u32, from: &mut Reader<'a>) -> Result<Operation<'a>, Fault> {
    Ok(match opcode {
        14 => Operation::Open {
            flags: from.u32()?,
            kills_privileges: from.u32()? & OPEN_KILL != 0,
        },
        15 => Operation::Read(read(from)?),
        16 => Operation::Write(write(from)?),
        18 => Operation::Release(release(from)?),
        20 => Operation::FSync {
            handle: from.u64()?,
            data_only: from.padded()? & FSYNC_DATA != 0,
        },
        25 => Operation::Flush {
            handle: from.u64()?,
            lock_owner: from.u64().and_then(|_| from.u64())?,
        },
        27 => Operation::OpenDir(from.padded()?),
        28 => Operation::ReadDir(read(from)?),
        29 => Operation::ReleaseDir(release(from)?),
        30 => Operation::FSyncDir {
            handle: from.u64()?,
            data_only: from.padded()? & FSYNC_DATA != 0,
        },
        43 => Operation::Fallocate {
            handle: from.u64()?,
            offset: from.u64()?,
            length: from.u64()?,
            mode: from.padded()?,
        },
        44 => Operation::ReadDirPlus(read(from)?),
        46 => Operation::LSeek {
            handle: from.u64()?,
            offset: from.u64()?,
            whence: from.padded()?,
        },
        _ => Operation::CopyFileRange(CopyFileRange {
            handle_in: from.u64()?,
            offset_in: from.u64()?,
            inode_out: from.u64()?,
            handle_out: from.u64()?,
            offset_out: from.u64()?,
            length: from.u64()?,
            flags: from.u64()?,
        }),
    })
}

/// READ and WRITE begin alike: the operation's own flags, and the read that has the other fields.
fn transfer_head(from: &mut Reader<'_>) -> Result<(u32, Read), Fault> {
    let (handle, offset, size) = (from.u64()?, from.u64()?, transfer(from.u32()?)?);
    let (own_flags, owner, flags) = (from.u32()?, from.u64()?, from.padded()?);
    let read = Read {
        handle,
        offset,
        size,
        flags,
        lock_owner: (own_flags & TRANSFER_LOCK_OWNER != 0).then_some(owner),
    };
    Ok((own_flags, read))
}

fn read(from: &mut Reader<'_>) -> Result<Read, Fault> {
    transfer_head(from).map(|(_, read)| read)
}

fn write<'a>(from: &mut Reader<'a>) -> Result<Write<'a>, Fault> {
    let (write_flags, head) = transfer_head(from)?;
    Ok(Write {
        handle: head.handle,
        offset: head.offset,
        data: from.bytes(head.size as usize)?,
        flags: head.flags,
        lock_owner: head.lock_owner,
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
    let (pid, flags) = (from.u32()?, from.padded()?);
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

/// The bits of `fuse_setattr_in.valid`, by their place: mode, uid, gid, size, atime, mtime, fh,
/// atime now, mtime now, lock owner, ctime, kill privileges.
fn set_attr(from: &mut Reader<'_>) -> Result<SetAttr, Fault> {
    let valid = from.padded()?;
    let (handle, size, lock_owner) = (from.u64()?, from.u64()?, from.u64()?);
    let seconds = [from.u64()?, from.u64()?, from.u64()?];
    let nanoseconds = [from.u32()?, from.u32()?, from.u32()?];
    let (mode, uid, gid) = (from.padded()?, from.u32()?, from.padded()?);
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
        Ok(time(index, bit)?.map(SetTime::To))
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
