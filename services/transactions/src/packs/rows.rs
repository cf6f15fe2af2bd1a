//! The rows of packs: which packs exist, and approximately how many of their bytes are dead.
//!
//! The node that compacts a pack deletes its row; every node adds the dead bytes that it knows of.

use bytes::Bytes;
use ports::{
    Condition, Item, Update,
    key_value::{Action, Outcome, Scan, Test},
};

use crate::{
    Error, Result,
    model::NodeId,
    storage::{layout, store::Store},
};

use super::PackId;

/// The bytes of its values.
const BYTES: &str = "bytes";
/// The approximate number of dead bytes.
const DEAD: &str = "dead";

/// Rows read in one page.
const PAGE_ROWS: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Row {
    pub(crate) bytes: u64,
    pub(crate) dead: u64,
}

impl Row {
    fn decode(item: &Item) -> Self {
        let natural = |name| {
            let value = item.integer(name).unwrap_or(0);
            u64::try_from(value).unwrap_or(0)
        };
        Self {
            bytes: natural(BYTES),
            dead: natural(DEAD),
        }
    }
}

/// Writes the row of a pack that was put or found; an existing row stays.
pub(crate) async fn put(store: &Store, id: PackId, bytes: u64) -> Result<()> {
    let actions = vec![Action::set_integer(BYTES, bytes as i64)];
    let update = Update::modify(layout::pack(id), actions).when(Condition::Absent);
    store.update(update).await.map(drop)
}

/// Adds dead bytes to a pack. If the answer is lost, they are counted twice, until the pack is
/// counted again.
pub(crate) async fn add_dead(store: &Store, id: PackId, bytes: u64) -> Result<()> {
    let actions = vec![Action::Add(DEAD.into(), bytes as i64)];
    let update = Update::modify(layout::pack(id), actions).when(Condition::Exists);
    store.finish(&update).await.map(drop)
}

/// Sets the counted dead bytes of a pack whose row was `before`. Returns false if more has died
/// meanwhile.
pub(crate) async fn count(store: &Store, id: PackId, before: Row, dead: u64) -> Result<bool> {
    let known = Condition::attribute(DEAD, Test::is_integer(before.dead as i64));
    let is_as_before = match before.dead {
        0 => Condition::Any(vec![known, Condition::attribute(DEAD, Test::Absent)]),
        _ => known,
    };
    let is_as_before = Condition::All(vec![Condition::Exists, is_as_before]);
    let actions = vec![Action::set_integer(DEAD, dead as i64)];
    let update = Update::modify(layout::pack(id), actions).when(is_as_before);
    Ok(match store.finish(&update).await?.0 {
        Outcome::Done(_) => true,
        // Perhaps a lost answer; or the row is gone, and there is nothing to set.
        Outcome::Conflict(row) => row.is_none_or(|row| Row::decode(&row).dead == dead),
    })
}

/// Its object is gone.
pub(crate) async fn delete(store: &Store, id: PackId) -> Result<()> {
    let update = Update::delete(layout::pack(id));
    store.finish(&update).await.map(drop)
}

/// Its present contents; `None` if there is no row.
pub(crate) async fn get(store: &Store, id: PackId) -> Result<Option<Row>> {
    let row = store.get(&layout::pack(id)).await?.value;
    Ok(row.map(|item| Row::decode(&item)))
}

/// The rows of one node's packs, or of all.
pub(crate) async fn list(store: &Store, of: Option<NodeId>) -> Result<Vec<(PackId, Row)>> {
    let mut scan = Scan::partition(Bytes::from_static(layout::PACKS), PAGE_ROWS);
    if let Some(node) = of {
        let first = PackId { node, number: 0 };
        scan.from = layout::pack(first).sort().clone();
    }
    let mut rows = Vec::new();
    loop {
        let page = store.scan(&scan).await?.value;
        for (sort, item) in page.items {
            let id = PackId::from_bytes(&sort)
                .ok_or_else(|| Error::Corrupt("decode a pack's key".into()))?;
            if of.is_some_and(|node| node != id.node) {
                return Ok(rows);
            }
            rows.push((id, Row::decode(&item)));
        }
        match page.next {
            Some(next) => scan.from = next,
            None => return Ok(rows),
        }
    }
}
