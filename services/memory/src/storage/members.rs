//! The rows of the servers that share the store.

use bytes::Bytes;
use ports::Key;

use super::{
    own::{MemberId, life},
    rows::MemberRow,
    table::{Table, Write},
};
use crate::Result;

const PARTITION: &[u8] = b"memory/n";

fn key(member: MemberId) -> Key {
    Key::new(PARTITION, member.0.to_be_bytes())
}

/// Puts the row of a server that begins.
pub(crate) async fn begin(table: &Table, member: MemberId, row: &MemberRow) -> Result<()> {
    let writes = vec![
        Write::replace(life(member), &()),
        Write::replace(key(member), row),
    ];
    Ok(table.write(writes).await.map(drop)?)
}

/// Renews the row. False: others have taken the server for gone.
pub(crate) async fn renew(table: &Table, member: MemberId, row: &MemberRow) -> Result<bool> {
    let writes = vec![
        Write::check_present(life(member)),
        Write::replace(key(member), row),
    ];
    Ok(table.write(writes).await?.is_some())
}

/// Whether no other server has taken `member` for gone.
pub(crate) async fn lives(table: &Table, member: MemberId) -> Result<bool> {
    let (found, _) = table
        .get::<()>(&life(member), "the life of a server")
        .await?;
    Ok(found.is_some())
}

/// Keeps a server that is gone from adding rows.
pub(crate) async fn end(table: &Table, member: MemberId) -> Result<()> {
    Ok(table.forget(&life(member)).await?)
}

/// Removes the row of a server whose rows are adopted.
pub(crate) async fn forget(table: &Table, member: MemberId) -> Result<()> {
    Ok(table.forget(&key(member)).await?)
}

/// All servers.
pub(crate) async fn all(table: &Table) -> Result<Vec<(MemberId, MemberRow)>> {
    let (mut members, mut scan) = (Vec::new(), Table::page(PARTITION, Bytes::new()));
    loop {
        let page = table.scan::<MemberRow>(&scan, "a server").await?;
        members.extend(page.found.into_iter().filter_map(|(sort, found)| {
            let id = <[u8; 16]>::try_from(&sort[..]).ok()?;
            Some((MemberId(u128::from_be_bytes(id)), found.row))
        }));
        let Some(next) = page.next else {
            return Ok(members);
        };
        scan.from = next;
    }
}
