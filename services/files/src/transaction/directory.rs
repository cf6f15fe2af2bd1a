//! Names: lookups, and the calls that bind and unbind them.

use bytes::Bytes;
use transactions::serializable::model::{Key, Slot};

use super::Transaction;
use crate::{
    broken::Broken,
    error::{Errno, Result},
    inode::{self, Field},
    model::{Access, Attributes, DirectoryEntry, Follow, Found, Ino, Kind},
    path_rules::{self, SYMLINKS_MAX},
};

/// The positions that `.` and `..` take in a listing.
const DOTS: u64 = 2;

/// The listing of a directory: the entries that were returned, in the order of their names. A
/// cookie is a position in it, so deleting while listing skips nothing. It grows with the directory.
#[derive(Debug)]
pub struct Listing {
    pub(crate) directory: Ino,
    pub(crate) seen: Vec<(Bytes, Ino, Kind)>,
    pub(crate) is_complete: bool,
    pub(crate) at: Option<Slot>,
}

impl Listing {
    /// A listing from the begin. A rewind takes a new one.
    pub fn new(directory: Ino) -> Self {
        Self {
            directory,
            seen: Vec::new(),
            is_complete: false,
            at: None,
        }
    }

    /// A listing that continues after `name`, whether or not that is there, and the cookie of its
    /// place. It is complete if the transaction reads the slot of the former pages.
    pub fn after(directory: Ino, name: Bytes) -> (Self, u64) {
        let listing = Self {
            seen: vec![(name, directory, Kind::Directory)],
            ..Self::new(directory)
        };
        (listing, DOTS + 1)
    }

    fn rest(&self) -> Bytes {
        match self.seen.last() {
            // The next name in the order of bytes.
            Some((name, ..)) => [name, &b"\0"[..]].concat().into(),
            None => Bytes::new(),
        }
    }
}

impl Transaction {
    /// The inode that `name` is bound to in `parent`; also `.` and `..`. Errors: `ENOENT`,
    /// `ENOTDIR`, `ENAMETOOLONG`, `EINVAL`.
    pub async fn lookup(&mut self, parent: Ino, name: &[u8]) -> Result<Found> {
        let (ino, kind) = self.find(parent, name).await?;
        let access = self.access(ino).await?;
        Ok(Found { ino, kind, access })
    }

    /// The attributes of the inode that `name` is bound to. Errors: as [`lookup`](Self::lookup).
    pub async fn stat(&mut self, parent: Ino, name: &[u8]) -> Result<Attributes> {
        self.look_ahead(parent, name).await?;
        let (ino, _) = self.find(parent, name).await?;
        self.getattr(ino).await
    }

    /// As [`stat`](Self::stat). But of a directory, the transaction depends on its type and
    /// permissions alone: its times, size and links may be old at the commit.
    pub async fn stat_entry(&mut self, parent: Ino, name: &[u8]) -> Result<Attributes> {
        self.look_ahead(parent, name).await?;
        match self.find(parent, name).await? {
            (ino, Kind::Directory) => self.glance_at(ino).await,
            (ino, _) => self.getattr(ino).await,
        }
    }

    /// Reads in one call the keys that [`stat`](Self::stat) reads, if the name still leads where it
    /// did when it was last looked up.
    async fn look_ahead(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        path_rules::check_name(name)?;
        let entry = inode::entry(parent, name);
        let Some(value) = self.context.remembered.value(&entry) else {
            return Ok(());
        };
        let (ino, _) = inode::entry_in(&value)?;
        let fields = Field::STAT.map(|field| inode::field(ino, field));
        let mut keys = fields.to_vec();
        keys.extend(directory_keys(parent));
        keys.push(entry);
        self.overlay.fetch(&keys).await
    }

    /// The inode that a path leads to, from `start` or from the root. Errors: as [`lookup`], and
    /// `ELOOP`.
    ///
    /// [`lookup`]: Self::lookup
    pub async fn resolve(&mut self, start: Ino, follow: Follow, path: &Bytes) -> Result<Found> {
        path_rules::check_path(path)?;
        let from = |path: &Bytes, here| if path[0] == b'/' { Ino::ROOT } else { here };
        // The components that are left, the next one last.
        let mut left = path_rules::components(path);
        left.reverse();
        let mut links = 0;
        let mut found = self.lookup(from(path, start), b".").await?;
        while let Some(name) = left.pop() {
            let parent = found.ino;
            found = self.lookup(parent, &name).await?;
            let is_followed = !left.is_empty() || follow == Follow::Yes;
            if found.kind == Kind::Symlink && is_followed {
                links += 1;
                if links > SYMLINKS_MAX {
                    return Err(Errno::ELOOP);
                }
                let target = self.readlink(found.ino).await?;
                let components = path_rules::components(&target);
                left.extend(components.into_iter().rev());
                found = self.lookup(from(&target, parent), b".").await?;
            }
        }
        Ok(found)
    }

