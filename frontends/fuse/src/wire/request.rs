//! The requests of the kernel, as values that borrow from the buffer that was read.

pub use files::model::{SetTime, Time};

/// A request of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// The caller and the inode of the request.
    pub header: Header,
    /// The operation that the kernel asks for.
    pub operation: Operation<'a>,
}

/// The fields at the start of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The operation's number in `fuse.h`.
    pub opcode: u32,
    /// Names the request in its reply and in an interrupt.
    pub unique: u64,
    /// The inode that the request is about; 0 if it is about none. For calls that make or remove a
    /// name, it is the directory.
    pub inode: u64,
    /// The calling thread's user for access to files.
    pub uid: u32,
    /// The calling thread's group for access to files.
    pub gid: u32,
    /// The calling thread; 0 for a request of the kernel itself.
    pub pid: u32,
}

/// An operation that a request asks for. The fields carry the names of `fuse.h`, spelled out.
/// `flags` of an open file are those of open(2).
#[allow(missing_docs, reason = "fuse.h and the man pages document the fields")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation<'a> {
    /// The first request of a connection.
    Init(super::init::Init),
    Lookup(&'a [u8]),
    /// The kernel drops references to the inode: as many as lookups returned it. No reply.
    Forget(u64),
    /// The same for several inodes. No reply.
    BatchForget(Forgets<'a>),
    /// By the open file, if there is one.
    GetAttr(Option<u64>),
    SetAttr(SetAttr),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        mode: u32,
        rdev: u32,
        umask: u32,
        name: &'a [u8],
    },
    MkDir {
        mode: u32,
        umask: u32,
        name: &'a [u8],
    },
    Unlink(&'a [u8]),
    RmDir(&'a [u8]),
    /// RENAME and RENAME2; `flags` are those of renameat2(2).
    Rename {
        directory_new: u64,
        flags: u32,
        name: &'a [u8],
        name_new: &'a [u8],
    },
    /// Gives `inode` another name in the directory of the header.
    Link {
        inode: u64,
        name: &'a [u8],
    },
    /// With `kills_privileges` the set-user-ID and set-group-ID bits go (O_TRUNC).
    Open {
        flags: u32,
        kills_privileges: bool,
    },
    /// The flags of open(2).
    OpenDir(u32),
    Read(Read),
    ReadDir(Read),
    /// READDIR that also looks each entry up.
    ReadDirPlus(Read),
    Write(Write<'a>),
    StatFs,
    Release(Release),
    ReleaseDir(Release),
    FSync {
        handle: u64,
        data_only: bool,
    },
    FSyncDir {
        handle: u64,
        data_only: bool,
    },
    /// Sent at each close(2) of a descriptor. It also drops the owner's fcntl locks.
    Flush {
        handle: u64,
        lock_owner: u64,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
    },
    /// Size 0 asks for the length alone.
    GetXattr {
        size: u32,
        name: &'a [u8],
    },
    /// The most bytes to return. 0 asks for the length alone.
    ListXattr(u32),
    RemoveXattr(&'a [u8]),
    /// Which lock keeps this one from being granted?
    GetLock(LockRequest),
    SetLock(LockRequest),
    /// Waits until the lock is granted, or the request is interrupted.
    SetLockWait(LockRequest),
    /// The mask of access(2).
    Access(u32),
    Create {
        flags: u32,
        mode: u32,
        umask: u32,
        kills_privileges: bool,
        name: &'a [u8],
    },
    /// An open file without a name.
    TmpFile {
        flags: u32,
        mode: u32,
        umask: u32,
    },
    /// The caller of this request, by its `unique`, got a signal.
    Interrupt(u64),
    Destroy,
    Fallocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    LSeek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    CopyFileRange(CopyFileRange),
    SyncFs,
    StatX {
        handle: Option<u64>,
        flags: u32,
        mask: u32,
    },
    /// The kernel answers a notification that we never send. No reply.
    NotifyReply,
    /// Any other operation, POLL, IOCTL and BMAP among them. ENOSYS is right: the kernel then does
    /// without it, and does not ask again.
    Unsupported,
}

/// The inodes of a BATCH_FORGET with the references that the kernel drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgets<'a>(pub(super) &'a [u8]);

impl Forgets<'_> {
    /// Pairs of an inode and a count of lookups.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let number = |bytes: &[u8]| {
            let bytes = bytes.try_into().expect("half of a chunk of 16 bytes");
            u64::from_ne_bytes(bytes)
        };
        let pairs = self.0.chunks_exact(16);
        pairs.map(move |pair| (number(&pair[..8]), number(&pair[8..])))
    }
}

/// The attributes that a SETATTR changes; the others stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetAttr {
    /// The file type and permission bits.
    pub mode: Option<u32>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The length in bytes.
    pub size: Option<u64>,
    /// The time of the last read.
    pub atime: Option<SetTime>,
    /// The time of the last change of the content.
    pub mtime: Option<SetTime>,
    /// The time of the last change of the inode.
    pub ctime: Option<Time>,
    /// The open file by which the change is asked for.
    pub handle: Option<u64>,
    /// Whose mandatory locks do not hinder the change.
    pub lock_owner: Option<u64>,
    /// Whether the set-user-ID and set-group-ID bits go.
    pub kills_privileges: bool,
}

