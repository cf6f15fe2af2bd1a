//! An index of the ephemerals of each session, with one small item per ephemeral.
//!
//! The index is apart from the session's row, so that the cost of a request does not grow with the
//! number of ephemerals. The writer adds an entry before it decides the create. When the session
//! itself deletes the znode, the writer removes the entry after the decision. When another session
//! deletes the znode, the distributor removes the entry after the deletion is applied. An entry may
//! therefore outlive its znode, or name a znode that was never created. A reader of the index
//! checks the owner of each znode.
//!
//! While a deletion by another session is decided but not applied, its entry is present. This makes
//! the end of the owning session follow the deletion (rule C-3), unless a part of the end already
//! followed it.
//!
//! An entry names the create that it was written for. A late removal therefore does not remove the
//! entry of a znode that was created again, and a late addition does not overwrite a newer entry.
//! So as long as a znode exists, its entry exists.

use ports::{
    Condition, Key, Result, Update,
    key_value::{Scan, Test, Value},
};

use crate::{dependency::TrackedStore, model::SessionId, records::UpdateId, storage::keys};

const CREATE: &str = "create";

const PAGE_ITEMS: usize = 500;

/// Records that `create` may create an ephemeral at `path`.
pub async fn add(store: &mut TrackedStore, create: UpdateId, path: &str) -> Result<()> {
    let mut attributes = vec![(CREATE.into(), Value::Integer(create.sequence as i64))];
    attributes.extend(keys::text_attribute(path));
    let is_earlier = Condition::attribute(CREATE, Test::Below(create.sequence as i64));
    let is_news = Condition::Any(vec![Condition::Absent, is_earlier]);
    let update = Update::put(key(create.session, path), attributes).when(is_news);
    store.update(update).await.map(|_| ())
}

/// Records that the ephemeral created at `path` by `create` is gone.
pub async fn remove(store: &mut TrackedStore, create: UpdateId, path: &str) -> Result<()> {
    let is_its = Condition::attribute(CREATE, Test::is_integer(create.sequence as i64));
    let update = Update::delete(key(create.session, path)).when(is_its);
    store.update(update).await.map(|_| ())
}

/// Removes the entry of `path` regardless of its create. The session is ending and creates no more.
pub async fn discard(store: &mut TrackedStore, session: SessionId, path: &str) -> Result<()> {
    let update = Update::delete(key(session, path));
    store.update(update).await.map(|_| ())
}

/// Removes the index of a session whose end is applied.
pub async fn clear(store: &mut TrackedStore, session: SessionId) -> Result<()> {
    for path in first(store, session, usize::MAX).await? {
        discard(store, session, &path).await?;
    }
    Ok(())
}

/// At most `count` of the paths that may be ephemerals of `session`, in path order.
pub async fn first(
    store: &mut TrackedStore,
    session: SessionId,
    count: usize,
) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut scan = Scan::partition(partition(session), PAGE_ITEMS);
    loop {
        let page = store.scan(&scan).await?;
        for (sort, item) in page.items {
            paths.push(keys::read(&sort, &item, "the path of an ephemeral")?);
        }
        match page.next {
            Some(next) if paths.len() < count => scan.from = next,
            _ => {
                paths.truncate(count);
                keys::sort(&mut paths);
                return Ok(paths);
            }
        }
    }
}

fn partition(session: SessionId) -> Vec<u8> {
    [b"ephemeral/".as_slice(), &session.0.to_be_bytes()].concat()
}

fn key(session: SessionId, path: &str) -> Key {
    Key::new(partition(session), keys::encode(path))
}
