//! The rows of packs: what there is, and about how much of it is dead. One writer each: whoever keeps house.

use bytes::Bytes;
use ports::{
    Condition, Update,
    key_value::{Action, Scan},
};

use super::PackId;
use crate::{Error, Result, layout, store::Store};

/// The bytes of its values.
const BYTES: &str = "bytes";
/// About how many of them nobody needs.
const DEAD: &str = "dead";
/// One: nothing in the store names it any more, and its object goes.
const RETIRED: &str = "retired";

/// Rows read in one page.
const PAGE_ROWS: usize = 1_000;

/// What a row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) bytes: u64,
    pub(super) dead: u64,
    pub(super) is_retired: bool,
}

/// A pack was put, or found: a row that is there stays.
pub(super) async fn put(store: &Store, id: PackId, bytes: u64) -> Result<()> {
    let actions = vec![Action::set_integer(BYTES, bytes as i64)];
    store.update(Update::modify(layout::pack(id), actions).when(Condition::Absent)).await.map(drop)
}

/// So much of a pack is dead, as far as is known.
pub(super) async fn note(store: &Store, id: PackId, bytes: u64, dead: u64) -> Result<()> {
    let actions = vec![Action::set_integer(BYTES, bytes as i64), Action::set_integer(DEAD, dead as i64)];
    store.finish(&Update::modify(layout::pack(id), actions)).await.map(drop)
}

/// Nothing in the store names it any more, and that is durable.
pub(super) async fn retire(store: &Store, id: PackId) -> Result<()> {
    let actions = vec![Action::set_integer(RETIRED, 1)];
    store.finish(&Update::modify(layout::pack(id), actions).when(Condition::Exists)).await.map(drop)
}

/// Its object is gone.
pub(super) async fn delete(store: &Store, id: PackId) -> Result<()> {
    store.finish(&Update::delete(layout::pack(id))).await.map(drop)
}

/// All there are.
pub(super) async fn list(store: &Store) -> Result<Vec<(PackId, Row)>> {
    let mut scan = Scan::partition(Bytes::from_static(layout::PACKS), PAGE_ROWS);
    let mut rows = Vec::new();
    loop {
        let page = store.scan(&scan).await?.value;
        for (sort, item) in page.items {
            let id = PackId::from_bytes(&sort).ok_or_else(|| Error::Corrupt("decode a pack's key".into()))?;
            let natural = |name| item.integer(name).and_then(|value| u64::try_from(value).ok()).unwrap_or(0);
            let is_retired = item.integer(RETIRED).is_some();
            rows.push((id, Row { bytes: natural(BYTES), dead: natural(DEAD), is_retired }));
        }
        match page.next {
            Some(next) => scan.from = next,
            None => return Ok(rows),
        }
    }
}
