//! Translates each request, a system call, into calls of the mapping.
//!
//! A reply that is an `errno` of the call itself is no failure of the transaction.

use bytes::Bytes;
use files::{
    Errno, Ino, Result, Transaction,
    model::{
        Access, Allocation, Attributes, Found, Kind, Privileges, RenameMode, Seek, SetAttributes,
        SetMode, SetTime, Time,
    },
};

use crate::{
    permissions::{READ, SEARCH, User, WRITE},
    walk::{Last, Rules, Walk, Way},
    wire::{Changes, OUTSIDE, Place, Request, Status, set},
};

/// A reply: a status, and the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: i32,
    pub(crate) payload: Bytes,
}

impl Answer {
    pub(crate) const DONE: Self = Self {
        status: 0,
        payload: Bytes::new(),
    };

    pub(crate) fn of(payload: impl Into<Bytes>) -> Self {
        Self {
            status: 0,
            payload: payload.into(),
        }
    }

    pub(crate) fn refused(errno: i32) -> Self {
        Self {
            status: errno,
            payload: Bytes::new(),
        }
    }

    fn outside(path: Bytes) -> Self {
        Self {
            status: OUTSIDE,
            payload: path,
        }
    }
}

/// Answers a request for which a server needs no state of its own. Errors: those of the mapping.
pub(crate) async fn answer(
    transaction: &mut Transaction,
    rules: &Rules,
    message: &Bytes,
) -> Result<Answer> {
    let Some(request) = Request::decode(message) else {
        return Ok(Answer::refused(libc::EPROTO));
    };
    let is_open = matches!(request, Request::Open { .. });
    if rules.is_read_only && !is_open && is_change(&request) {
        return Ok(Answer::refused(libc::EROFS));
    }
    let trail = Vec::new();
    let walk = Walk {
        transaction,
        rules,
        trail,
    };
    let mut call = Call {
        walk,
        rules,
        message,
    };
    match request {
        Request::Open { .. } => call.open(request).await,
        Request::Stat { place, follows } => call.stat(place, follows != 0).await,
        Request::Read { .. }
        | Request::Write { .. }
        | Request::Append { .. }
        | Request::Allocate { .. }
        | Request::Seek { .. } => call.data(request).await,
        Request::Change {
            place,
            follows,
            changes,
        } => call.change(place, follows != 0, changes).await,
        Request::Readlink { place } => call.readlink(place).await,
        Request::Canonical { place } => call.canonical(place).await,
        Request::GetXattr { .. }
        | Request::SetXattr { .. }
        | Request::RemoveXattr { .. }
        | Request::ListXattr { .. } => call.xattr(request).await,
        Request::Mkdir { .. } | Request::Symlink { .. } => call.make(request).await,
        Request::Rmdir { .. }
        | Request::Unlink { .. }
        | Request::Rename { .. }
        | Request::Link { .. } => call.names(request).await,
        // The server answers these itself.
        Request::Locked { .. } | Request::List { .. } | Request::Sync {} | Request::Space {} => {
            Ok(Answer::refused(libc::EPROTO))
        }
    }
}

/// Whether a request may change the volume.
pub(crate) fn is_change(request: &Request<'_>) -> bool {
    match request {
        Request::Open { flags, .. } => flags.cast_signed() & (libc::O_CREAT | libc::O_TRUNC) != 0,
        Request::Locked { .. }
        | Request::Stat { .. }
        | Request::Read { .. }
        | Request::Seek { .. }
        | Request::Readlink { .. }
        | Request::List { .. }
        | Request::Sync {}
        | Request::Space {}
        | Request::Canonical { .. }
        | Request::GetXattr { .. }
        | Request::ListXattr { .. } => false,
        _ => true,
    }
}

struct Call<'t> {
    walk: Walk<'t>,
    rules: &'t Rules,
    message: &'t Bytes,
}

