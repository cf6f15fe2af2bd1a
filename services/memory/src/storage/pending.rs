//! The rows of segments that no row names: garbage, or content that is not committed yet.
//!
//! Invariant: a segment is stored only while a pending row or another row names it. The change that
//! names a segment removes its pending row, and the change that takes its last name away writes one.
//! A crash between any two steps therefore leaves no segment behind.

use bytes::Bytes;
use ports::{Key, Receipt};

use super::{
    rows::PendingRow,
    table::{Table, Write},
};
use crate::{Result, fragment::Segment};

const PARTITION: &[u8] = b"memory/g";

/// The key of a pending row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PendingId(pub(crate) u128);

/// A pending row.
pub(crate) type Pending = (PendingId, Vec<Segment>);

fn key(id: PendingId) -> Key {
    Key::new(PARTITION, id.0.to_be_bytes())
}

/// Notes a segment that is about to be stored.
pub(crate) async fn note(table: &Table, segment: Segment) -> Result<(PendingId, Receipt)> {
    let id = PendingId(segment.id.0);
    let noted = table.write(vec![put(id, vec![segment])]).await?;
    Ok((id, noted.unwrap_or_default()))
}

/// Says that no row names `segments` any more.
pub(crate) fn put(id: PendingId, segments: Vec<Segment>) -> Write {
    Write::replace(key(id), &PendingRow { segments })
}

/// Removes the row of a segment that another row names from now on. The change is refused if the row
/// is gone, and the segment perhaps with it.
pub(crate) fn remove(id: PendingId) -> Write {
    Write::delete_present(key(id))
}

/// Removes the row of segments that are gone.
pub(crate) async fn forget(table: &Table, id: PendingId) -> Result<()> {
    Ok(table.forget(&key(id)).await?)
}

/// The segments of a row; none: it is gone. The answer is durable.
pub(crate) async fn read(table: &Table, id: PendingId) -> Result<Option<Vec<Segment>>> {
    let (found, point) = table
        .get::<PendingRow>(&key(id), "pending segments")
        .await?;
    // A change that is lost in a crash must not make garbage of segments that are named without it.
    table.externalize(point).await?;
    Ok(found.map(|found| found.row.segments))
}

/// Pending rows from `from` on, and the start of the next page.
pub(crate) async fn page(table: &Table, from: Bytes) -> Result<(Vec<Pending>, Option<Bytes>)> {
    let scan = Table::page(PARTITION, from);
    let page = table.scan::<PendingRow>(&scan, "pending segments").await?;
    let rows = page.found.into_iter().filter_map(|(sort, found)| {
        let id = <[u8; 16]>::try_from(&sort[..]).ok()?;
        Some((PendingId(u128::from_be_bytes(id)), found.row.segments))
    });
    Ok((rows.collect(), page.next))
}