    /// Creates a regular file. It has the group of a directory with the set-group-ID bit. Errors:
    /// `EEXIST`, `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`, `EINVAL`.
    pub async fn create(&mut self, parent: Ino, access: Access, name: &[u8]) -> Result<Ino> {
        self.bind_new(parent, name, Kind::File, access, None).await
    }

    /// Creates what the type bits in the mode of `access` tell: a regular file, a FIFO, a socket, or
    /// the device of the number `device`. Errors: as [`create`](Self::create), and `EPERM` for other
    /// types.
    pub async fn mknod(
        &mut self,
        parent: Ino,
        access: Access,
        device: u32,
        name: &[u8],
    ) -> Result<Ino> {
        let kind = Kind::of_node(access.mode).ok_or(Errno::EPERM)?;
        let ino = self.bind_new(parent, name, kind, access, None).await?;
        if kind.is_device() {
            let number = inode::field(ino, Field::Size);
            self.overlay.put_number(number, u64::from(device));
        }
        Ok(ino)
    }

    /// Creates a regular file without a name, as by `O_TMPFILE`; [`link`](Self::link) may give it one.
    /// The reaper deletes it unless a session holds it, so [`FileSystem::open_unnamed`] holds it
    /// before. Errors: `ENOENT`, `ENOTDIR`.
    ///
    /// [`FileSystem::open_unnamed`]: crate::FileSystem::open_unnamed
    pub async fn create_unnamed(&mut self, parent: Ino, access: Access) -> Result<Ino> {
        let ino = self.new_ino().await?;
        self.put_unnamed(ino, parent, access).await?;
        Ok(ino)
    }

    /// As [`create_unnamed`](Self::create_unnamed), with a number from [`new_ino`](Self::new_ino).
    pub(crate) async fn put_unnamed(
        &mut self,
        ino: Ino,
        parent: Ino,
        access: Access,
    ) -> Result<()> {
        let above = self.directory(parent).await?;
        let access = access.created_in(above, Kind::File);
        self.put_inode(ino, Kind::File, access, None);
        self.overlay.put_number(inode::field(ino, Field::Links), 0);
        self.overlay.put(inode::orphan(ino), inode::UNNAMED);
        Ok(())
    }

    /// Creates a directory. Errors: as [`create`](Self::create).
    pub async fn mkdir(&mut self, parent: Ino, access: Access, name: &[u8]) -> Result<Ino> {
        let kind = Kind::Directory;
        let ino = self.bind_new(parent, name, kind, access, None).await?;
        let value = parent.0.to_be_bytes().to_vec();
        self.overlay
            .put(inode::field(ino, Field::Parent), value.into());
        self.overlay.add(inode::field(parent, Field::Links), 1);
        Ok(ino)
    }

    /// Creates a symbolic link. Errors: as [`create`](Self::create); `ENOENT` for an empty target,
    /// `ENAMETOOLONG` for one of 4,096 bytes or more.
    pub async fn symlink(
        &mut self,
        parent: Ino,
        access: Access,
        name: &[u8],
        target: &Bytes,
    ) -> Result<Ino> {
        path_rules::check_path(target)?;
        let access = Access {
            mode: 0o777,
            ..access
        };
        let kind = Kind::Symlink;
        self.bind_new(parent, name, kind, access, Some(target))
            .await
    }

    /// The target of a symbolic link. Errors: `EINVAL` if it is none.
    pub async fn readlink(&mut self, ino: Ino) -> Result<Bytes> {
        let fields = [Field::Existence, Field::Target].map(|field| inode::field(ino, field));
        let [kind, target] = self.overlay.get_many(fields).await?;
        if inode::kind_in(&kind.ok_or(Errno::ENOENT)?)? != Kind::Symlink {
            return Err(Errno::EINVAL);
        }
        target.filter(|target| !target.is_empty()).ok_or(Errno::EIO)
    }

