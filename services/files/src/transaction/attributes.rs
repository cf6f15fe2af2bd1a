//! `stat`, `chmod`, `chown` and `utimensat`.

use bytes::Bytes;
use transactions::serializable::model::number_in;

use super::Transaction;
use crate::{
    error::{Errno, Result},
    inode::{self, Field},
    model::{Access, Attributes, Ino, Kind, Privileges, SetAttributes, SetTime},
};

/// The age from which an access is noted in any case, in seconds.
const ATIME_SECONDS_MAX: i64 = 24 * 60 * 60;

impl Transaction {
    /// All attributes. The transaction then depends on each of them.
    pub async fn getattr(&mut self, ino: Ino) -> Result<Attributes> {
        self.prefetch(ino, &Field::STAT).await?;
        self.settle_append(ino).await?;
        let fields = [
            Field::Existence,
            Field::Access,
            Field::Mtime,
            Field::Ctime,
            Field::Atime,
        ];
        let fields = fields.map(|field| inode::field(ino, field));
        let [kind, access, mtime, ctime, atime] = self.overlay.get_many(fields).await?;
        let kind = inode::kind_in(&kind.ok_or(Errno::ENOENT)?)?;
        let size = self.overlay.number(inode::field(ino, Field::Size)).await?;
        let (size, device) = if kind.is_device() {
            (0, size as u32)
        } else {
            (size, 0)
        };
        Ok(Attributes {
            ino,
            kind,
            access: inode::access_in(&access.ok_or(Errno::EIO)?)?,
            links: self.overlay.number(inode::field(ino, Field::Links)).await?,
            size,
            device,
            mtime: inode::time_in(&mtime.ok_or(Errno::EIO)?)?,
            ctime: inode::time_in(&ctime.ok_or(Errno::EIO)?)?,
            atime: inode::time_in(&atime.ok_or(Errno::EIO)?)?,
        })
    }

    /// The attributes of a directory. The transaction depends on its type and permissions alone.
    pub(super) async fn glance_at(&mut self, ino: Ino) -> Result<Attributes> {
        self.prefetch(ino, &Field::STAT).await?;
        let access = self.access(ino).await?;
        let fields = [Field::Mtime, Field::Ctime, Field::Atime, Field::Links];
        let fields = fields.map(|field| inode::field(ino, field));
        let [mtime, ctime, atime, links] = self.overlay.glance(fields).await?;
        let time = |value: Option<Bytes>| inode::time_in(&value.ok_or(Errno::EIO)?);
        Ok(Attributes {
            ino,
            kind: Kind::Directory,
            access,
            links: number_in(links.as_ref()).ok_or(Errno::EIO)?,
            size: 0,
            device: 0,
            mtime: time(mtime)?,
            ctime: time(ctime)?,
            atime: time(atime)?,
        })
    }

    /// Changes attributes. A new owner takes the set-user-ID bit from a file, and the set-group-ID
    /// bit if its group may execute it. Errors: `EISDIR` and `EINVAL` for a size of an inode that
    /// is no file, `EFBIG`, `EINVAL` for a second of 1,000,000,000 nanoseconds or more.
    pub async fn setattr(&mut self, ino: Ino, set: SetAttributes) -> Result<()> {
        let times = [(Field::Atime, set.atime), (Field::Mtime, set.mtime)];
        let is_wrong = |set: Option<SetTime>| matches!(set, Some(SetTime::To(time)) if time.nanoseconds >= 1_000_000_000);
        if times.iter().any(|(_, time)| is_wrong(*time)) {
            return Err(Errno::EINVAL);
        }
        self.prefetch(ino, &Field::STAT).await?;
        let kind = self.kind(ino).await?;
        if let Some(size) = set.size {
            self.truncate(ino, size).await?;
        }
        let before = self.access(ino).await?;
        let mut access = before;
        if set.uid.is_some() || set.gid.is_some() {
            access.uid = set.uid.unwrap_or(access.uid);
            access.gid = set.gid.unwrap_or(access.gid);
            if kind != Kind::Directory {
                access = access.without_privileges();
            }
        }
        if set.privileges == Privileges::Clear {
            access = access.without_privileges();
        }
        access.mode = set.mode.map_or(access.mode, |mode| mode & 0o7777);
        if access != before || set.mode.is_some() {
            self.put_access(ino, access);
        }
        let now = self.now();
        for (field, time) in times {
            let time = match time {
                Some(SetTime::To(time)) => time,
                Some(SetTime::Now) => now,
                None => continue,
            };
            let value = inode::time_bytes(time);
            self.overlay.put(inode::field(ino, field), value);
        }
        if set != SetAttributes::default() {
            self.touch(ino, &[Field::Ctime]);
        }
        Ok(())
    }

    /// Notes that the data were read now, by the rules of `relatime`: only if the last access is
    /// not after the last change, or is a day old. It depends on nothing, and a read within a
    /// transaction never calls it, because all readers would then write. Errors: `ENOENT`.
    pub async fn note_access(&mut self, ino: Ino) -> Result<()> {
        let fields = [Field::Existence, Field::Atime, Field::Mtime, Field::Ctime];
        let fields = fields.map(|field| inode::field(ino, field));
        let [kind, atime, mtime, ctime] = self.overlay.glance(fields).await?;
        kind.ok_or(Errno::ENOENT)?;
        let [atime, mtime, ctime] = [atime, mtime, ctime].map(|value| {
            let value = value.ok_or(Errno::EIO)?;
            inode::time_in(&value)
        });
        let (atime, now) = (atime?, self.now());
        let is_old = now.seconds.saturating_sub(atime.seconds) >= ATIME_SECONDS_MAX;
        if atime <= mtime? || atime <= ctime? || is_old {
            // Without the inode, this would leave a value of a dead one.
            self.kind(ino).await?;
            self.touch(ino, &[Field::Atime]);
        }
        Ok(())
    }

    /// The permissions and the owner. Errors: `ENOENT` if the inode is gone.
    pub(super) async fn access(&mut self, ino: Ino) -> Result<Access> {
        let fields = [Field::Existence, Field::Access].map(|field| inode::field(ino, field));
        let [kind, access] = self.overlay.get_many(fields).await?;
        kind.ok_or(Errno::ENOENT)?;
        inode::access_in(&access.ok_or(Errno::EIO)?)
    }

    pub(super) fn put_access(&mut self, ino: Ino, access: Access) {
        let value = inode::access_bytes(access);
        self.overlay.put(inode::field(ino, Field::Access), value);
    }
}
