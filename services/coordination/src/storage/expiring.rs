//! An index of the znodes that may end without a client's deletion: containers that lost their last
//! child, and znodes with a time to live that have no children. One small item per znode.
//!
//! The writer adds an entry, under the znode's lock, before it decides the request that makes the
//! znode a candidate. The heartbeat reads the index and asks a writer to remove the znodes that are
//! due. That writer checks each znode under its lock, and removes the entry if the znode is no
//! candidate. An entry may therefore outlive its reason, or name a znode that was never created.
//! Containers with children, and containers that never had one, have no entry.
//!
//! Invariants
//! - Every znode with a [`NodeState::due_ms`](crate::records::NodeState::due_ms) has an entry that
//!   is due at that time or earlier.
//! - An entry is only removed or moved at the version at which it was read. Versions never repeat,
//!   so a writer that lost the znode's lock cannot remove the entry of a later request.

use bytes::Bytes;
use ports::{
    Condition, Error, Key, Result, Update,
    key_value::{Scan, Value, Version},
};

use crate::{dependency::TrackedStore, storage::keys};

const DUE: &str = "due_ms";

const PARTITION: &str = "expiring";

const PAGE_ITEMS: usize = 500;

/// Records that the znode at `path` may end once `due_ms` has passed, in milliseconds since the
/// epoch.
pub async fn add(store: &mut TrackedStore, path: &str, due_ms: i64) -> Result<()> {
    store.update(put(path, due_ms)).await.map(|_| ())
}

/// When the entry of `path` is due, if there is one.
pub async fn due_ms(store: &mut TrackedStore, path: &str) -> Result<Option<i64>> {
    let item = store.get(&key(path)).await?;
    Ok(item.and_then(|item| item.integer(DUE)))
}

/// The version of the entry of `path`, if there is one.
pub async fn version(store: &mut TrackedStore, path: &str) -> Result<Option<Version>> {
    let item = store.get(&key(path)).await?;
    Ok(item.map(|item| item.version))
}

/// Moves the entry of `path` to another time, or removes it if there is none. Does nothing if the
/// entry has changed since `version`.
pub async fn replace(
    store: &mut TrackedStore,
    path: &str,
    version: Version,
    due_ms: Option<i64>,
) -> Result<()> {
    let update = match due_ms {
        Some(due_ms) => put(path, due_ms),
        None => Update::delete(key(path)),
    };
    let is_unchanged = Condition::VersionIs(version);
    store.update(update.when(is_unchanged)).await.map(|_| ())
}

/// Whether the index has entries.
pub async fn any(store: &mut TrackedStore) -> Result<bool> {
    let page = store.scan(&Scan::partition(PARTITION, 1)).await?;
    Ok(!page.items.is_empty())
}

/// At most `count_max` of the entries that are due at `now_ms`, with their versions.
pub async fn due(
    store: &mut TrackedStore,
    now_ms: i64,
    count_max: usize,
) -> Result<Vec<(String, Version)>> {
    let mut due = Vec::new();
    let mut scan = Scan::partition(PARTITION, PAGE_ITEMS);
    loop {
        let page = store.scan(&scan).await?;
        for (sort, item) in page.items {
            let due_ms = item
                .integer(DUE)
                .ok_or_else(|| Error::corrupt("read when a znode is due to expire"))?;
            if due_ms < now_ms {
                let path = keys::read(&sort, &item, "the path of a znode that expires")?;
                due.push((path, item.version));
            }
        }
        match page.next {
            Some(next) if due.len() < count_max => scan.from = next,
            _ => {
                due.truncate(count_max);
                return Ok(due);
            }
        }
    }
}

fn put(path: &str, due_ms: i64) -> Update {
    let mut attributes = vec![(DUE.into(), Value::Integer(due_ms))];
    attributes.extend(keys::text_attribute(path));
    Update::put(key(path), attributes)
}

fn key(path: &str) -> Key {
    Key::new(Bytes::from_static(PARTITION.as_bytes()), keys::encode(path))
}
