//! The rows of segments that no row names: garbage, or content that is not committed yet.
//!
//! Invariant: a segment is stored only while a pending row or another row names it. The change that
//! names a segment removes its pending row, and the change that takes its last name away writes one.
//! A crash between any two steps therefore leaves no segment behind.
//!
//! In a shared store each server has a partition of its own, and collects its own rows alone. Those of
//! a server that is gone are moved ([`adopt`]).

use bytes::Bytes;
use ports::{Key, Receipt};

use super::{
    own::{self, MemberId},
    rows::PendingRow,
    table::{Table, Write},
};
use crate::{Error, Result, fragment::Segment};

const PARTITION: &str = "memory/g";

/// The key of a pending row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PendingId(pub(crate) u128);

/// A pending row.
pub(crate) type Pending = (PendingId, Vec<Segment>);

fn key(member: Option<MemberId>, id: PendingId) -> Key {
    Key::new(own::partition(PARTITION, member), id.0.to_be_bytes())
}

/// Notes a segment that is about to be stored.
pub(crate) async fn note(table: &Table, segment: Segment) -> Result<(PendingId, Receipt)> {
    let id = PendingId(segment.id.0);
    let mut writes = vec![put(table, id, vec![segment])];
    writes.extend(table.while_alive());
    let noted = table.write(writes).await?;
    Ok((id, noted.ok_or_else(taken_for_gone)?))
}

/// Others act as if this server were gone. It goes on under another id in a moment.
pub(crate) fn taken_for_gone() -> Error {
    Error::Unavailable("this server is no member of its store at the moment".into())
}

/// Says that no row names `segments` any more.
pub(crate) fn put(table: &Table, id: PendingId, segments: Vec<Segment>) -> Write {
    Write::replace(key(table.member(), id), &PendingRow { segments })
}

/// Removes the row of a segment that another row names from now on. The change is refused if the row
/// is gone, and the segment perhaps with it.
pub(crate) fn remove(table: &Table, id: PendingId) -> Write {
    Write::delete_present(key(table.member(), id))
}

/// Moves a row of `member`, which is gone, to those of this server, if it is still there.
///
/// `keeps`, a broken variant for tests: the row of `member` stays.
pub(crate) async fn adopt(
    table: &Table,
    member: MemberId,
    id: PendingId,
    keeps: bool,
) -> Result<()> {
    let theirs = key(Some(member), id);
    let (found, _) = table.get::<PendingRow>(&theirs, "pending segments").await?;
    let Some(found) = found else {
        return Ok(());
    };
    let mut writes = vec![put(table, id, found.row.segments)];
    writes.extend((!keeps).then(|| Write::delete_present(theirs)));
    writes.extend(table.while_alive());
    Ok(table.write(writes).await.map(drop)?)
}

/// Removes the row of segments that are gone.
pub(crate) async fn forget(table: &Table, id: PendingId) -> Result<()> {
    Ok(table.forget(&key(table.member(), id)).await?)
}

/// The segments of a row; none: it is gone. The answer is durable.
pub(crate) async fn read(table: &Table, id: PendingId) -> Result<Option<Vec<Segment>>> {
    let (found, point) = table
        .get::<PendingRow>(&key(table.member(), id), "pending segments")
        .await?;
    // A change that is lost in a crash must not make garbage of segments that are named without it.
    table.externalize(point).await?;
    Ok(found.map(|found| found.row.segments))
}

/// Pending rows of a server from `from` on, and the start of the next page.
pub(crate) async fn page(
    table: &Table,
    member: Option<MemberId>,
    from: Bytes,
) -> Result<(Vec<Pending>, Option<Bytes>)> {
    let scan = Table::page(own::partition(PARTITION, member), from);
    let page = table.scan::<PendingRow>(&scan, "pending segments").await?;
    let rows = page.found.into_iter().filter_map(|(sort, found)| {
        let id = <[u8; 16]>::try_from(&sort[..]).ok()?;
        Some((PendingId(u128::from_be_bytes(id)), found.row.segments))
    });
    Ok((rows.collect(), page.next))
}
