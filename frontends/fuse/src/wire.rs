//! The codec of the FUSE protocol: bytes to values and back, without I/O.
//!
//! [`Request::decode`] borrows names and data from the buffer that was read. [`Reply::encode`] and
//! [`Notification::encode`] return their payload apart, so that data are never copied.
//! [`init::negotiate`] decides the version and the flags of a connection.
//!
//! All numbers are in the byte order of the machine, because the kernel on the same machine wrote
//! them. A message of a wrong length, or with a value outside of its range, is a [`Fault`].

mod decode;
pub mod init;
mod notification;
mod reader;
mod reply;
mod request;
mod writer;

pub use notification::Notification;
pub use reader::Fault;
pub use reply::{
    Attributes, DirectoryEntry, DirectoryList, Entry, Errno, ExtendedAttributes, FileSystemUsage,
    OPEN_DIRECT_IO, OPEN_KEEP_CACHE, OPEN_PARALLEL_DIRECT_WRITES, Opened, Reply,
};
pub use request::{
    CopyFileRange, FileLock, Forgets, Header, LockKind, LockRequest, LockStyle, Operation, Read,
    Release, Request, SetAttr, SetTime, Time, Write,
};

/// The inode number of the root of a mount.
pub const ROOT_INODE: u64 = 1;

/// Bytes of the largest single transfer that we accept: 256 pages of 64 KiB. A larger one is a
/// fault.
pub const TRANSFER_BYTES_MAX: u32 = 16 << 20;
