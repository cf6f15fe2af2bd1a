//! Which znodes die with which session: an index, one small item per ephemeral.
//!
//! Kept apart from the session's row, so that a session with many ephemerals costs no more per request than
//! one with few. An entry is written before the create it stands for is decided and removed after the
//! delete is installed: it may outlive its znode, or name one that never came to be, and whoever reads the
//! index looks at the znode's owner.

use std::sync::Arc;

use ports::{Error, Key, KeyValue, Result, Update, key_value::Scan};

use crate::model::SessionId;

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

    /// Notes that `path` may become an ephemeral of `session`.
    pub async fn add(&self, session: SessionId, path: &str) -> Result<()> {
        self.system.update(Update::put(key(session, path), Vec::new())).await.map(|_| ())
    }

    /// Notes that `path` is gone, if it was one of `session`'s.
    pub async fn remove(&self, session: SessionId, path: &str) -> Result<()> {
        self.system.update(Update::delete(key(session, path))).await.map(|_| ())
    }

    /// Removes the whole index of a session whose end is applied.
    pub async fn clear(&self, session: SessionId) -> Result<()> {
        for path in self.all(session).await? {
            self.remove(session, &path).await?;
        }
        Ok(())
    }

    /// All that may be ephemerals of `session`, in path order.
    pub async fn all(&self, session: SessionId) -> Result<Vec<String>> {
        let mut paths = Vec::new();
        let mut scan = Scan::partition(partition(session), PAGE_ITEMS);
        loop {
            let page = self.system.scan(&scan).await?.value;
            for (sort, _) in page.items {
                let path = String::from_utf8(sort.to_vec());
                paths.push(
                    path.map_err(|cause| Error::corrupt("read the path of an ephemeral").caused_by(cause))?,
                );
            }
            match page.next {
                Some(next) => scan.from = next,
                None => return Ok(paths),
            }
        }
    }
}

fn partition(session: SessionId) -> Vec<u8> {
    [b"ephemeral/".as_slice(), &session.0.to_be_bytes()].concat()
}

fn key(session: SessionId, path: &str) -> Key {
    Key::new(partition(session), path)
}