    /// Gives an inode a name, or another one. Errors: `EPERM` for a directory, `ENOENT` also for a
    /// file that had a name and has none any more, `EEXIST`, `ENOTDIR`, `ENAMETOOLONG`, `EINVAL`.
    pub async fn link(&mut self, ino: Ino, parent: Ino, name: &[u8]) -> Result<()> {
        path_rules::check_entry_name(name, Errno::EEXIST)?;
        self.prefetch(ino, &[Field::Existence, Field::Links])
            .await?;
        let kind = self.kind(ino).await?;
        if kind == Kind::Directory {
            return Err(Errno::EPERM);
        }
        self.must_be_absent(parent, name).await?;
        let links = inode::field(ino, Field::Links);
        if !self.overlay.is_at_least(links.clone(), 1).await? {
            let orphan = inode::orphan(ino);
            if self.overlay.get(orphan.clone()).await? != Some(inode::UNNAMED) {
                return Err(Errno::ENOENT);
            }
            self.overlay.delete(orphan);
        }
        self.overlay.add(links, 1);
        self.touch(ino, &[Field::Ctime]);
        self.bind(parent, name, ino, kind);
        self.touch_directory(parent);
        Ok(())
    }

    /// Removes a name. The inode stays while a session has it open. Errors: `EISDIR`, `ENOENT`,
    /// `ENOTDIR`, `ENAMETOOLONG`, `EINVAL`.
    pub async fn unlink(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        path_rules::check_entry_name(name, Errno::EISDIR)?;
        let (_, entry) = self.look(parent, name).await?;
        let (ino, kind) = entry.ok_or(Errno::ENOENT)?;
        if kind == Kind::Directory {
            return Err(Errno::EISDIR);
        }
        self.overlay.delete(inode::entry(parent, name));
        self.drop_link(ino);
        self.touch_directory(parent);
        Ok(())
    }

    /// Removes an empty directory; it is gone also for sessions that have it open. Errors:
    /// `ENOTEMPTY`, also for `..`; `EINVAL` for `.`; `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`.
    pub async fn rmdir(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        let refusal = if name == b"." {
            Errno::EINVAL
        } else {
            Errno::ENOTEMPTY
        };
        path_rules::check_entry_name(name, refusal)?;
        let (_, entry) = self.look(parent, name).await?;
        let (ino, kind) = entry.ok_or(Errno::ENOENT)?;
        if kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        self.remove_directory(ino).await?;
        self.overlay.delete(inode::entry(parent, name));
        self.overlay.add(inode::field(parent, Field::Links), -1);
        self.touch_directory(parent);
        Ok(())
    }

    /// Up to `count` entries of a listing after position `cookie`, which is 0 or was returned
    /// before. Errors: `ENOTDIR`, `ENOENT`.
    pub async fn list(
        &mut self,
        listing: &mut Listing,
        cookie: u64,
        count: usize,
    ) -> Result<Vec<DirectoryEntry>> {
        let directory = listing.directory;
        self.directory(directory).await?;
        let mut found = Vec::new();
        for position in (cookie..DOTS).take(count) {
            let (name, ino) = match position {
                0 => (&b"."[..], directory),
                _ => (&b".."[..], self.parent(directory).await?),
            };
            found.push(DirectoryEntry {
                cookie: position + 1,
                name: Bytes::from_static(name),
                ino,
                kind: Kind::Directory,
            });
        }
        let first = cookie.saturating_sub(DOTS) as usize;
        let last = first.saturating_add(count - found.len());
        while listing.seen.len() < last && !listing.is_complete {
            let range = inode::entries(directory, listing.rest());
            let missing = last - listing.seen.len();
            let (entries, next) = self.overlay.scan(&range, missing).await?;
            for entry in entries {
                let (ino, kind) = inode::entry_in(&entry.value)?;
                listing.seen.push((entry.name, ino, kind));
            }
            listing.is_complete = next.is_none();
        }
        let seen = listing.seen.iter().enumerate();
        let page = seen.skip(first).take(last.saturating_sub(first));
        found.extend(page.map(|(index, (name, ino, kind))| DirectoryEntry {
            cookie: index as u64 + DOTS + 1,
            name: name.clone(),
            ino: *ino,
            kind: *kind,
        }));
        Ok(found)
    }

    /// Makes the root directory, if it is missing.
    pub(crate) async fn make_root(&mut self, access: Access) -> Result<()> {
        match self.kind(Ino::ROOT).await {
            Err(Errno::ENOENT) => {}
            kind => return kind.map(|_| ()),
        }
        self.put_inode(Ino::ROOT, Kind::Directory, access, None);
        let value = Ino::ROOT.0.to_be_bytes().to_vec();
        let parent = inode::field(Ino::ROOT, Field::Parent);
        self.overlay.put(parent, value.into());
        Ok(())
    }

    /// The access of a directory that a call needs. Errors: `ENOTDIR`, `ENOENT`.
    async fn directory(&mut self, ino: Ino) -> Result<Access> {
        let [kind, access] = self.overlay.get_many(directory_keys(ino)).await?;
        directory_in(kind, access)
    }

