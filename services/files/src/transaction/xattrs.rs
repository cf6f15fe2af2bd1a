//! Extended attributes. The kernel checks their namespaces.

use bytes::Bytes;

use super::Transaction;
use crate::{
    error::{Errno, Result},
    inode::{self, Field},
    model::{Ino, SetMode},
    path_rules::NAME_BYTES_MAX,
};

/// The longest value of an extended attribute, in bytes.
pub const XATTR_BYTES_MAX: usize = 64 << 10;

impl Transaction {
    /// The value of an extended attribute. Errors: `ENODATA`, `ERANGE` for a name that is empty or
    /// longer than 255 bytes.
    pub async fn getxattr(&mut self, ino: Ino, name: &[u8]) -> Result<Bytes> {
        check(name)?;
        let keys = [inode::field(ino, Field::Existence), inode::xattr(ino, name)];
        let [kind, found] = self.overlay.get_many(keys).await?;
        kind.ok_or(Errno::ENOENT)?;
        found.ok_or(Errno::ENODATA)
    }

    /// Sets an extended attribute. Errors: `EEXIST` and `ENODATA` by the mode, `ERANGE` as
    /// [`getxattr`](Self::getxattr), `E2BIG` for more than [`XATTR_BYTES_MAX`].
    pub async fn setxattr(
        &mut self,
        ino: Ino,
        mode: SetMode,
        name: &[u8],
        value: &Bytes,
    ) -> Result<()> {
        check(name)?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        self.kind(ino).await?;
        let key = inode::xattr(ino, name);
        if mode != SetMode::Any {
            match (self.overlay.get(key.clone()).await?, mode) {
                (Some(_), SetMode::Create) => return Err(Errno::EEXIST),
                (None, SetMode::Replace) => return Err(Errno::ENODATA),
                _ => {}
            }
        }
        self.overlay.put(key, value.clone());
        self.touch(ino, &[Field::Ctime]);
        Ok(())
    }

    /// Removes an extended attribute. Errors: as [`getxattr`](Self::getxattr).
    pub async fn removexattr(&mut self, ino: Ino, name: &[u8]) -> Result<()> {
        self.getxattr(ino, name).await?;
        self.overlay.delete(inode::xattr(ino, name));
        self.touch(ino, &[Field::Ctime]);
        Ok(())
    }

    /// The names of all extended attributes, in order. Errors: `E2BIG` for more than
    /// [`XATTR_BYTES_MAX`] of names, each with a NUL.
    pub async fn listxattr(&mut self, ino: Ino) -> Result<Vec<Bytes>> {
        self.kind(ino).await?;
        let names = self.xattr_names(ino).await?;
        let bytes: usize = names.iter().map(|name| name.len() + 1).sum();
        if bytes > XATTR_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        Ok(names)
    }
}

fn check(name: &[u8]) -> Result<()> {
    if (1..=NAME_BYTES_MAX).contains(&name.len()) {
        Ok(())
    } else {
        Err(Errno::ERANGE)
    }
}
