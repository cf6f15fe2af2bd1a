//! Paths in the volume: from a directory to an inode, over symbolic links.
//!
//! The mapping resolves paths too, but it takes the root of the volume for the root of the system.
//! Here an absolute link is one of the system: below the volume's place it stays in the volume, and
//! elsewhere the caller follows it.

use bytes::Bytes;
use files::{
    Errno, Ino, Result, Transaction,
    model::{Found, Kind},
};

use crate::{
    permissions::{SEARCH, User, WRITE},
    wire::Place,
};

/// The most symbolic links on the way.
const LINKS_MAX: usize = 40;
/// The longest path, in bytes.
const PATH_BYTES_MAX: usize = 4_095;

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Way {
    /// To an inode.
    Found(Found),
    /// To a name that is not bound, in an existing directory.
    Missing { parent: Ino, name: Bytes },
    /// Out of the volume, to this absolute path.
    Outside(Bytes),
}

/// A name in a directory, bound or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Last {
    Name { parent: Ino, name: Bytes },
    Outside(Bytes),
}

/// The components that are left, the next one last.
struct Rest {
    names: Vec<Bytes>,
    links: usize,
    wants_directory: bool,
}

impl Rest {
    fn new(path: &[u8]) -> Result<Self> {
        let mut rest = Self {
            names: Vec::new(),
            links: 0,
            wants_directory: false,
        };
        if path.len() > PATH_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        rest.push(path);
        Ok(rest)
    }

    fn push(&mut self, path: &[u8]) {
        if self.names.is_empty() {
            let last = path.rsplit(|byte| *byte == b'/').next();
            self.wants_directory |= matches!(last, Some(b"" | b"." | b"..")) && !path.is_empty();
        }
        let names = path.split(|byte| *byte == b'/').rev();
        let names = names.filter(|name| !name.is_empty() && *name != b".");
        self.names.extend(names.map(Bytes::copy_from_slice));
    }

    /// The components that are left, with the target of a link before them.
    fn joined(&self, target: &[u8]) -> Bytes {
        let mut path = target.to_vec();
        for name in self.names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        path.into()
    }
}

/// The part of an absolute path that is in the volume.
fn inside<'a>(path: &'a [u8], at: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(at)?;
    matches!(rest.first(), None | Some(b'/')).then_some(rest)
}

/// What holds for all requests of a server.
#[derive(Debug)]
pub(crate) struct Rules {
    /// The absolute path of the volume.
    pub(crate) at: Bytes,
    /// Whether all changes are refused.
    pub(crate) is_read_only: bool,
    /// The user whose permissions are checked. `None`: no call is checked.
    pub(crate) user: Option<User>,
}

/// Walks in the volume at the absolute path `at`.
#[derive(Debug)]
pub(crate) struct Walk<'t> {
    pub(crate) transaction: &'t mut Transaction,
    pub(crate) rules: &'t Rules,
    /// The names on the way of the last `resolve` so far, without links.
    pub(crate) trail: Vec<Bytes>,
}

