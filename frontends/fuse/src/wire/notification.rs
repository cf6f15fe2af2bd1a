//! Messages to the kernel that no request asked for: they change its caches.

use super::writer::{Writer, message};

/// A change of the kernel's caches.
///
/// The kernel may wait for a request of the same inode before it takes one. Hence a thread that
/// handles a request must not send a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notification<'a> {
    /// Drops the attributes of an inode and its pages in a range of bytes. A negative offset keeps
    /// the pages, a length of 0 drops all to the end.
    InvalidateInode {
        /// The inode.
        inode: u64,
        /// The first byte.
        offset: i64,
        /// Bytes.
        length: i64,
    },
    /// Drops a name of a directory, unless it is in use.
    InvalidateEntry(u64, &'a [u8]),
    /// Lets the kernel ask again before it next uses a name of a directory (protocol 7.38).
    ExpireEntry(u64, &'a [u8]),
    /// Drops the name of a file that was removed, and tells inotify.
    Delete {
        /// The directory.
        directory: u64,
        /// The removed inode.
        inode: u64,
        /// The name in the directory.
        name: &'a [u8],
    },
    /// Puts data into the page cache.
    Store {
        /// The inode.
        inode: u64,
        /// The first byte.
        offset: u64,
        /// The data, at most [`super::TRANSFER_BYTES_MAX`].
        data: &'a [u8],
    },
    /// Drops all names of the mount at once (protocol 7.44).
    IncrementEpoch,
}

impl<'a> Notification<'a> {
    /// Fills `head` with the notification, and returns the data that follow it.
    pub fn encode(&self, head: &mut Vec<u8>) -> &'a [u8] {
        let payload: &'a [u8] = match self {
            Self::Store { data, .. } => data,
            _ => &[],
        };
        let code = match self {
            Self::InvalidateInode { .. } => 2,
            Self::InvalidateEntry(..) | Self::ExpireEntry(..) => 3,
            Self::Store { .. } => 4,
            Self::Delete { .. } => 6,
            Self::IncrementEpoch => 8,
        };
        message(head, code, 0, payload, |to| self.body(to));
        payload
    }

    fn body(&self, to: &mut Writer<'_>) {
        match *self {
            Self::InvalidateInode {
                inode,
                offset,
                length,
            } => {
                to.u64(inode)
                    .u64(offset.cast_unsigned())
                    .u64(length.cast_unsigned());
            }
            Self::InvalidateEntry(directory, name) | Self::ExpireEntry(directory, name) => {
                let is_expiry = matches!(self, Self::ExpireEntry(..));
                let (bytes, flags) = (name.len() as u32, u32::from(is_expiry));
                to.u64(directory).u32(bytes).u32(flags);
                to.bytes(name).zeros(1);
            }
            Self::Delete {
                directory,
                inode,
                name,
            } => {
                to.u64(directory)
                    .u64(inode)
                    .u32(name.len() as u32)
                    .u32(0)
                    .bytes(name)
                    .zeros(1);
            }
            Self::Store {
                inode,
                offset,
                data,
            } => {
                to.u64(inode).u64(offset).u32(data.len() as u32).u32(0);
            }
            Self::IncrementEpoch => {}
        }
    }
}