/// Continues with the inode that a path leads to, or answers.
macro_rules! found {
    ($way:expr) => {
        match $way {
            Way::Found(found) => found,
            Way::Missing { .. } => return Err(Errno::ENOENT),
            Way::Outside(path) => return Ok(Answer::outside(path)),
        }
    };
}

/// Continues with a name in a directory, or answers.
macro_rules! last {
    ($last:expr) => {
        match $last {
            Last::Name { parent, name } => (parent, name),
            Last::Outside(path) => return Ok(Answer::outside(path)),
        }
    };
}

impl Call<'_> {
    async fn open(&mut self, request: Request<'_>) -> Result<Answer> {
        let Request::Open {
            place,
            flags,
            mode,
            uid,
            gid,
        } = request
        else {
            return Ok(Answer::refused(libc::EPROTO));
        };
        let flags = meant(flags.cast_signed());
        let has = |flag| flags & flag == flag;
        let is_exclusive = has(libc::O_CREAT | libc::O_EXCL);
        let follows = !has(libc::O_NOFOLLOW) && !is_exclusive;
        let wants = wanted(flags);
        if self.rules.is_read_only && wants & WRITE != 0 {
            return Ok(Answer::refused(libc::EROFS));
        }
        let found = match self.walk.resolve(place, follows).await? {
            Way::Outside(path) => return Ok(Answer::outside(path)),
            Way::Missing { .. } if !has(libc::O_CREAT) => return Err(Errno::ENOENT),
            Way::Missing { .. } if place.path.ends_with(b"/") => return Err(Errno::EISDIR),
            Way::Missing { .. } if self.rules.is_read_only => {
                return Ok(Answer::refused(libc::EROFS));
            }
            Way::Missing { parent, name } => {
                self.walk.require(parent, WRITE | SEARCH).await?;
                let mode = mode & 0o7777;
                let access = Access { mode, uid, gid };
                let ino = self.walk.transaction.create(parent, access, &name).await?;
                return Ok(opened(ino, Kind::File));
            }
            Way::Found(_) if is_exclusive => return Err(Errno::EEXIST),
            Way::Found(found) => found,
        };
        match found.kind {
            Kind::Symlink if has(libc::O_PATH) => return Ok(Answer::refused(libc::EOPNOTSUPP)),
            Kind::Symlink => return Err(Errno::ELOOP),
            Kind::Fifo | Kind::Socket | Kind::CharacterDevice | Kind::BlockDevice => {
                return Ok(Answer::refused(libc::EOPNOTSUPP));
            }
            Kind::Directory if flags & libc::O_ACCMODE != libc::O_RDONLY || has(libc::O_CREAT) => {
                return Err(Errno::EISDIR);
            }
            Kind::File if has(libc::O_DIRECTORY) => return Err(Errno::ENOTDIR),
            _ => {}
        }
        if let Some(user) = &self.rules.user {
            user.require(&found.access, wants)?;
        }
        match found.kind {
            Kind::File if has(libc::O_TRUNC) => {
                self.walk.transaction.truncate(found.ino, 0).await?;
            }
            _ => {}
        }
        Ok(opened(found.ino, found.kind))
    }

    async fn stat(&mut self, place: Place<'_>, follows: bool) -> Result<Answer> {
        let ino = if place.path.is_empty() {
            Ino(place.start)
        } else {
            found!(self.walk.resolve(place, follows).await?).ino
        };
        let attributes = self.walk.transaction.getattr(ino).await?;
        Ok(Answer::of(encoded(&status(&attributes))))
    }

    async fn data(&mut self, request: Request<'_>) -> Result<Answer> {
        let message = self.message;
        let transaction = &mut *self.walk.transaction;
        let keep = Privileges::Keep;
        match request {
            Request::Read { ino, offset, count } => {
                let read = transaction.read(Ino(ino), offset, count.into()).await?;
                return Ok(Answer::of(read));
            }
            Request::Write { ino, offset, data } => {
                let data = message.slice_ref(data);
                transaction.write(Ino(ino), offset, keep, &data).await?;
            }
            Request::Append { ino, data } => {
                let data = message.slice_ref(data);
                transaction.append(Ino(ino), keep, &data).await?;
            }
            Request::Allocate {
                ino,
                mode,
                offset,
                count,
            } => {
                let allocation = match mode.cast_signed() {
                    0 => Allocation::Extend,
                    libc::FALLOC_FL_KEEP_SIZE => Allocation::KeepSize,
                    libc::FALLOC_FL_ZERO_RANGE => Allocation::ZeroRange,
                    mode if mode == libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE => {
                        Allocation::PunchHole
                    }
                    _ => return Ok(Answer::refused(libc::EOPNOTSUPP)),
                };
                let allocated = transaction.fallocate(Ino(ino), allocation, offset, count);
                allocated.await?;
            }
            Request::Seek {
                ino,
                offset,
                whence,
            } => {
                let seek = if whence.cast_signed() == libc::SEEK_DATA {
                    Seek::Data
                } else {
                    Seek::Hole
                };
                let found = transaction.seek(Ino(ino), seek, offset).await?;
                return Ok(Answer::of(encoded(&found)));
            }
            _ => return Ok(Answer::refused(libc::EPROTO)),
        }
        Ok(Answer::DONE)
    }

    async fn change(
        &mut self,
        place: Place<'_>,
        follows: bool,
        changes: Changes,
    ) -> Result<Answer> {
        let found = found!(self.target(place, follows).await?);
        if found.kind == Kind::Symlink && changes.set & set::MODE != 0 {
            return Ok(Answer::refused(libc::EOPNOTSUPP));
        }
        if let Some(user) = &self.rules.user {
            may_change(user, &found.access, place, changes)?;
        }
        let changed = self
            .walk
            .transaction
            .setattr(found.ino, attributes(changes));
        changed.await?;
        Ok(Answer::DONE)
    }

    async fn readlink(&mut self, place: Place<'_>) -> Result<Answer> {
        let found = found!(self.walk.resolve(place, false).await?);
        let target = self.walk.transaction.readlink(found.ino).await?;
        Ok(Answer::of(target))
    }

    async fn canonical(&mut self, place: Place<'_>) -> Result<Answer> {
        found!(self.walk.resolve(place, true).await?);
        let mut path = Vec::new();
        if place.start != Ino::ROOT.0 {
            path = self.walk.path_of(Ino(place.start)).await?;
        }
        for name in &self.walk.trail {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(Answer::of(path))
    }

    async fn names(&mut self, request: Request<'_>) -> Result<Answer> {
        match request {
            Request::Rmdir { place } => {
                let (parent, name) = last!(self.walk.last(place).await.map_err(busy)?);
                self.walk.require_unbind(parent, &name).await?;
                self.walk.transaction.rmdir(parent, &name).await?;
            }
            Request::Unlink { place } => {
                let (parent, name) = last!(self.walk.last(place).await.map_err(|_| Errno::EISDIR)?);
                if place.path.ends_with(b"/") {
                    return Err(Errno::ENOTDIR);
                }
                self.walk.require_unbind(parent, &name).await?;
                self.walk.transaction.unlink(parent, &name).await?;
            }
            Request::Rename { from, to, flags } => {
                let mode = match flags {
                    0 => RenameMode::Replace,
                    libc::RENAME_NOREPLACE => RenameMode::NoReplace,
                    libc::RENAME_EXCHANGE => RenameMode::Exchange,
                    _ => return Err(Errno::EINVAL),
                };
                let (from, from_name) = last!(self.walk.last(from).await.map_err(busy)?);
                let (to, to_name) = last!(self.walk.last(to).await.map_err(busy)?);
                self.walk.require_unbind(from, &from_name).await?;
                self.walk.require_unbind(to, &to_name).await?;
                if from != to {
                    self.moved(from, &from_name).await?;
                }
                let transaction = &mut *self.walk.transaction;
                let renamed = transaction.rename(from, to, mode, &from_name, &to_name);
                renamed.await?;
            }
            Request::Link { from, follows, to } => {
                let found = found!(self.walk.resolve(from, follows != 0).await?);
                let (parent, name) = last!(self.walk.last(to).await?);
                self.walk.require_bind(parent, &name).await?;
                self.walk.transaction.link(found.ino, parent, &name).await?;
            }
            _ => return Ok(Answer::refused(libc::EPROTO)),
        }
        Ok(Answer::DONE)
    }

    /// Errors: `EACCES` for a directory without the permission to change its `..`.
    async fn moved(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        let found = self.walk.transaction.lookup(parent, name).await?;
        match &self.rules.user {
            Some(user) if found.kind == Kind::Directory => user.require(&found.access, WRITE),
            _ => Ok(()),
        }
    }

    async fn make(&mut self, request: Request<'_>) -> Result<Answer> {
        match request {
            Request::Mkdir {
                place,
                mode,
                uid,
                gid,
            } => {
                let (parent, name) = last!(self.walk.last(place).await?);
                self.walk.require_bind(parent, &name).await?;
                let mode = mode & 0o7777;
                let access = Access { mode, uid, gid };
                self.walk.transaction.mkdir(parent, access, &name).await?;
            }
            Request::Symlink {
                target,
                place,
                uid,
                gid,
            } => {
                let (parent, name) = last!(self.walk.last(place).await?);
                self.walk.require_bind(parent, &name).await?;
                let mode = 0o777;
                let access = Access { mode, uid, gid };
                let target = self.message.slice_ref(target);
                let transaction = &mut *self.walk.transaction;
                let made = transaction.symlink(parent, access, &name, &target);
                made.await?;
            }
            _ => return Ok(Answer::refused(libc::EPROTO)),
        }
        Ok(Answer::DONE)
    }

    async fn xattr(&mut self, request: Request<'_>) -> Result<Answer> {
        let (place, follows) = match request {
            Request::GetXattr { place, follows, .. }
            | Request::SetXattr { place, follows, .. }
            | Request::RemoveXattr { place, follows, .. }
            | Request::ListXattr { place, follows } => (place, follows != 0),
            _ => return Ok(Answer::refused(libc::EPROTO)),
        };
        let Found { ino, access, .. } = found!(self.target(place, follows).await?);
        let wants = match request {
            Request::GetXattr { .. } => READ,
            Request::ListXattr { .. } => 0,
            _ => WRITE,
        };
        if let Some(user) = &self.rules.user {
            user.require(&access, wants)?;
        }
        let transaction = &mut *self.walk.transaction;
        match request {
            Request::GetXattr { name, .. } => {
                return transaction.getxattr(ino, name).await.map(Answer::of);
            }
            Request::SetXattr {
                name, value, flags, ..
            } => {
                let mode = match flags.cast_signed() {
                    libc::XATTR_CREATE => SetMode::Create,
                    libc::XATTR_REPLACE => SetMode::Replace,
                    _ => SetMode::Any,
                };
                let value = self.message.slice_ref(value);
                transaction.setxattr(ino, mode, name, &value).await?;
            }
            Request::RemoveXattr { name, .. } => transaction.removexattr(ino, name).await?,
            _ => {
                let names = transaction.listxattr(ino).await?;
                let names = names.iter().flat_map(|name| [name, &b"\0"[..]]);
                return Ok(Answer::of(names.collect::<Vec<_>>().concat()));
            }
        }
        Ok(Answer::DONE)
    }

    /// The inode that a path leads to. An empty path leads to the inode that it starts at.
    async fn target(&mut self, place: Place<'_>, follows: bool) -> Result<Way> {
        if !place.path.is_empty() {
            return self.walk.resolve(place, follows).await;
        }
        let Attributes {
            ino, kind, access, ..
        } = self.walk.transaction.getattr(Ino(place.start)).await?;
        Ok(Way::Found(Found { ino, kind, access }))
    }
}

