//! The rows of uploads in parts.

use bytes::Bytes;
use ports::{DurabilityPoint, Key, key_value::Scan};

use super::{
    rows::{BucketId, PartRow, UploadRow},
    table::{Found, Table, Write},
};
use crate::{Error, Result, model::UploadId};

const UPLOADS: &str = "memory/u/";
const PARTS: &str = "memory/p/";

fn uploads(bucket: BucketId) -> Bytes {
    format!("{UPLOADS}{:032x}", bucket.0).into()
}

fn parts(bucket: BucketId) -> Bytes {
    format!("{PARTS}{:032x}", bucket.0).into()
}

fn key(bucket: BucketId, upload: UploadId) -> Key {
    Key::new(uploads(bucket), upload.0.to_be_bytes())
}

fn part_sort(upload: UploadId, number: u16) -> Bytes {
    [&upload.0.to_be_bytes()[..], &number.to_be_bytes()]
        .concat()
        .into()
}

fn part_key(bucket: BucketId, upload: UploadId, number: u16) -> Key {
    Key::new(parts(bucket), part_sort(upload, number))
}

/// The change that begins an upload.
pub(crate) fn begin(bucket: BucketId, upload: UploadId, row: &UploadRow) -> Write {
    Write::put(key(bucket, upload), row, None)
}

/// The upload of object `object`. Errors: `NoSuchUpload`.
pub(crate) async fn find(
    table: &Table,
    bucket: BucketId,
    object: &str,
    upload: UploadId,
) -> Result<Found<UploadRow>> {
    let (found, point) = read(table, bucket, upload).await?;
    let found = found.filter(|found| found.row.key == object && found.row.ended.is_none());
    if found.is_none() {
        table.externalize(point).await?;
    }
    found.ok_or(Error::NoSuchUpload)
}

pub(crate) async fn read(
    table: &Table,
    bucket: BucketId,
    upload: UploadId,
) -> Result<(Option<Found<UploadRow>>, DurabilityPoint)> {
    Ok(table.get(&key(bucket, upload), "an upload").await?)
}

/// The change that ends the upload as it was found. The object names the segments of `used`.
pub(crate) fn end(
    bucket: BucketId,
    upload: UploadId,
    found: &Found<UploadRow>,
    used: Vec<u16>,
) -> Write {
    let row = UploadRow {
        ended: Some(used),
        ..found.row.clone()
    };
    Write::put(key(bucket, upload), &row, Some(found.version))
}

/// The change that keeps the upload, and lets no completion through that has read its parts before.
pub(crate) fn renew(bucket: BucketId, upload: UploadId, found: &Found<UploadRow>) -> Write {
    Write::put(key(bucket, upload), &found.row, Some(found.version))
}

/// The condition that the upload is as it was found.
pub(crate) fn unchanged(bucket: BucketId, upload: UploadId, found: &Found<UploadRow>) -> Write {
    Write::check(key(bucket, upload), found.version)
}

/// Removes the row of an upload whose parts are removed.
pub(crate) async fn forget(table: &Table, bucket: BucketId, upload: UploadId) -> Result<()> {
    Ok(table.forget(&key(bucket, upload)).await?)
}

/// Whether the bucket has no upload whose rows remain.
pub(crate) async fn are_none(table: &Table, bucket: BucketId) -> Result<bool> {
    let scan = Scan::partition(uploads(bucket), 1);
    let page = table.scan::<UploadRow>(&scan, "an upload").await?;
    table.externalize(page.point).await?;
    Ok(page.found.is_empty())
}

/// All uploads of the bucket, by id.
pub(crate) async fn all(
    table: &Table,
    bucket: BucketId,
) -> Result<Vec<(UploadId, Found<UploadRow>)>> {
    let (mut found, mut scan) = (Vec::new(), Table::page(uploads(bucket), Bytes::new()));
    loop {
        let page = table.scan(&scan, "an upload").await?;
        found.extend(page.found.into_iter().filter_map(|(sort, row)| {
            let id = <[u8; 16]>::try_from(&sort[..]).ok()?;
            Some((UploadId(u128::from_be_bytes(id)), row))
        }));
        let Some(next) = page.next else {
            table.externalize(page.point).await?;
            return Ok(found);
        };
        scan.from = next;
    }
}

pub(crate) async fn read_part(
    table: &Table,
    bucket: BucketId,
    upload: UploadId,
    number: u16,
) -> Result<(Option<Found<PartRow>>, DurabilityPoint)> {
    let key = part_key(bucket, upload, number);
    Ok(table.get(&key, "an uploaded part").await?)
}

/// The change that puts a part in the place of `before`.
pub(crate) fn put_part(
    bucket: BucketId,
    (upload, number): (UploadId, u16),
    row: &PartRow,
    before: Option<&Found<PartRow>>,
) -> Write {
    let before = before.map(|found| found.version);
    Write::put(part_key(bucket, upload, number), row, before)
}

/// The change that removes a part as it was found.
pub(crate) fn remove_part(
    bucket: BucketId,
    (upload, number): (UploadId, u16),
    found: &Found<PartRow>,
) -> Write {
    Write::delete(part_key(bucket, upload, number), found.version)
}

/// The parts of an upload after `after`, in the order of their numbers; all, if `items_max` is none.
pub(crate) async fn parts_of(
    table: &Table,
    bucket: BucketId,
    upload: UploadId,
    after: u16,
    items_max: Option<usize>,
) -> Result<Vec<(u16, Found<PartRow>)>> {
    let mut found = Vec::new();
    let Some(first) = after.checked_add(1) else {
        return Ok(found);
    };
    let mut scan = Table::page(parts(bucket), part_sort(upload, first));
    scan.until = Some(upload.0.saturating_add(1).to_be_bytes().to_vec().into());
    loop {
        let page = table.scan(&scan, "an uploaded part").await?;
        for (sort, row) in page.found {
            if items_max.is_some_and(|most| found.len() == most) {
                break;
            }
            if let Some(number) = sort.last_chunk::<2>() {
                found.push((u16::from_be_bytes(*number), row));
            }
        }
        match page.next {
            Some(next) if items_max.is_none_or(|most| found.len() < most) => scan.from = next,
            _ => {
                table.externalize(page.point).await?;
                return Ok(found);
            }
        }
    }
}
