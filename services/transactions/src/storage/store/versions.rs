//! Version items, and the parts of write sets too large for their rows.
//!
//! Invariants
//! - A version holds no timestamp and no outcome: both come from its decision row alone.
//! - An earlier write of an attempt never replaces a later one, in any order of arrival.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};
use ports::{
    Condition, DurabilityPoint, Item, Key as ItemKey, Update,
    key_value::{Action, Name, Outcome, Read, Test, Value},
};

use crate::{
    Result,
    model::{Attempt, Key, Located, PackId, TransactionId},
    storage::{
        layout,
        records::{Place, Write, WriteSet, decode, encode},
    },
};

use super::{Store, corrupt};

/// The transaction's id.
const ID: &str = "id";
/// The write's number within its attempt.
const WRITE: &str = "write";
/// The value.
const VALUE: &str = "value";
/// The number of chunks of the value.
const CHUNKS: &str = "chunks";
/// The length of the value then.
const BYTES: &str = "bytes";
/// Its CRC-32.
const CRC: &str = "crc";
/// One: the key is deleted.
const GONE: &str = "gone";
/// The pack of the value.
const PACK: &str = "pack";
/// The offset of the value in its pack.
const OFFSET: &str = "offset";
/// The key, for a key too long for its sort key.
const KEY: &str = "key";
/// The writes in a part of a write set.
const RECORD: &str = "record";

/// Version items in one page: with values of up to 64 KiB, a page takes a few megabytes.
const PAGE_ITEMS: usize = 100;

/// A version item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionItem {
    pub(crate) id: TransactionId,
    pub(crate) write: u32,
    /// Where its value is.
    pub(crate) place: Place,
    /// The value, if it is here.
    pub(crate) value: Option<Bytes>,
    /// Its position, if it is in a pack.
    pub(crate) packed: Option<Located>,
    /// The key, if it is too long for the sort key.
    pub(crate) long_key: Option<Bytes>,
}

impl Store {
    /// Writes a version: `value` unless it is chunked or deleted, and `packed` if it is in a pack.
    /// A later write of the same attempt stays.
    pub(crate) async fn put_version(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        write: &Write,
        value: Option<Bytes>,
        packed: Option<Located>,
    ) -> Result<()> {
        self.update(self.putting(id, attempt, write, value, packed))
            .await
            .map(drop)
    }

    /// The update that writes a version.
    pub(crate) fn putting(
        &self,
        id: &TransactionId,
        attempt: Attempt,
        write: &Write,
        value: Option<Bytes>,
        packed: Option<Located>,
    ) -> Update {
        let number = i64::from(write.write);
        let mut attributes = vec![
            (Name::from(ID), Value::Bytes(id.as_bytes().clone())),
            (Name::from(WRITE), Value::Integer(number)),
        ];
        attributes.extend(held(write.place, value, packed));
        if layout::is_long(&write.key) {
            attributes.push((Name::from(KEY), Value::Bytes(write.key.name().clone())));
        }
        let is_mine = Condition::Any(vec![
            Condition::Absent,
            Condition::attribute(WRITE, Test::Below(number)),
        ]);
        Update::put(self.buckets.version(&write.key, attempt), attributes).when(is_mine)
    }

    /// Deletes an uncommitted version.
    pub(crate) async fn delete_version(&self, key: &Key, attempt: Attempt) -> Result<()> {
        self.finish(&Update::delete(self.buckets.version(key, attempt)))
            .await
            .map(drop)
    }

    /// Notes the new position of a packed value. Returns false if its item is gone, or names
    /// another position already.
    pub(crate) async fn move_version(
        &self,
        key: &Key,
        attempt: Attempt,
        from: Located,
        to: Located,
    ) -> Result<bool> {
        let (item, old, new) = (self.buckets.version(key, attempt), lies(from), lies(to));
        let is_there = old
            .into_iter()
            .map(|(name, value)| Condition::attribute(name, Test::Equals(value)));
        let moved = new
            .iter()
            .cloned()
            .map(|(name, value)| Action::Set(name, value))
            .collect();
        let update = Update::modify(item, moved).when(Condition::All(is_there.collect()));
        Ok(match self.finish(&update).await?.0 {
            Outcome::Done(_) => true,
            // An answer that was lost, perhaps.
            Outcome::Conflict(item) => item.is_some_and(|item| located(&item) == Some(to)),
        })
    }

