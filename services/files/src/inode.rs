//! The keys of inodes, entries, blocks and orphans, and the values that they have.
//!
//! The attributes of an inode are keys of their own, so that calls which change different ones do
//! not conflict. A write sets times and raises the size, and a lookup reads neither.

use bytes::{BufMut, Bytes, BytesMut};
use transactions::serializable::model::{Key, KeyRange};

use crate::{
    error::{Errno, Result},
    model::{Access, Ino, Kind, Time},
};

/// How many groups the orphan candidates are spread over.
pub(crate) const ORPHAN_SHARDS: u8 = 16;

/// A key of an inode.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Field {
    /// Its type. It never changes, and each call that needs the inode reads it.
    Existence,
    Access,
    Size,
    Links,
    Mtime,
    Ctime,
    Atime,
    /// The directory that holds a directory.
    Parent,
    /// The target of a symbolic link.
    Target,
}

impl Field {
    pub(crate) const ALL: [Self; 9] = [
        Self::Existence,
        Self::Access,
        Self::Size,
        Self::Links,
        Self::Mtime,
        Self::Ctime,
        Self::Atime,
        Self::Parent,
        Self::Target,
    ];

    /// Those that `stat` reads.
    pub(crate) const STAT: [Self; 7] = [
        Self::Existence,
        Self::Access,
        Self::Size,
        Self::Links,
        Self::Mtime,
        Self::Ctime,
        Self::Atime,
    ];

    const fn name(self) -> &'static [u8] {
        match self {
            Self::Existence => b"e",
            Self::Access => b"a",
            Self::Size => b"s",
            Self::Links => b"n",
            Self::Mtime => b"m",
            Self::Ctime => b"c",
            Self::Atime => b"t",
            Self::Parent => b"p",
            Self::Target => b"l",
        }
    }
}

/// A key beside the files. Its name has at most 480 bytes.
pub(crate) fn user_key(name: Bytes) -> Key {
    Key::new(&b"k"[..], name).expect("callers check the length")
}

fn group(letter: u8, ino: Ino) -> Bytes {
    let mut group = BytesMut::with_capacity(9);
    group.put_u8(letter);
    group.put_u64(ino.0);
    group.freeze()
}

fn key(group: Bytes, name: impl Into<Bytes>) -> Key {
    Key::new(group, name).expect("names are at most 256 bytes long")
}

fn range(group: Bytes, from: Bytes, until: Option<Bytes>) -> KeyRange {
    KeyRange::new(group, from, until).expect("names are at most 256 bytes long")
}

pub(crate) fn field(ino: Ino, field: Field) -> Key {
    key(group(b'i', ino), field.name())
}

/// The key that locks of an inode are on.
pub fn lock_key(ino: Ino) -> Key {
    field(ino, Field::Existence)
}

/// All keys of an inode but its blocks and entries.
pub(crate) fn fields(ino: Ino) -> KeyRange {
    range(group(b'i', ino), Bytes::new(), None)
}

/// Whether changes of other inodes and names rest on the key: a name, a type or permissions.
pub(crate) fn is_remembered(key: &Key) -> bool {
    let fields = [Field::Existence, Field::Access].map(Field::name);
    match key.group().first() {
        Some(b'd') => true,
        Some(b'i') => fields.contains(&&key.name()[..]),
        _ => false,
    }
}

pub(crate) fn xattr(ino: Ino, name: &[u8]) -> Key {
    let mut whole = BytesMut::with_capacity(1 + name.len());
    whole.put_u8(b'x');
    whole.put_slice(name);
    key(group(b'i', ino), whole)
}

pub(crate) fn xattrs(ino: Ino) -> KeyRange {
    let until = Bytes::from_static(b"y");
    range(group(b'i', ino), Bytes::from_static(b"x"), Some(until))
}

pub(crate) fn entry(directory: Ino, name: &[u8]) -> Key {
    key(group(b'd', directory), Bytes::copy_from_slice(name))
}

/// The entries of a directory from `name` on.
pub(crate) fn entries(directory: Ino, name: Bytes) -> KeyRange {
    range(group(b'd', directory), name, None)
}

/// The key whose [`Key::block`] names each block.
pub(crate) fn blocks(ino: Ino) -> Key {
    key(group(b'b', ino), Bytes::new())
}

pub(crate) fn block(ino: Ino, number: u64) -> Key {
    key(group(b'b', ino), number.to_be_bytes().to_vec())
}