impl Walk<'_> {
    /// Where a path leads. `follows` says whether its last component is followed if it is a link.
    /// Errors: those of a lookup, and `ELOOP`.
    pub(crate) async fn resolve(&mut self, place: Place<'_>, follows: bool) -> Result<Way> {
        let mut rest = Rest::new(place.path)?;
        let mut directory = Ino(place.start);
        if rest.names.is_empty() {
            return self.lookup_self(directory).await.map(Way::Found);
        }
        self.trail.clear();
        while let Some(name) = rest.names.pop() {
            let is_last = rest.names.is_empty();
            self.require(directory, SEARCH).await?;
            let found = match self.transaction.lookup(directory, &name).await {
                Err(Errno::ENOENT) if is_last => {
                    self.must_be_directory(directory).await?;
                    let parent = directory;
                    return Ok(Way::Missing { parent, name });
                }
                found => found?,
            };
            self.trail.push(name);
            let is_followed = !is_last || follows || rest.wants_directory;
            if found.kind == Kind::Symlink && is_followed {
                self.trail.pop();
                match self.follow(found.ino, &mut rest).await? {
                    Some(Way::Outside(path)) => return Ok(Way::Outside(path)),
                    Some(_) => {
                        directory = Ino::ROOT;
                        self.trail.clear();
                    }
                    None => {}
                }
                if rest.names.is_empty() {
                    return self.lookup_self(directory).await.map(Way::Found);
                }
            } else if is_last {
                self.ascend();
                if rest.wants_directory && found.kind != Kind::Directory {
                    return Err(Errno::ENOTDIR);
                }
                return Ok(Way::Found(found));
            } else {
                directory = found.ino;
            }
            self.ascend();
        }
        self.lookup_self(directory).await.map(Way::Found)
    }

    /// The directory and the name of a path's last component, which is not followed. Errors:
    /// `EEXIST` for the root or an inode itself, `EINVAL` for `..` at its end.
    pub(crate) async fn last(&mut self, place: Place<'_>) -> Result<Last> {
        let path = place.path;
        let end = path.iter().rposition(|byte| *byte != b'/');
        let path = &path[..end.map_or(0, |end| end + 1)];
        let start = path.iter().rposition(|byte| *byte == b'/');
        let (parent, name) = path.split_at(start.map_or(0, |start| start + 1));
        match name {
            b"" | b"." => return Err(Errno::EEXIST),
            b".." => return Err(Errno::EINVAL),
            _ => {}
        }
        let parent = Place::new(place.start, parent);
        Ok(match self.resolve(parent, true).await? {
            Way::Found(found) => Last::Name {
                parent: found.ino,
                name: Bytes::copy_from_slice(name),
            },
            Way::Missing { .. } => return Err(Errno::ENOENT),
            Way::Outside(path) => Last::Outside([&path, &b"/"[..], name].concat().into()),
        })
    }

    /// The path of a directory, by the names in its parents. Errors: `ENOENT` if it is gone.
    pub(crate) async fn path_of(&mut self, mut directory: Ino) -> Result<Vec<u8>> {
        let mut names: Vec<Bytes> = Vec::new();
        while directory != Ino::ROOT {
            let parent = self.transaction.lookup(directory, b"..").await?.ino;
            let mut listing = files::Listing::new(parent);
            let entries = self
                .transaction
                .list(&mut listing, 2, usize::MAX >> 1)
                .await?;
            let entry = entries.into_iter().find(|entry| entry.ino == directory);
            names.push(entry.ok_or(Errno::ENOENT)?.name);
            directory = parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(path)
    }

    /// Puts a link's target before the rest. `Some`: it is absolute, in the volume or outside.
    async fn follow(&mut self, link: Ino, rest: &mut Rest) -> Result<Option<Way>> {
        rest.links += 1;
        if rest.links > LINKS_MAX {
            return Err(Errno::ELOOP);
        }
        let target = self.transaction.readlink(link).await?;
        if target.first() != Some(&b'/') {
            rest.push(&target);
            return Ok(None);
        }
        let Some(path) = inside(&target, &self.rules.at) else {
            return Ok(Some(Way::Outside(rest.joined(&target))));
        };
        rest.push(path);
        let name = Bytes::new();
        Ok(Some(Way::Missing {
            parent: Ino::ROOT,
            name,
        }))
    }

    fn ascend(&mut self) {
        if self.trail.last().is_some_and(|name| name == "..") {
            let above = self.trail.len().saturating_sub(2);
            self.trail.truncate(above);
        }
    }

    async fn lookup_self(&mut self, ino: Ino) -> Result<Found> {
        match self.transaction.lookup(ino, b".").await {
            Err(Errno::ENOTDIR) => {}
            found => return found,
        }
        let attributes = self.transaction.getattr(ino).await?;
        Ok(Found {
            ino,
            kind: attributes.kind,
            access: attributes.access,
        })
    }

    /// Errors: `EACCES` if the user lacks permissions of a directory, and `ENOTDIR`.
    pub(crate) async fn require(&mut self, directory: Ino, wants: u32) -> Result<()> {
        if let Some(user) = &self.rules.user {
            let found = self.transaction.lookup(directory, b".").await?;
            user.require(&found.access, wants)?;
        }
        Ok(())
    }

    /// Errors: as [`require`](Self::require), if a name is missing, which a call would bind.
    pub(crate) async fn require_bind(&mut self, directory: Ino, name: &[u8]) -> Result<()> {
        if self.rules.user.is_none() || self.transaction.lookup(directory, name).await.is_ok() {
            return Ok(());
        }
        self.require(directory, WRITE | SEARCH).await
    }

    /// Errors: as [`require`](Self::require), and `EPERM` for others' names in a sticky directory,
    /// which a call would unbind.
    pub(crate) async fn require_unbind(&mut self, directory: Ino, name: &[u8]) -> Result<()> {
        self.require(directory, WRITE | SEARCH).await?;
        if let Some(user) = &self.rules.user
            && let Ok(found) = self.transaction.lookup(directory, name).await
        {
            let above = self.transaction.lookup(directory, b".").await?;
            user.require_unstuck(&above.access, &found.access)?;
        }
        Ok(())
    }

    async fn must_be_directory(&mut self, ino: Ino) -> Result<()> {
        // `.` is found in directories alone.
        self.transaction.lookup(ino, b".").await.map(|_| ())
    }
}
