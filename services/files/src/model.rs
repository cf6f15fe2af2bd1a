//! The types of calls: inodes, attributes, and the options of operations.

use bytes::Bytes;

/// The number of an inode. It is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// The type bits of a mode.
const TYPE_BITS: u32 = 0o170_000;

/// The type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A regular file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A FIFO. The kernel of each machine has its content.
    Fifo = 4,
    /// The name of a socket of one machine.
    Socket = 5,
    /// A character device, whose number is its size.
    CharacterDevice = 6,
    /// A block device, whose number is its size.
    BlockDevice = 7,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::File,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::Socket,
        Self::CharacterDevice,
        Self::BlockDevice,
    ];

    pub(crate) fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    /// The type bits of a mode.
    pub fn type_bits(self) -> u32 {
        match self {
            Self::File => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::CharacterDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
        }
    }

    /// The kind that `mknod` makes for a mode; `None` for those that it cannot make.
    pub(crate) fn of_node(mode: u32) -> Option<Self> {
        match mode & TYPE_BITS {
            0 => Some(Self::File),
            bits => Self::ALL.into_iter().find(|kind| {
                kind.type_bits() == bits && !matches!(kind, Self::Directory | Self::Symlink)
            }),
        }
    }

    /// Whether its size is the number of a device.
    pub fn is_device(self) -> bool {
        matches!(self, Self::CharacterDevice | Self::BlockDevice)
    }
}

/// A moment since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds after it, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// The permission bits and the owner, as `chmod` and `chown` set them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The mode without the type: at most `0o7777`.
    pub mode: u32,
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl Access {
    /// Set-user-ID.
    pub const SETUID: u32 = 0o4000;
    /// Set-group-ID; on a directory: new inodes in it take its group.
    pub const SETGID: u32 = 0o2000;

    /// That of a new inode, in a directory with the access `above`.
    pub(crate) fn created_in(self, above: Self, kind: Kind) -> Self {
        let mut access = Self {
            mode: self.mode & 0o7777,
            ..self
        };
        if above.mode & Self::SETGID != 0 {
            access.gid = above.gid;
            if kind == Kind::Directory {
                access.mode |= Self::SETGID;
            }
        }
        access
    }

    /// Without the bits that a write or a new owner takes away.
    pub(crate) fn without_privileges(self) -> Self {
        let is_group_executable = self.mode & 0o010 != 0;
        let taken = Self::SETUID | if is_group_executable { Self::SETGID } else { 0 };
        Self {
            mode: self.mode & !taken,
            ..self
        }
    }
}

/// A name that a lookup found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: Kind,
    /// Its permissions and owner.
    pub access: Access,
}

/// All that `stat` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: Kind,
    /// Its permissions and owner.
    pub access: Access,
    /// The number of names; of a directory 2 and one for each directory in it.
    pub links: u64,
    /// The length in bytes; of all but files and symbolic links 0.
    pub size: u64,
    /// The number of a device; of all else 0.
    pub device: u32,
    /// The last change of the data.
    pub mtime: Time,
    /// The last change of the data or the attributes.
    pub ctime: Time,
    /// The last access, as far as it was recorded.
    pub atime: Time,
}

impl Attributes {
    /// The allocated space in units of 512 bytes: `st_blocks`. It is that of a file without holes,
    /// because counting the blocks of each file would cost a scan for each `stat`. So `du` counts
    /// holes, and a program must look for holes with `lseek`, as `cp` and `tar` do.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(512)
    }
}

/// The changes of `chmod`, `chown` and `utimensat`, in one call. Absent ones change nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// The mode; bits beyond `0o7777` are ignored.
    pub mode: Option<u32>,
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The length in bytes.
    pub size: Option<u64>,
    /// The last access.
    pub atime: Option<SetTime>,
    /// The last change of the data.
    pub mtime: Option<SetTime>,
    /// Whether a change of the size takes the set-user-ID and set-group-ID bits away.
    pub privileges: Privileges,
}

/// A new time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This one.
    To(Time),
}

/// The effect of a write on the set-user-ID and set-group-ID bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Privileges {
    /// It leaves them.
    #[default]
    Keep,
    /// It clears them, as a write by anyone but root does.
    Clear,
}

/// The flags of `renameat2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// The target is replaced if it exists.
    Replace,
    /// `RENAME_NOREPLACE`: the target must not exist.
    NoReplace,
    /// `RENAME_EXCHANGE`: both names exist, and change places.
    Exchange,
}

/// The modes of `fallocate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// The file becomes at least as long as the range. No space is reserved.
    Extend,
    /// `FALLOC_FL_KEEP_SIZE`: nothing changes, since no space is reserved.
    KeepSize,
    /// `FALLOC_FL_PUNCH_HOLE`, always with `FALLOC_FL_KEEP_SIZE`.
    PunchHole,
    /// `FALLOC_FL_ZERO_RANGE`.
    ZeroRange,
}

/// The kind of range that `lseek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// The flags of `setxattr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetMode {
    /// The attribute is created or replaced.
    Any,
    /// `XATTR_CREATE`: it must not exist.
    Create,
    /// `XATTR_REPLACE`: it must exist.
    Replace,
}

/// Whether a path's last component is followed if it is a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// It is, as by `stat`.
    Yes,
    /// It is not, as by `lstat`.
    No,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The position after it, at which a listing continues.
    pub cookie: u64,
    /// The name.
    pub name: Bytes,
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: Kind,
}

/// The answer to `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The size of a block in bytes.
    pub block_bytes: u32,
    /// Blocks in all: the quota, or [`Space::BYTES_WITHOUT_QUOTA`].
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Keys in use, which are more than the inodes.
    pub keys: u64,
}

impl Space {
    /// The size that a volume without a quota reports, in bytes.
    pub const BYTES_WITHOUT_QUOTA: u64 = 1 << 50;
}