    /// Every version item of `key`, decided or not, with its attempt; and the point that this
    /// depends on.
    pub(crate) async fn versions(
        &self,
        key: &Key,
    ) -> Result<(Vec<(Attempt, VersionItem)>, DurabilityPoint)> {
        let (items, point) = self
            .scan_all(self.buckets.versions(key, PAGE_ITEMS))
            .await?;
        let decode = |(sort, item): (Bytes, Arc<Item>)| {
            let attempt = layout::attempt_of(&sort).ok_or_else(|| corrupt("a version's key"))?;
            Ok((attempt, VersionItem::decode_of(key, &item)?))
        };
        let versions = items.into_iter().map(decode).collect::<Result<_>>()?;
        Ok((versions, point))
    }

    /// The first version items of a bucket of the default keyspace from a place on, with their
    /// keys, and where the next page begins.
    pub(crate) async fn listed(
        &self,
        bucket: u8,
        from: Bytes,
        until: Bytes,
        items_max: usize,
    ) -> Result<Read<(Vec<(Key, Attempt, VersionItem)>, Option<Bytes>)>> {
        let scan = self.buckets.listed(bucket, from, until, items_max);
        let page = self.scan(&scan).await?;
        let mut versions = Vec::with_capacity(page.value.items.len());
        for (sort, item) in page.value.items {
            let item = VersionItem::decode(&item)?;
            let place = layout::version_of(
                &ItemKey::new(&scan.partition, &sort),
                item.long_key.as_ref(),
            );
            let (key, attempt) = place.ok_or_else(|| corrupt("a version's key"))?;
            versions.push((key, attempt, item));
        }
        Ok(Read {
            value: (versions, page.value.next),
            point: page.point,
        })
    }

    /// One version item.
    pub(crate) async fn version(&self, key: &Key, attempt: Attempt) -> Result<Option<VersionItem>> {
        let read = self.get(&self.buckets.version(key, attempt)).await?;
        read.value
            .map(|item| VersionItem::decode_of(key, &item))
            .transpose()
    }

    /// Writes the parts of a write set in parallel; they are issued before the writes that follow.
    pub(crate) async fn put_write_set(&self, attempt: Attempt, parts: &[Vec<Write>]) -> Result<()> {
        let parts = stream::iter((0..).zip(parts).map(Ok));
        let put = |(part, writes)| async move {
            let attributes = vec![(Name::from(RECORD), Value::Bytes(encode(writes)))];
            self.update(Update::put(
                layout::write_set_part(attempt, part),
                attributes,
            ))
            .await
            .map(drop)
        };
        parts.try_for_each_concurrent(None, put).await
    }

    /// A write set, assembled if it is in parts. Parts that were never written are omitted.
    pub(crate) async fn write_set(&self, attempt: Attempt, set: &WriteSet) -> Result<Vec<Write>> {
        let parts = match set {
            WriteSet::Inline(writes) => return Ok(writes.clone()),
            WriteSet::Parts(parts) => *parts,
        };
        let mut writes = Vec::new();
        for part in 0..parts {
            let read = self.get(&layout::write_set_part(attempt, part)).await?;
            if let Some(bytes) = read.value.as_ref().and_then(|item| item.bytes(RECORD)) {
                writes.extend(decode::<Vec<Write>>(bytes, "a part of a write set")?);
            }
        }
        Ok(writes)
    }

    /// Deletes the parts of an uncommitted write set.
    pub(crate) async fn delete_write_set(&self, attempt: Attempt, set: &WriteSet) -> Result<()> {
        let WriteSet::Parts(parts) = set else {
            return Ok(());
        };
        for part in 0..*parts {
            self.finish(&Update::delete(layout::write_set_part(attempt, part)))
                .await?;
        }
        Ok(())
    }
}

