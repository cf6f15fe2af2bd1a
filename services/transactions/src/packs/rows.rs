//! The rows of packs: which packs exist, approximately how many of their bytes are dead, and
//! whether they are being removed.
//!
//! The owner of a pack marks and deletes its row; every node adds the dead bytes that it knows of.

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
pub(crate) const BYTES: &str = "bytes";
/// The approximate number of dead bytes.
pub(crate) const DEAD: &str = "dead";
/// The node that has begun to move values out of it.
pub(crate) const MOVING: &str = "moving";
/// One: nothing in the store names it any more, and its object will be deleted.
pub(crate) const RETIRED: &str = "retired";

/// Rows read in one page.
pub(crate) const PAGE_ROWS: usize = 1_000;

/// The contents of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Row {
    pub(crate) bytes: u64,
    pub(crate) dead: u64,
    pub(crate) is_moving: bool,
    pub(crate) is_retired: bool,
}

/// The result of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marked {
    /// Values may be moved out of it.
    Moving,
    /// It was retired already: there is nothing to move.
    Retired,
    /// It is gone.
    Gone,
}

impl Row {
    pub(crate) fn decode(item: &Item) -> Self {
        let natural = |name| {
            item.integer(name)
                .and_then(|value| u64::try_from(value).ok())
                .unwrap_or(0)
        };
        let (is_moving, is_retired) = (
            item.integer(MOVING).is_some(),
            item.integer(RETIRED).is_some(),
        );
        Self {
            bytes: natural(BYTES),
            dead: natural(DEAD),
            is_moving,
            is_retired,
        }
    }
}

/// Writes the row of a pack that was put or found; an existing row stays.
pub(crate) async fn put(store: &Store, id: PackId, bytes: u64) -> Result<()> {
    let actions = vec![Action::set_integer(BYTES, bytes as i64)];
    store
        .update(Update::modify(layout::pack(id), actions).when(Condition::Absent))
        .await
        .map(drop)
}

/// Adds dead bytes to a pack. If the answer is lost, they are counted twice, until the pack is
/// counted again.
pub(crate) async fn add_dead(store: &Store, id: PackId, bytes: u64) -> Result<()> {
    let actions = vec![Action::Add(DEAD.into(), bytes as i64)];
    store
        .finish(&Update::modify(layout::pack(id), actions).when(Condition::Exists))
        .await
        .map(drop)
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

/// Marks that `mover` begins to move values out of it.
pub(crate) async fn mark_moving(store: &Store, id: PackId, mover: NodeId) -> Result<Marked> {
    let is_there = vec![
        Condition::Exists,
        Condition::attribute(RETIRED, Test::Absent),
    ];
    let actions = vec![Action::set_integer(MOVING, mover.0.into())];
    let update = Update::modify(layout::pack(id), actions).when(Condition::All(is_there));
    Ok(match store.finish(&update).await?.0 {
        Outcome::Done(_) => Marked::Moving,
        Outcome::Conflict(Some(_)) => Marked::Retired,
        Outcome::Conflict(None) => Marked::Gone,
    })
}

/// Marks that nothing in the store names it any more, and that this is durable.
pub(crate) async fn retire(store: &Store, id: PackId) -> Result<()> {
    let actions = vec![Action::set_integer(RETIRED, 1)];
    store
        .finish(&Update::modify(layout::pack(id), actions).when(Condition::Exists))
        .await
        .map(drop)
}

/// Its object is gone.
pub(crate) async fn delete(store: &Store, id: PackId) -> Result<()> {
    store
        .finish(&Update::delete(layout::pack(id)))
        .await
        .map(drop)
}

/// Its present contents; `None` if there is no row.
pub(crate) async fn get(store: &Store, id: PackId) -> Result<Option<Row>> {
    Ok(store
        .get(&layout::pack(id))
        .await?
        .value
        .map(|item| Row::decode(&item)))
}

/// All rows.
pub(crate) async fn list(store: &Store) -> Result<Vec<(PackId, Row)>> {
    list_while(store, PackId::FIRST, |_| true).await
}

/// Those of one node.
pub(crate) async fn list_of(store: &Store, node: NodeId) -> Result<Vec<(PackId, Row)>> {
    list_while(store, PackId { node, number: 0 }, |id| id.node == node).await
}

pub(crate) async fn list_while(
    store: &Store,
    first: PackId,
    is_wanted: impl Fn(PackId) -> bool,
) -> Result<Vec<(PackId, Row)>> {
    let mut scan = Scan::partition(Bytes::from_static(layout::PACKS), PAGE_ROWS);
    scan.from = layout::pack(first).sort().clone();
    let mut rows = Vec::new();
    loop {
        let page = store.scan(&scan).await?.value;
        for (sort, item) in page.items {
            let id = PackId::from_bytes(&sort)
                .ok_or_else(|| Error::Corrupt("decode a pack's key".into()))?;
            if !is_wanted(id) {
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