    /// The access of a directory, and the inode that `name` is bound to in it. Errors: `ENOTDIR`,
    /// `ENOENT` for the directory.
    pub(super) async fn look(
        &mut self,
        parent: Ino,
        name: &[u8],
    ) -> Result<(Access, Option<(Ino, Kind)>)> {
        let [kind, access] = directory_keys(parent);
        let keys = [kind, access, inode::entry(parent, name)];
        let [kind, access, entry] = self.overlay.get_many(keys).await?;
        let access = directory_in(kind, access)?;
        let entry = entry.map(|value| inode::entry_in(&value)).transpose()?;
        Ok((access, entry))
    }

    /// The directory that holds a directory.
    pub(super) async fn parent(&mut self, directory: Ino) -> Result<Ino> {
        let parent = inode::field(directory, Field::Parent);
        let parent = self.overlay.get(parent).await?.ok_or(Errno::EIO)?;
        Ok(Ino(inode::number_of(&parent)?))
    }

    pub(crate) fn bind(&mut self, parent: Ino, name: &[u8], ino: Ino, kind: Kind) {
        let value = inode::entry_bytes(ino, kind);
        self.overlay.put(inode::entry(parent, name), value);
    }

    pub(crate) fn touch_directory(&mut self, ino: Ino) {
        self.touch(ino, &[Field::Mtime, Field::Ctime]);
    }

    /// Deletes an empty directory, but not its entry. Errors: `ENOTEMPTY`.
    pub(super) async fn remove_directory(&mut self, ino: Ino) -> Result<()> {
        let entries = inode::entries(ino, Bytes::new());
        let (found, _) = self.overlay.scan(&entries, 1).await?;
        if self.context.mutant.breaks(Broken::RmdirForgetsEntries) {
            self.overlay.forget(&entries);
        }
        if !found.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.delete_fields(ino).await
    }

    /// The inode that `name` is bound to; also `.` and `..`. Errors: those of
    /// [`lookup`](Self::lookup).
    async fn find(&mut self, parent: Ino, name: &[u8]) -> Result<(Ino, Kind)> {
        path_rules::check_name(name)?;
        let (_, entry) = self.look(parent, name).await?;
        match name {
            b"." => Ok((parent, Kind::Directory)),
            b".." => Ok((self.parent(parent).await?, Kind::Directory)),
            _ => entry.ok_or(Errno::ENOENT),
        }
    }

    /// The parent's access. Errors: `EEXIST` if `name` is bound.
    async fn must_be_absent(&mut self, parent: Ino, name: &[u8]) -> Result<Access> {
        match self.look(parent, name).await? {
            (_, Some(_)) => Err(Errno::EEXIST),
            (access, None) => Ok(access),
        }
    }

    async fn bind_new(
        &mut self,
        parent: Ino,
        name: &[u8],
        kind: Kind,
        access: Access,
        target: Option<&Bytes>,
    ) -> Result<Ino> {
        path_rules::check_entry_name(name, Errno::EEXIST)?;
        let above = self.must_be_absent(parent, name).await?;
        let access = access.created_in(above, kind);
        let ino = self.new_ino().await?;
        self.put_inode(ino, kind, access, target);
        self.bind(parent, name, ino, kind);
        self.touch_directory(parent);
        Ok(ino)
    }

    fn put_inode(&mut self, ino: Ino, kind: Kind, access: Access, target: Option<&Bytes>) {
        let links = if kind == Kind::Directory { 2 } else { 1 };
        let existence = inode::field(ino, Field::Existence);
        self.overlay.put(existence, inode::kind_bytes(kind));
        let value = inode::access_bytes(access);
        self.overlay.put(inode::field(ino, Field::Access), value);
        self.overlay
            .put_number(inode::field(ino, Field::Links), links);
        self.touch(ino, &[Field::Mtime, Field::Ctime, Field::Atime]);
        let size = inode::field(ino, Field::Size);
        if let Some(target) = target {
            self.overlay.put_number(size, target.len() as u64);
            self.overlay
                .put(inode::field(ino, Field::Target), target.clone());
        } else {
            self.overlay.make_length(size);
        }
    }
}

fn directory_keys(ino: Ino) -> [Key; 2] {
    [Field::Existence, Field::Access].map(|field| inode::field(ino, field))
}

/// The access of a directory, from its keys.
fn directory_in(kind: Option<Bytes>, access: Option<Bytes>) -> Result<Access> {
    if inode::kind_in(&kind.ok_or(Errno::ENOENT)?)? != Kind::Directory {
        return Err(Errno::ENOTDIR);
    }
    inode::access_in(&access.ok_or(Errno::EIO)?)
}
