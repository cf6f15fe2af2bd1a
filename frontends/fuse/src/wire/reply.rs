//! The replies to the kernel.

use std::time::Duration;

use super::{
    init::InitReply,
    request::{FileLock, Time},
    writer::{Writer, message},
};

/// An error number of Linux, as in errno(3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(u16);

impl Errno {
    /// No such file or directory.
    pub const ENOENT: Self = Self(2);
    /// The call was interrupted.
    pub const EINTR: Self = Self(4);
    /// The device failed, or something went wrong that has no number.
    pub const EIO: Self = Self(5);
    /// Try again.
    pub const EAGAIN: Self = Self(11);
    /// The argument is invalid.
    pub const EINVAL: Self = Self(22);
    /// The operation does not exist. The kernel does not ask for it again.
    pub const ENOSYS: Self = Self(38);
    /// The versions of the protocol do not match.
    pub const EPROTO: Self = Self(71);
    /// The operation is not supported for this file.
    pub const EOPNOTSUPP: Self = Self(95);

    /// The error of this number. A number that the kernel would refuse, outside of 1 to 511, is EIO.
    pub const fn new(number: i32) -> Self {
        if number >= 1 && number < 512 {
            Self(number as u16)
        } else {
            Self::EIO
        }
    }

    /// The number, from 1 to 511.
    pub const fn number(self) -> i32 {
        self.0 as i32
    }
}

/// `FOPEN_DIRECT_IO`: the page cache is not used for this open file.
pub const OPEN_DIRECT_IO: u32 = 1;
/// `FOPEN_KEEP_CACHE`: cached pages of the file survive the open.
pub const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// `FOPEN_PARALLEL_DIRECT_WRITES`: direct writes to one inode may run side by side.
pub const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// The attributes of an inode, as stat(2) returns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// The inode's number.
    pub inode: u64,
    /// The length in bytes.
    pub size: u64,
    /// Blocks in use, of 512 bytes.
    pub blocks: u64,
    /// The time of the last read.
    pub atime: Time,
    /// The time of the last change of the content.
    pub mtime: Time,
    /// The time of the last change of the inode.
    pub ctime: Time,
    /// The file type and permission bits.
    pub mode: u32,
    /// Names of the inode.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device, of a device node.
    pub rdev: u32,
    /// Bytes of a good transfer.
    pub block_bytes: u32,
}

/// The attributes that statx(2) has and stat(2) has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtendedAttributes {
    /// The attributes that stat(2) has.
    pub basic: Attributes,
    /// `STATX_` bits of the fields that are valid.
    pub mask: u32,
    /// The time of the creation.
    pub btime: Time,
}

/// The answer to a lookup, or to a call that made an inode. The kernel then holds one reference
/// more to the inode, until it forgets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// The attributes. An inode 0 says that the name does not exist, for as long as `name_ttl`.
    pub attributes: Attributes,
    /// Tells inodes apart that had the same number at different times.
    pub generation: u64,
    /// How long the kernel may use the name without asking.
    pub name_ttl: Duration,
    /// How long the kernel may use the attributes without asking.
    pub attributes_ttl: Duration,
}

/// An open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Opened {
    /// The handle that later requests carry.
    pub handle: u64,
    /// `OPEN_` bits of this module.
    pub flags: u32,
}

/// The figures that statfs(2) returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileSystemUsage {
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Blocks that users without privileges may take.
    pub blocks_available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Bytes of the longest name.
    pub name_bytes_max: u32,
}

/// A reply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The request failed.
    Error(Errno),
    /// The request succeeded, and there is nothing to return.
    Done,
    /// To LOOKUP, SYMLINK, MKNOD, MKDIR and LINK.
    Entry(Entry),
    /// To GETATTR and SETATTR: the attributes, and how long the kernel may use them.
    Attributes(Attributes, Duration),
    /// To STATX, likewise.
    ExtendedAttributes(ExtendedAttributes, Duration),
    /// To OPEN and OPENDIR.
    Opened(Opened),
    /// To CREATE and TMPFILE.
    Created(Entry, Opened),
    /// To READ, READLINK, GETXATTR, LISTXATTR, and with [`DirectoryList`] to READDIR.
    Data(&'a [u8]),
    /// To WRITE and COPY_FILE_RANGE: the bytes that were written.
    Written(u32),
    /// To GETXATTR and LISTXATTR of size 0: the length in bytes.
    Length(u32),
    /// To STATFS.
    Usage(FileSystemUsage),
    /// To GETLK: the lock in the way, or one that is [`super::LockKind::Unlocked`].
    Lock(FileLock),
    /// To LSEEK.
    Offset(u64),
    /// To INIT.
    Init(InitReply),
}