/// Errors: `EPERM` or `EACCES` if the user may not change these attributes. A length that is set
/// through a descriptor was checked by its open.
fn may_change(user: &User, access: &Access, place: Place<'_>, changes: Changes) -> Result<()> {
    let has = |bits| changes.set & bits != 0;
    if has(set::SIZE) && !place.path.is_empty() {
        user.require(access, WRITE)?;
    }
    if has(set::UID) && changes.uid != access.uid {
        return Err(Errno::EPERM);
    }
    if has(set::GID) && !user.groups.contains(&changes.gid) {
        return Err(Errno::EPERM);
    }
    if has(set::MODE | set::UID | set::GID | set::ATIME | set::MTIME) {
        user.require_owner(access)?;
    }
    if has(set::ATIME_NOW | set::MTIME_NOW) && user.require_owner(access).is_err() {
        user.require(access, WRITE)?;
    }
    Ok(())
}

/// The refusal for the root, which has no name to remove.
fn busy(errno: Errno) -> Errno {
    if errno == Errno::EEXIST {
        Errno::EBUSY
    } else {
        errno
    }
}

fn opened(ino: Ino, kind: Kind) -> Answer {
    let mut payload = encoded(&ino.0);
    payload.extend(kind.type_bits().to_le_bytes());
    Answer::of(payload)
}

