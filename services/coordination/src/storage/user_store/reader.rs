//! Reads of several calls, which all see one incarnation of the store.
//!
//! Each call may be consistent with the calls before it only if the store has not restarted since:
//! the restart may have taken what they saw. A cursor of a later incarnation, for example, does not
//! say when their result was true. The reader therefore refuses the first answer of another
//! incarnation, whichever calls a read consists of.

use ports::{
    Item, Result,
    key_value::{Page, Scan},
};

use super::{Cursor, Node, UserStore, children_partition, cursor_key, key};
use crate::{dependency::TrackedStore, storage::keys};

const PAGE_ITEMS: usize = 1000;

/// Znodes per page of a count. The walk keeps the names of one page for each level of the tree.
pub(super) const COUNTED_PAGE_ITEMS: usize = 200;

/// One level of a walk through the tree.
struct Level {
    /// The rest of the children's partition.
    scan: Option<Scan>,
    /// Those of the last page that have children and are not counted yet.
    parents: Vec<String>,
    /// The length of the path one level up.
    above: usize,
}

/// The user store for one read. Every call fails with `Lost` if the store has restarted since an
/// earlier one.
#[derive(Debug)]
pub struct Reader(TrackedStore);

impl Reader {
    pub(super) fn new(store: &UserStore) -> Self {
        Self(TrackedStore::new(store.items.clone()))
    }

    /// The same for a mutant that pairs answers of different incarnations.
    pub(crate) fn untracked(&self) -> Self {
        Self(self.0.untracked())
    }

    /// Binds the read to the present incarnation, before it reads another store.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.0.observe_now()
    }

    /// The znode at `path`, if it exists.
    pub async fn get(&mut self, path: &str) -> Result<Option<Node>> {
        let Some(key) = key(path) else {
            self.0.observe_now()?;
            return Ok(None);
        };
        let item = self.0.get(&key).await?;
        item.as_deref().map(Node::read).transpose()
    }

    /// The position in the log.
    pub async fn cursor(&mut self) -> Result<Cursor> {
        let item = self.0.get(&cursor_key()).await?;
        Ok(Cursor::read(item.as_deref()))
    }

    /// The names of all children of `path`, in order.
    pub async fn children(&mut self, path: &str) -> Result<Vec<String>> {
        let mut names = self.each_child(path, |name, _| Ok(name)).await?;
        keys::sort(&mut names);
        Ok(names)
    }

    /// A value for each child of `path`, made of its name and its item, in any order.
    pub(super) async fn each_child<T>(
        &mut self,
        path: &str,
        read: impl Fn(String, &Item) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut children = Vec::new();
        let mut scan = Scan::partition(children_partition(path), PAGE_ITEMS);
        loop {
            let Page { items, next } = self.0.scan(&scan).await?;
            for (sort, item) in items {
                let name = keys::read(&sort, &item, "a child's name")?;
                children.push(read(name, &item)?);
            }
            let Some(next) = next else { break };
            scan.from = next;
        }
        Ok(children)
    }

    /// The number of znodes below `path`, of which no page outlives its turn.
    ///
    /// The walk is depth-first with a place in each level's partition. It lists the children of a
    /// znode only if the znode has some.
    pub async fn count_descendants(&mut self, path: &str) -> Result<u64> {
        let level = |path: &str, above: usize| Level {
            scan: Some(Scan::partition(
                children_partition(path),
                COUNTED_PAGE_ITEMS,
            )),
            parents: Vec::new(),
            above,
        };
        let (mut count, mut path) = (0, path.to_owned());
        let mut levels = vec![level(&path, 0)];
        while let Some(deepest) = levels.last_mut() {
            if let Some(name) = deepest.parents.pop() {
                let above = path.len();
                if path != "/" {
                    path.push('/');
                }
                path.push_str(&name);
                levels.push(level(&path, above));
            } else if let Some(scan) = deepest.scan.take() {
                let page = self.0.scan(&scan).await?;
                count += page.items.len() as u64;
                for (sort, item) in page.items {
                    if Node::read(&item)?.stat.num_children > 0 {
                        deepest
                            .parents
                            .push(keys::read(&sort, &item, "a child's name")?);
                    }
                }
                deepest.scan = page.next.map(|from| Scan { from, ..scan });
                tokio::task::yield_now().await;
            } else {
                path.truncate(deepest.above);
                levels.pop();
            }
        }
        Ok(count)
    }
}
