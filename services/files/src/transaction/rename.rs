//! `renameat2` and its rules.

use super::Transaction;
use crate::{
    broken::Broken,
    error::{Errno, Result},
    inode::{self, Field},
    model::{Ino, Kind, RenameMode},
    path_rules,
};

/// The deepest directory that another one can be moved to. Deeper ones are refused.
const DEPTH_MAX: usize = 10_000;

/// A name, bound or not.
#[derive(Clone, Copy)]
struct Place<'a> {
    parent: Ino,
    name: &'a [u8],
}

impl Transaction {
    /// Renames `from_name` in `from` to `to_name` in `to`. If both are names of one inode, nothing
    /// happens. Errors: `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`; `EEXIST` by `NoReplace`; `EISDIR` if a
    /// directory would be replaced by something else, and `ENOTDIR` the other way round;
    /// `ENOTEMPTY`; `EINVAL` if a directory would move into itself; `EBUSY` for `.` and `..`.
    pub async fn rename(
        &mut self,
        from: Ino,
        to: Ino,
        mode: RenameMode,
        from_name: &[u8],
        to_name: &[u8],
    ) -> Result<()> {
        path_rules::check_entry_name(from_name, Errno::EBUSY)?;
        let refusal = match mode {
            RenameMode::NoReplace => Errno::EEXIST,
            _ => Errno::EBUSY,
        };
        path_rules::check_entry_name(to_name, refusal)?;
        let (_, source) = self.look(from, from_name).await?;
        let (_, target) = self.look(to, to_name).await?;
        let source = source.ok_or(Errno::ENOENT)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        if source.1 == Kind::Directory && from != to && self.is_within(to, source.0).await? {
            return Err(Errno::EINVAL);
        }
        let (from, to) = (
            Place {
                parent: from,
                name: from_name,
            },
            Place {
                parent: to,
                name: to_name,
            },
        );
        match target {
            Some(target) if target.0 == source.0 => return Ok(()),
            Some(target) if mode == RenameMode::Exchange => {
                let is_moved = target.1 == Kind::Directory && from.parent != to.parent;
                if is_moved && self.is_within(from.parent, target.0).await? {
                    return Err(Errno::EINVAL);
                }
                self.place(to, from, target);
            }
            target => {
                if let Some(target) = target {
                    self.replace(to, source.1, target).await?;
                }
                self.overlay.delete(inode::entry(from.parent, from.name));
            }
        }
        self.place(from, to, source);
        self.touch_directory(from.parent);
        self.touch_directory(to.parent);
        Ok(())
    }

    /// Binds a name to an inode that was bound to another one.
    fn place(&mut self, from: Place<'_>, to: Place<'_>, (ino, kind): (Ino, Kind)) {
        self.bind(to.parent, to.name, ino, kind);
        self.touch(ino, &[Field::Ctime]);
        if kind == Kind::Directory && from.parent != to.parent {
            let value = to.parent.0.to_be_bytes().to_vec();
            self.overlay
                .put(inode::field(ino, Field::Parent), value.into());
            self.overlay
                .add(inode::field(from.parent, Field::Links), -1);
            self.overlay.add(inode::field(to.parent, Field::Links), 1);
        }
    }

    /// Removes the target that a rename replaces.
    async fn replace(&mut self, at: Place<'_>, source: Kind, target: (Ino, Kind)) -> Result<()> {
        match (source == Kind::Directory, target.1 == Kind::Directory) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            (false, false) => {
                self.drop_link(target.0);
                Ok(())
            }
            (true, true) => {
                self.remove_directory(target.0).await?;
                self.overlay.add(inode::field(at.parent, Field::Links), -1);
                Ok(())
            }
        }
    }

    /// Whether `directory` is `ancestor` or below it. The parent of each directory on the way to
    /// the root is read, so of two moves that would form a circle one conflicts.
    async fn is_within(&mut self, directory: Ino, ancestor: Ino) -> Result<bool> {
        let mut here = directory;
        for _ in 0..DEPTH_MAX {
            if here == ancestor {
                return Ok(true);
            }
            if here == Ino::ROOT {
                return Ok(false);
            }
            let above = self.parent(here).await?;
            if self.context.mutant.breaks(Broken::RenameForgetsAncestors) {
                self.overlay.forget(&inode::fields(here));
            }
            here = above;
        }
        Err(Errno::EINVAL)
    }
}