/// A field as bytes.
pub(crate) fn encoded<'a>(field: &impl crate::wire::Field<'a>) -> Vec<u8> {
    let mut bytes = [0; 128];
    let mut writer = crate::wire::Writer::new(&mut bytes);
    field.put(&mut writer).expect("a number or a status fits");
    let len = writer.len();
    bytes[..len].to_vec()
}

fn status(attributes: &Attributes) -> Status {
    let access = attributes.access;
    Status {
        ino: attributes.ino.0,
        mode: attributes.kind.type_bits() | access.mode,
        uid: access.uid,
        gid: access.gid,
        links: attributes.links,
        size: attributes.size,
        atime: attributes.atime.seconds,
        atime_ns: attributes.atime.nanoseconds,
        mtime: attributes.mtime.seconds,
        mtime_ns: attributes.mtime.nanoseconds,
        ctime: attributes.ctime.seconds,
        ctime_ns: attributes.ctime.nanoseconds,
    }
}

fn attributes(changes: Changes) -> SetAttributes {
    let has = |bit| changes.set & bit != 0;
    let time = |to, now, seconds, nanoseconds| {
        let time = Time {
            seconds,
            nanoseconds,
        };
        let set = has(to).then_some(SetTime::To(time));
        set.or(has(now).then_some(SetTime::Now))
    };
    SetAttributes {
        mode: has(set::MODE).then_some(changes.mode & 0o7777),
        uid: has(set::UID).then_some(changes.uid),
        gid: has(set::GID).then_some(changes.gid),
        size: has(set::SIZE).then_some(changes.size),
        atime: time(set::ATIME, set::ATIME_NOW, changes.atime, changes.atime_ns),
        mtime: time(set::MTIME, set::MTIME_NOW, changes.mtime, changes.mtime_ns),
        privileges: Privileges::Keep,
    }
}

/// The flags of an `open` that count: beside `O_PATH` most do not.
fn meant(flags: i32) -> i32 {
    if flags & libc::O_PATH == 0 {
        return flags;
    }
    flags & (libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)
}

/// The permissions that an `open` with these flags needs.
fn wanted(flags: i32) -> u32 {
    let mut wants = match flags & libc::O_ACCMODE {
        _ if flags & libc::O_PATH != 0 => 0,
        libc::O_RDONLY => READ,
        libc::O_WRONLY => WRITE,
        _ => READ | WRITE,
    };
    if flags & libc::O_TRUNC != 0 {
        wants |= WRITE;
    }
    wants
}