impl<'a> Reply<'a> {
    /// Fills `head` with the reply to the request `unique`, and returns the data that follow it.
    /// The kernel takes both in one write.
    pub fn encode(&self, unique: u64, head: &mut Vec<u8>) -> &'a [u8] {
        let code = match self {
            Self::Error(errno) => -errno.number(),
            _ => 0,
        };
        let payload: &'a [u8] = match self {
            Self::Data(data) => data,
            _ => &[],
        };
        message(head, code, unique, payload, |to| self.body(to));
        payload
    }

    fn body(&self, to: &mut Writer<'_>) {
        match self {
            Self::Error(_) | Self::Done | Self::Data(_) => {}
            Self::Entry(entry) => write_entry(to, entry),
            Self::Attributes(attributes, ttl) => {
                to.u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0);
                write_attributes(to, attributes);
            }
            Self::ExtendedAttributes(attributes, ttl) => {
                to.u64(ttl.as_secs()).u32(ttl.subsec_nanos()).zeros(20);
                write_extended(to, attributes);
            }
            Self::Opened(opened) => write_opened(to, *opened),
            Self::Created(entry, opened) => {
                write_entry(to, entry);
                write_opened(to, *opened);
            }
            Self::Written(bytes) | Self::Length(bytes) => {
                to.u32(*bytes).u32(0);
            }
            Self::Usage(usage) => write_usage(to, usage),
            Self::Lock(lock) => {
                to.u64(lock.start)
                    .u64(lock.end)
                    .u32(lock.kind as u32)
                    .u32(lock.pid);
            }
            Self::Offset(offset) => {
                to.u64(*offset);
            }
            Self::Init(init) => init.write(to),
        }
    }
}

fn write_opened(to: &mut Writer<'_>, opened: Opened) {
    to.u64(opened.handle).u32(opened.flags).u32(0);
}

fn write_entry(to: &mut Writer<'_>, entry: &Entry) {
    let (name, attributes) = (entry.name_ttl, entry.attributes_ttl);
    to.u64(entry.attributes.inode).u64(entry.generation);
    to.u64(name.as_secs()).u64(attributes.as_secs());
    to.u32(name.subsec_nanos()).u32(attributes.subsec_nanos());
    write_attributes(to, &entry.attributes);
}

fn write_attributes(to: &mut Writer<'_>, attributes: &Attributes) {
    let times = [attributes.atime, attributes.mtime, attributes.ctime];
    to.u64(attributes.inode)
        .u64(attributes.size)
        .u64(attributes.blocks);
    for time in times {
        to.u64(time.seconds.cast_unsigned());
    }
    for time in times {
        to.u32(time.nanoseconds);
    }
    to.u32(attributes.mode).u32(attributes.links);
    to.u32(attributes.uid).u32(attributes.gid);
    to.u32(attributes.rdev).u32(attributes.block_bytes).u32(0);
}

fn write_extended(to: &mut Writer<'_>, extended: &ExtendedAttributes) {
    let basic = &extended.basic;
    to.u32(extended.mask).u32(basic.block_bytes).u64(0);
    to.u32(basic.links).u32(basic.uid).u32(basic.gid);
    to.u16(basic.mode as u16).u16(0);
    to.u64(basic.inode).u64(basic.size).u64(basic.blocks).u64(0);
    for time in [basic.atime, extended.btime, basic.ctime, basic.mtime] {
        to.u64(time.seconds.cast_unsigned())
            .u32(time.nanoseconds)
            .u32(0);
    }
    // The kernel's numbers of a device: 12 bits of major, 20 of minor, the upper 12 of them on top.
    let (major, minor) = (
        (basic.rdev >> 8) & 0xfff,
        (basic.rdev & 0xff) | ((basic.rdev >> 12) & 0xf_ff00),
    );
    to.u32(major).u32(minor).zeros(8 + 14 * 8);
}

fn write_usage(to: &mut Writer<'_>, usage: &FileSystemUsage) {
    to.u64(usage.blocks)
        .u64(usage.blocks_free)
        .u64(usage.blocks_available);
    to.u64(usage.inodes).u64(usage.inodes_free);
    to.u32(usage.block_bytes)
        .u32(usage.name_bytes_max)
        .u32(usage.block_bytes)
        .zeros(4 + 6 * 4);
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// The inode's number.
    pub inode: u64,
    /// The position after this entry, from which a later READDIR continues. Never 0.
    pub cookie: u64,
    /// The file type, in the bits of a mode.
    pub mode: u32,
    /// The name, of any bytes but NUL and a slash.
    pub name: &'a [u8],
}

/// Collects the entries of one reply to READDIR or READDIRPLUS.
#[derive(Debug)]
pub struct DirectoryList {
    bytes: Vec<u8>,
    size: usize,
}

impl DirectoryList {
    /// An empty list for a request of `size` bytes.
    pub fn new(size: u32) -> Self {
        let (bytes, size) = (Vec::new(), size as usize);
        Self { bytes, size }
    }

    /// Adds an entry to a reply to READDIR. Returns `false` if it does not fit; the list is then
    /// complete.
    #[must_use]
    pub fn push(&mut self, entry: DirectoryEntry<'_>) -> bool {
        self.add(None, entry)
    }

    /// Adds an entry to a reply to READDIRPLUS. If it returns `true`, the kernel holds one
    /// reference more to the inode, as after a lookup.
    #[must_use]
    pub fn push_with(&mut self, found: &Entry, entry: DirectoryEntry<'_>) -> bool {
        self.add(Some(found), entry)
    }

    fn add(&mut self, found: Option<&Entry>, entry: DirectoryEntry<'_>) -> bool {
        let start = self.bytes.len();
        let mut to = Writer(&mut self.bytes);
        if let Some(found) = found {
            write_entry(&mut to, found);
        }
        to.u64(entry.inode).u64(entry.cookie);
        to.u32(entry.name.len() as u32)
            .u32((entry.mode >> 12) & 0xf);
        to.bytes(entry.name);
        let padding = to.0.len().next_multiple_of(8) - to.0.len();
        to.zeros(padding);
        let fits = self.bytes.len() <= self.size;
        if !fits {
            self.bytes.truncate(start);
        }
        fits
    }

    /// The reply.
    pub fn reply(&self) -> Reply<'_> {
        Reply::Data(&self.bytes)
    }
}