/// A read of a file or a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// The open file.
    pub handle: u64,
    /// A position in bytes; in a directory, the cookie of the last entry that was returned.
    pub offset: u64,
    /// The most bytes to return, at most [`super::TRANSFER_BYTES_MAX`].
    pub size: u32,
    /// The flags of open(2), as they are now.
    pub flags: u32,
    /// The lock owner that reads, if locks matter.
    pub lock_owner: Option<u64>,
}

/// A write to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write<'a> {
    /// The open file.
    pub handle: u64,
    /// A position in bytes. With O_APPEND in `flags` the kernel computed it from a size that it may
    /// have cached.
    pub offset: u64,
    /// The data.
    pub data: &'a [u8],
    /// The flags of open(2), as they are now.
    pub flags: u32,
    /// The lock owner that writes, if locks matter.
    pub lock_owner: Option<u64>,
    /// Whether the kernel writes back a cached page, so that the handle is a guess.
    pub is_cached: bool,
    /// Whether the set-user-ID and set-group-ID bits go.
    pub kills_privileges: bool,
}

/// A copy from the inode of the header to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFileRange {
    /// The open file to read.
    pub handle_in: u64,
    /// The position to read from, in bytes.
    pub offset_in: u64,
    /// The inode to write.
    pub inode_out: u64,
    /// The open file to write.
    pub handle_out: u64,
    /// The position to write to, in bytes.
    pub offset_out: u64,
    /// Bytes to copy.
    pub length: u64,
    /// The flags of copy_file_range(2): 0 today.
    pub flags: u64,
}

/// The last close of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The open file.
    pub handle: u64,
    /// The flags of open(2), as they are now.
    pub flags: u32,
    /// The owner whose flock lock goes, if there may be one.
    pub flock_owner: Option<u64>,
}

/// A question about a lock, or a change of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest {
    /// The open file.
    pub handle: u64,
    /// The owner within this mount: a process for fcntl, an open file for flock.
    pub owner: u64,
    /// The lock.
    pub lock: FileLock,
    /// Which kind of locks it belongs to.
    pub style: LockStyle,
}

/// Locks of flock(2) and of fcntl(2) do not see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockStyle {
    /// A lock of the whole file by an open file.
    Flock,
    /// A lock of a range by a process.
    Posix,
}

/// A lock of a range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLock {
    /// The first byte.
    pub start: u64,
    /// The last byte, included; `i64::MAX` is the end of the file, wherever it is.
    pub end: u64,
    /// The kind of the lock.
    pub kind: LockKind,
    /// The process that holds the lock.
    pub pid: u32,
}

/// The access that a lock leaves to other owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Others may read: `F_RDLCK`.
    Shared = 0,
    /// No others: `F_WRLCK`.
    Exclusive = 1,
    /// No lock: `F_UNLCK`.
    Unlocked = 2,
}
