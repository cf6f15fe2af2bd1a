//! Permissions by mode bits, as Linux checks them for the user of the server.
//!
//! Programs share the server's memory, so this is no boundary between them: it is what a program
//! expects of a file system. Not checked are groups of a set-group-id directory, capabilities but
//! those of root, and programs that root starts as another user.

use files::{Errno, Result, model::Access};
use nix::unistd::{getegid, geteuid, getgroups};

/// Reading a file, or the names in a directory.
pub(crate) const READ: u32 = 4;
/// Writing a file, or binding names in a directory.
pub(crate) const WRITE: u32 = 2;
/// Following names in a directory.
pub(crate) const SEARCH: u32 = 1;
/// Only owners remove names from such a directory.
const STICKY: u32 = 0o1000;

/// A user who may not do everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The number of the user.
    pub uid: u32,
    /// The groups.
    pub groups: Vec<u32>,
}

impl User {
    /// The effective user of this process; `None` for root.
    pub fn current() -> Option<Self> {
        let uid = geteuid().as_raw();
        let mut groups = vec![getegid().as_raw()];
        groups.extend(getgroups().iter().flatten().map(|group| group.as_raw()));
        (uid != 0).then_some(Self { uid, groups })
    }

    /// Errors: `EACCES` if one of the bits `wants` is missing.
    pub(crate) fn require(&self, access: &Access, wants: u32) -> Result<()> {
        let bits = if self.uid == access.uid {
            access.mode >> 6
        } else if self.groups.contains(&access.gid) {
            access.mode >> 3
        } else {
            access.mode
        };
        if wants & !bits == 0 {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// Errors: `EPERM` for another's inode.
    pub(crate) fn require_owner(&self, access: &Access) -> Result<()> {
        if self.uid == access.uid {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    /// Errors: `EPERM` if the inode's names stay in its directory.
    pub(crate) fn require_unstuck(&self, directory: &Access, access: &Access) -> Result<()> {
        if directory.mode & STICKY == 0 || directory.uid == self.uid {
            return Ok(());
        }
        self.require_owner(access)
    }
}
