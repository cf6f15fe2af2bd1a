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

use std::sync::Arc;

use ports::{
    Condition, Key, KeyValue, Result, Update,
    key_value::{Scan, Test, Value},
};

use crate::{dependency::Dependency, model::SessionId, records::UpdateId, storage::keys};

/// The sequence of the update that created the ephemeral.
const CREATE: &str = "create";

const PAGE_ITEMS: usize = 500;

/// The index of one system store.
#[derive(Debug, Clone)]
pub struct Ephemerals {
    system: Arc<dyn KeyValue>,
}

impl Ephemerals {
    /// The index in `system`.
    pub fn new(system: Arc<dyn KeyValue>) -> Self {
        Self { system }
    }

    /// Records that `create` may create an ephemeral at `path`.
    pub async fn add(
        &self,
        create: UpdateId,
        path: &str,
        dependency: &mut Dependency,
    ) -> Result<()> {
        let mut attributes = vec![(CREATE.into(), Value::Integer(create.sequence as i64))];
        attributes.extend(keys::text_attribute(path));
        let is_earlier = Condition::attribute(CREATE, Test::Below(create.sequence as i64));
        let is_news = Condition::Any(vec![Condition::Absent, is_earlier]);
        self.update(
            Update::put(key(create.session, path), attributes).when(is_news),
            dependency,
        )
        .await
    }

    /// Records that the ephemeral created at `path` by `create` is gone.
    pub async fn remove(
        &self,
        create: UpdateId,
        path: &str,
        dependency: &mut Dependency,
    ) -> Result<()> {
        let is_its = Condition::attribute(CREATE, Test::is_integer(create.sequence as i64));
        self.update(
            Update::delete(key(create.session, path)).when(is_its),
            dependency,
        )
        .await
    }

    /// Removes the entry of `path` regardless of its create. The session is ending and creates no
    /// more.
    pub async fn discard(
        &self,
        session: SessionId,
        path: &str,
        dependency: &mut Dependency,
    ) -> Result<()> {
        self.update(Update::delete(key(session, path)), dependency)
            .await
    }

    /// Removes the index of a session whose end is applied.
    pub async fn clear(&self, session: SessionId, dependency: &mut Dependency) -> Result<()> {
        for path in self.all(session, dependency).await? {
            self.discard(session, &path, dependency).await?;
        }
        Ok(())
    }

    /// All paths that may be ephemerals of `session`, in path order.
    pub async fn all(
        &self,
        session: SessionId,
        dependency: &mut Dependency,
    ) -> Result<Vec<String>> {
        self.first(session, usize::MAX, dependency).await
    }

    /// At most `count` of these paths, in path order.
    pub async fn first(
        &self,
        session: SessionId,
        count: usize,
        dependency: &mut Dependency,
    ) -> Result<Vec<String>> {
        let mut paths = Vec::new();
        let mut scan = Scan::partition(partition(session), PAGE_ITEMS);
        loop {
            let page = dependency.scan(&*self.system, &scan).await?;
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

    async fn update(&self, update: Update, dependency: &mut Dependency) -> Result<()> {
        dependency.update(&*self.system, update).await.map(|_| ())
    }
}

fn partition(session: SessionId) -> Vec<u8> {
    [b"ephemeral/".as_slice(), &session.0.to_be_bytes()].concat()
}

fn key(session: SessionId, path: &str) -> Key {
    Key::new(partition(session), keys::encode("", path))
}