impl VersionItem {
    pub(crate) fn decode(item: &Item) -> Result<Self> {
        let id = item
            .bytes(ID)
            .cloned()
            .ok_or_else(|| corrupt("a version's transaction"))?;
        let write = item
            .integer(WRITE)
            .and_then(|write| u32::try_from(write).ok());
        let value = item.bytes(VALUE).cloned();
        let place = place(item).ok_or_else(|| corrupt("a version's value"))?;
        let write = write.ok_or_else(|| corrupt("a version's write"))?;
        let (packed, long_key) = (located(item), item.bytes(KEY).cloned());
        Ok(Self {
            id: TransactionId::new(id)?,
            write,
            place,
            value,
            packed,
            long_key,
        })
    }

    /// Decodes an item from the range of `key`'s versions.
    fn decode_of(key: &Key, item: &Item) -> Result<Self> {
        let version = Self::decode(item)?;
        let is_its = match &version.long_key {
            Some(name) => name == key.name(),
            None => !layout::is_long(key),
        };
        if is_its {
            Ok(version)
        } else {
            Err(corrupt("a version's key"))
        }
    }
}

/// The attributes of a version item that hold its value.
fn held(place: Place, value: Option<Bytes>, packed: Option<Located>) -> Vec<(Name, Value)> {
    let integer = |name, value: u32| (Name::from(name), Value::Integer(value.into()));
    match place {
        Place::Inline { .. } => {
            vec![(
                Name::from(VALUE),
                Value::Bytes(value.expect("a value that goes into its item is given")),
            )]
        }
        Place::Gone => vec![integer(GONE, 1)],
        Place::Chunks { bytes, chunks, crc } => {
            vec![
                integer(CHUNKS, chunks),
                integer(BYTES, bytes),
                integer(CRC, crc),
            ]
        }
        Place::Packed { bytes, crc } => {
            let lies = lies(packed.expect("a value that goes into a pack has a place in one"));
            [vec![integer(BYTES, bytes), integer(CRC, crc)], lies].concat()
        }
    }
}

/// The attributes of a version item that hold its position in a pack.
fn lies(located: Located) -> Vec<(Name, Value)> {
    let pack = Value::Bytes(Bytes::copy_from_slice(&located.pack.to_bytes()));
    vec![
        (Name::from(PACK), pack),
        (Name::from(OFFSET), Value::Integer(located.offset as i64)),
    ]
}

fn located(item: &Item) -> Option<Located> {
    let pack = PackId::from_bytes(item.bytes(PACK)?)?;
    Some(Located {
        pack,
        offset: u64::try_from(item.integer(OFFSET)?).ok()?,
    })
}

fn place(item: &Item) -> Option<Place> {
    let natural = |name| {
        item.integer(name)
            .and_then(|value| u32::try_from(value).ok())
    };
    if let Some(value) = item.bytes(VALUE) {
        return Some(Place::Inline {
            bytes: value.len() as u32,
        });
    }
    if item.integer(GONE).is_some() {
        return Some(Place::Gone);
    }
    if located(item).is_some() {
        return Some(Place::Packed {
            bytes: natural(BYTES)?,
            crc: natural(CRC)?,
        });
    }
    Some(Place::Chunks {
        bytes: natural(BYTES)?,
        chunks: natural(CHUNKS)?,
        crc: natural(CRC)?,
    })
}

impl WriteSet {
    /// `writes` inline if they take no more than `bytes_max`, else in parts of about that size
    /// each.
    pub(crate) fn split(writes: &[Write], bytes_max: usize) -> (Self, Vec<Vec<Write>>) {
        if writes.iter().map(Write::bytes_len).sum::<usize>() <= bytes_max {
            return (Self::Inline(writes.to_vec()), Vec::new());
        }
        let parts = Self::parts_of(writes, bytes_max);
        (Self::Parts(parts.len() as u32), parts)
    }

    /// `writes` in parts of about `bytes_max` each.
    pub(crate) fn parts_of(writes: &[Write], bytes_max: usize) -> Vec<Vec<Write>> {
        let mut parts: Vec<Vec<Write>> = Vec::new();
        let mut room = 0;
        for write in writes {
            let bytes = write.bytes_len();
            if bytes > room || parts.is_empty() {
                parts.push(Vec::new());
                room = bytes_max.max(bytes);
            }
            room -= bytes;
            parts.last_mut().expect("pushed above").push(write.clone());
        }
        parts
    }
}
