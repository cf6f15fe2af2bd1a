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

/// The bucket. Errors: `NoSuchBucket`.
pub(crate) async fn find(table: &Table, name: &str) -> Result<KnownBucket> {
    let (found, point) = read(table, name).await?;
    let Some(found) = found else {
        table.externalize(point).await?;
        return Err(Error::NoSuchBucket);
    };
    Ok(KnownBucket {
        id: found.row.id,
        name: name.to_owned(),
        version: found.version,
    })
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
/// Every change of an object checks the bucket's version. The deletion changes the row twice, so
/// that a PUT between the look for objects and the deletion fails.
pub(crate) async fn delete(table: &Table, name: &str) -> Result<()> {
    for _ in 0..ATTEMPTS_MAX {
        let (found, point) = read(table, name).await?;
        let Some(Found { row, version }) = found else {
            table.externalize(point).await?;
            return Err(Error::NoSuchBucket);
        };
        let barrier = Write::put(key(name), &row, Some(version));
        if table.write(vec![barrier]).await?.is_none() {
            continue;
        }
        let (found, _) = read(table, name).await?;
        let Some(Found { version, .. }) = found.filter(|found| found.row.id == row.id) else {
            continue;
        };
        if !objects::are_none(table, row.id).await? || !uploads::are_none(table, row.id).await? {
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
