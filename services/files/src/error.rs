//! The refusals of calls, in POSIX's terms.

/// The result of every call.
pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// The reason why a call failed. The discriminants are Linux's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[repr(i32)]
pub enum Errno {
    /// The operation is not permitted: a hard link to a directory, or a device node.
    #[error("EPERM: operation not permitted")]
    EPERM = 1,
    /// There is no such name, or the inode is gone.
    #[error("ENOENT: no such file or directory")]
    ENOENT = 2,
    /// The volume did not answer in time, conflicts did not end, or stored bytes are damaged.
    #[error("EIO: input/output error")]
    EIO = 5,
    /// There is no data, or no hole, at or after the offset.
    #[error("ENXIO: the offset is beyond the end of the file")]
    ENXIO = 6,
    /// A list or a value is too long.
    #[error("E2BIG: too long")]
    E2BIG = 7,
    /// A permission is missing. The mapping leaves it to its caller to check them.
    #[error("EACCES: permission denied")]
    EACCES = 13,
    /// The name is in use by the operation itself: `.` or `..`.
    #[error("EBUSY: resource busy")]
    EBUSY = 16,
    /// The name or the attribute exists.
    #[error("EEXIST: file exists")]
    EEXIST = 17,
    /// A component of the path is not a directory.
    #[error("ENOTDIR: not a directory")]
    ENOTDIR = 20,
    /// The call does not apply to directories.
    #[error("EISDIR: is a directory")]
    EISDIR = 21,
    /// An argument is out of its range.
    #[error("EINVAL: invalid argument")]
    EINVAL = 22,
    /// The file would be longer than 2^63 - 1 bytes, or the transaction is too large.
    #[error("EFBIG: file too large")]
    EFBIG = 27,
    /// The store is full.
    #[error("ENOSPC: no space left on device")]
    ENOSPC = 28,
    /// A number of links is out of its range.
    #[error("EMLINK: too many links")]
    EMLINK = 31,
    /// The name of an attribute has more than 255 bytes.
    #[error("ERANGE: result too large")]
    ERANGE = 34,
    /// A name has more than 255 bytes, or a path more than 4,095.
    #[error("ENAMETOOLONG: file name too long")]
    ENAMETOOLONG = 36,
    /// A directory is not empty.
    #[error("ENOTEMPTY: directory not empty")]
    ENOTEMPTY = 39,
    /// A path leads over more than 40 symbolic links.
    #[error("ELOOP: too many levels of symbolic links")]
    ELOOP = 40,
    /// There is no such attribute.
    #[error("ENODATA: no data available")]
    ENODATA = 61,
    /// The snapshot of the transaction is too old to be read. Begin again.
    #[error("ESTALE: the snapshot is too old")]
    ESTALE = 116,
    /// The volume's quota is used up.
    #[error("EDQUOT: disk quota exceeded")]
    EDQUOT = 122,
}
