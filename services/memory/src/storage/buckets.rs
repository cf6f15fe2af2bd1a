//! The rows of buckets.

use bytes::Bytes;
use ports::{DurabilityPoint, Key, Timestamp, key_value::Version};

use super::{
    objects,
    rows::{BucketId, BucketRow},
    table::{Found, Table, Write},
    uploads,
};
use crate::{Error, Result, model::Bucket};

const PARTITION: &[u8] = b"memory";
/// How often a deletion begins again because other changes of the bucket came first.
const ATTEMPTS_MAX: u32 = 16;

/// A bucket as a change found it. A change of one of its objects holds only if it is still there.
#[derive(Debug, Clone)]
pub(crate) struct KnownBucket {
    pub(crate) id: BucketId,
    name: String,
    version: Version,
}

impl KnownBucket {
    /// The condition that the bucket is as it was found.
    pub(crate) fn unchanged(&self) -> Write {
        Write::check(key(&self.name), self.version)
    }
}

fn key(name: &str) -> Key {
    Key::new(PARTITION, name)
}

async fn read(table: &Table, name: &str) -> Result<(Option<Found<BucketRow>>, DurabilityPoint)> {
    Ok(table.get(&key(name), "a bucket").await?)
}

/// The bucket, for reads. Errors: `NoSuchBucket`.
pub(crate) async fn find(table: &Table, name: &str) -> Result<KnownBucket> {
    let found = present(table, name).await?;
    Ok(known(name, &found))
}

/// The bucket, for a change that adds to it. A deletion under way fails from here on.
///
/// Errors: `NoSuchBucket`, `Contended`.
pub(crate) async fn find_to_add(table: &Table, name: &str) -> Result<KnownBucket> {
    for _ in 0..ATTEMPTS_MAX {
        let found = present(table, name).await?;
        if !found.row.is_being_deleted {
            return Ok(known(name, &found));
        }
        let row = BucketRow {
            is_being_deleted: false,
            ..found.row
        };
        table
            .write(vec![Write::put(key(name), &row, Some(found.version))])
            .await?;
    }
    Err(Error::Contended)
}

async fn present(table: &Table, name: &str) -> Result<Found<BucketRow>> {
    let (found, point) = read(table, name).await?;
    if found.is_none() {
        table.externalize(point).await?;
    }
    found.ok_or(Error::NoSuchBucket)
}

fn known(name: &str, found: &Found<BucketRow>) -> KnownBucket {
    KnownBucket {
        id: found.row.id,
        name: name.to_owned(),
        version: found.version,
    }
}

pub(crate) async fn get(table: &Table, name: &str) -> Result<Bucket> {
    let (found, point) = read(table, name).await?;
    table.externalize(point).await?;
    let found = found.ok_or(Error::NoSuchBucket)?;
    Ok(shown(name.to_owned(), found.row.created))
}

fn shown(name: String, created: Timestamp) -> Bucket {
    Bucket { name, created }
}

pub(crate) async fn create(table: &Table, name: &str) -> Result<()> {
    let row = BucketRow {
        id: BucketId(table.unique()),
        created: table.now(),
        is_being_deleted: false,
    };
    let done = table.write(vec![Write::put(key(name), &row, None)]).await?;
    if let Some(receipt) = done {
        table.externalize(receipt.point).await?;
        return Ok(());
    }
    let (_, point) = read(table, name).await?;
    table.externalize(point).await?;
    Err(Error::BucketExists)
}

/// Deletes an empty bucket.
///
/// The deletion marks the row, looks for objects, and deletes the row if it is as marked. A change
/// that adds an object removes the mark first, so that either the change or the deletion fails.
pub(crate) async fn delete(table: &Table, name: &str) -> Result<()> {
    for _ in 0..ATTEMPTS_MAX {
        let Found { row, version } = present(table, name).await?;
        let marked = BucketRow {
            is_being_deleted: true,
            ..row.clone()
        };
        let mark = Write::put(key(name), &marked, Some(version));
        if table.write(vec![mark]).await?.is_none() {
            continue;
        }
        let Found { row: now, version } = present(table, name).await?;
        if now != marked {
            continue;
        }
        if !objects::are_none(table, row.id).await? || !uploads::are_none(table, row.id).await? {
            // If it fails, the next change removes the mark.
            table
                .write(vec![Write::put(key(name), &row, Some(version))])
                .await?;
            return Err(Error::BucketNotEmpty);
        }
        let deleted = table.write(vec![Write::delete(key(name), version)]).await?;
        if let Some(receipt) = deleted {
            table.externalize(receipt.point).await?;
            return Ok(());
        }
    }
    Err(Error::Contended)
}

/// All buckets in the order of their names.
pub(crate) async fn list(table: &Table) -> Result<Vec<Bucket>> {
    let (mut buckets, mut scan) = (Vec::new(), Table::page(PARTITION, Bytes::new()));
    loop {
        let page = table.scan::<BucketRow>(&scan, "a bucket").await?;
        for (name, found) in page.found {
            let name = String::from_utf8_lossy(&name).into_owned();
            buckets.push(shown(name, found.row.created));
        }
        let Some(next) = page.next else {
            table.externalize(page.point).await?;
            return Ok(buckets);
        };
        scan.from = next;
    }
}
