//! The rows of fragments that were in function memory lately. They help the next start alone. In a
//! shared store that is the next start at the same address.

use bytes::Bytes;
use ports::Key;

use super::{
    rows::ResidentRow,
    table::{Table, Write},
};
use crate::{
    Result,
    fragment::{Fragment, FragmentName, SegmentId},
    function::Partition,
};

const PARTITION: &str = "memory/m";

fn partition(table: &Table) -> String {
    let address = table.own.as_ref().and_then(|own| own.address.get());
    address.map_or_else(
        || PARTITION.to_owned(),
        |address| format!("{PARTITION}/{address}"),
    )
}

fn key(table: &Table, name: FragmentName) -> Key {
    let sort = [&name.segment.0.to_be_bytes()[..], &name.index.to_be_bytes()];
    Key::new(partition(table), sort.concat())
}

/// Notes that a fragment is in memory now.
pub(crate) fn put(table: &Table, fragment: Fragment, partition: Partition) -> Write {
    let row = ResidentRow {
        bytes: fragment.bytes,
        shape: fragment.shape,
        partition,
        since: table.now(),
    };
    Write::replace(key(table, fragment.name), &row)
}

/// Notes that a fragment is not in memory.
pub(crate) fn remove(table: &Table, name: FragmentName) -> Write {
    Write::forget(key(table, name))
}

/// A page of the rows from `from` on, and the start of the next page.
pub(crate) async fn page(
    table: &Table,
    from: Bytes,
) -> Result<(Vec<(Fragment, ResidentRow)>, Option<Bytes>)> {
    let scan = Table::page(partition(table), from);
    let page = table
        .scan::<ResidentRow>(&scan, "fragments in memory")
        .await?;
    let rows = page.found.into_iter().filter_map(|(sort, found)| {
        let (segment, index) = sort.split_at_checked(16)?;
        let name = FragmentName {
            segment: SegmentId(u128::from_be_bytes(segment.try_into().ok()?)),
            index: u32::from_be_bytes(index.try_into().ok()?),
        };
        let ResidentRow { bytes, shape, .. } = found.row;
        let fragment = Fragment { name, bytes, shape };
        Some((fragment, found.row))
    });
    Ok((rows.collect(), page.next))
}