/// The blocks from `from` to `until` (exclusive; none: all after it).
pub(crate) fn block_range(ino: Ino, from: u64, until: Option<u64>) -> KeyRange {
    let name = |number: u64| Bytes::copy_from_slice(&number.to_be_bytes());
    range(group(b'b', ino), name(from), until.map(name))
}

/// The number in the name of a block or an orphan candidate.
pub(crate) fn number_of(name: &[u8]) -> Result<u64> {
    Ok(u64::from_be_bytes(name.try_into().map_err(damaged)?))
}

/// The inode that a key belongs to, with the name if it is an entry of a directory. `None`: it is
/// no key of a file.
pub(crate) fn owner_of(key: &Key) -> Option<(Ino, Option<Bytes>)> {
    let (letter, rest) = key.group().split_first()?;
    let number = |bytes: &[u8]| Some(Ino(number_of(bytes).ok()?));
    match letter {
        b'i' | b'b' => Some((number(rest)?, None)),
        b'd' => Some((number(rest)?, Some(key.name().clone()))),
        b'o' => Some((number(key.name())?, None)),
        _ => None,
    }
}

/// The first byte of the groups of orphan candidates.
const ORPHANS: u8 = b'o';

fn orphan_group(shard: u8) -> Bytes {
    Bytes::copy_from_slice(&[ORPHANS, shard])
}

pub(crate) fn is_of_orphan(key: &Key) -> bool {
    key.group().first() == Some(&ORPHANS)
}

pub(crate) fn orphan(ino: Ino) -> Key {
    let shard = (ino.0 % u64::from(ORPHAN_SHARDS)) as u8;
    key(orphan_group(shard), ino.0.to_be_bytes().to_vec())
}

pub(crate) fn orphans(shard: u8) -> KeyRange {
    range(orphan_group(shard), Bytes::new(), None)
}

/// The value of an orphan candidate that a session may still open.
pub(crate) const CANDIDATE: Bytes = Bytes::from_static(b"");
/// The value of a candidate that never had a name, and may still be given one.
pub(crate) const UNNAMED: Bytes = Bytes::from_static(b"unnamed");
/// The value of a candidate that the reaper is about to delete.
pub(crate) const DYING: Bytes = Bytes::from_static(b"dying");

pub(crate) fn kind_bytes(kind: Kind) -> Bytes {
    Bytes::copy_from_slice(&[kind as u8])
}

/// Errors: `EIO` if the value is damaged.
pub(crate) fn kind_in(value: &[u8]) -> Result<Kind> {
    let [code] = value.try_into().map_err(damaged)?;
    Kind::of(code).ok_or(Errno::EIO)
}

pub(crate) fn access_bytes(access: Access) -> Bytes {
    let numbers = [access.mode, access.uid, access.gid];
    numbers.iter().flat_map(|n| n.to_be_bytes()).collect()
}

pub(crate) fn access_in(value: &[u8]) -> Result<Access> {
    let value: [u8; 12] = value.try_into().map_err(damaged)?;
    let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| value[at + i]));
    Ok(Access {
        mode: number(0),
        uid: number(4),
        gid: number(8),
    })
}

pub(crate) fn time_bytes(time: Time) -> Bytes {
    let mut value = BytesMut::with_capacity(12);
    value.put_i64(time.seconds);
    value.put_u32(time.nanoseconds);
    value.freeze()
}

pub(crate) fn time_in(value: &[u8]) -> Result<Time> {
    let (seconds, nanoseconds) = value.split_first_chunk().ok_or(Errno::EIO)?;
    Ok(Time {
        seconds: i64::from_be_bytes(*seconds),
        nanoseconds: u32::from_be_bytes(nanoseconds.try_into().map_err(damaged)?),
    })
}

pub(crate) fn entry_bytes(ino: Ino, kind: Kind) -> Bytes {
    let mut value = BytesMut::with_capacity(9);
    value.put_u64(ino.0);
    value.put_u8(kind as u8);
    value.freeze()
}

pub(crate) fn entry_in(value: &[u8]) -> Result<(Ino, Kind)> {
    let (ino, kind) = value.split_first_chunk().ok_or(Errno::EIO)?;
    Ok((Ino(u64::from_be_bytes(*ino)), kind_in(kind)?))
}

/// A stored value that does not decode.
fn damaged<E>(_: E) -> Errno {
    Errno::EIO
}
