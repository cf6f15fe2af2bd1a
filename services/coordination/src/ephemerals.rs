//! Which znodes die with which session: an index, one small item per ephemeral.
//!
//! Kept apart from the session's row, so that a session with many ephemerals costs no more per request than
//! one with few. An entry is written before the create it stands for is decided, and removed after the delete is decided if
//! that is the session's own, else after it is applied: it may outlive its znode, or name one that never came to be, and
//! whoever reads the index looks at the znode's owner. What another session has deleted and nobody has applied yet has its
//! entry, by which the end of its session comes behind that (rule C-3), or a part of the end has come behind it already. An entry names the create it was written for, so that a writer who is late in
//! removing it leaves the entry of a znode that was made again meanwhile; and one who is late in writing it leaves a
//! later one as it is. So as long as the znode is there, its entry is.

use std::sync::Arc;

use ports::{
    Condition, Key, KeyValue, Result, Update,
    key_value::{Read, Scan, Test, Value},
};

use crate::{basis::Basis, keys, model::SessionId, records::UpdateId};

/// Which of its session's updates made the ephemeral.
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

    /// Notes that `path` may become an ephemeral, made by `create`.
    pub async fn add(&self, create: UpdateId, path: &str, basis: &mut Basis) -> Result<()> {
        let mut attributes = vec![(CREATE.into(), Value::Integer(create.sequence as i64))];
        attributes.extend(keys::beside(path));
        let is_earlier = Condition::attribute(CREATE, Test::Below(create.sequence as i64));
        let is_news = Condition::Any(vec![Condition::Absent, is_earlier]);
        self.update(
            Update::put(key(create.session, path), attributes).when(is_news),
            basis,
        )
        .await
    }

    /// Notes that the ephemeral made at `path` by `create` is gone.
    pub async fn remove(&self, create: UpdateId, path: &str, basis: &mut Basis) -> Result<()> {
        let is_its = Condition::attribute(CREATE, Test::is_integer(create.sequence as i64));
        self.update(
            Update::delete(key(create.session, path)).when(is_its),
            basis,
        )
        .await
    }

    /// Removes the entry of `path`, whatever it was written for: its session is at its end and makes no more.
    pub async fn discard(&self, session: SessionId, path: &str, basis: &mut Basis) -> Result<()> {
        self.update(Update::delete(key(session, path)), basis).await
    }

    /// Removes the whole index of a session whose end is applied.
    pub async fn clear(&self, session: SessionId, basis: &mut Basis) -> Result<()> {
        for path in self.all(session, basis).await? {
            self.discard(session, &path, basis).await?;
        }
        Ok(())
    }

    /// All that may be ephemerals of `session`, in path order.
    pub async fn all(&self, session: SessionId, basis: &mut Basis) -> Result<Vec<String>> {
        self.first(session, usize::MAX, basis).await
    }

    /// Some of them in path order, `count` if there are as many.
    pub async fn first(
        &self,
        session: SessionId,
        count: usize,
        basis: &mut Basis,
    ) -> Result<Vec<String>> {
        let mut paths = Vec::new();
        let mut scan = Scan::partition(partition(session), PAGE_ITEMS);
        loop {
            let Read { value: page, point } = self.system.scan(&scan).await?;
            basis.seen(point)?;
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

    async fn update(&self, update: Update, basis: &mut Basis) -> Result<()> {
        basis.seen(
            self.system
                .update(update.depends_on(basis.point()))
                .await?
                .receipt
                .point,
        )
    }
}

fn partition(session: SessionId) -> Vec<u8> {
    [b"ephemeral/".as_slice(), &session.0.to_be_bytes()].concat()
}

fn key(session: SessionId, path: &str) -> Key {
    Key::new(partition(session), keys::of("", path))
}
