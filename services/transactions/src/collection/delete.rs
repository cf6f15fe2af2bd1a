//! Deletes versions that no transaction needs, and the rows that decide about them.
//!
//! Order matters: the index forgets a version first, then the store deletes its chunks, the
//! version, and at last the row.

use std::sync::Arc;

use futures_util::{TryStreamExt, stream};
use tokio::task::coop::consume_budget;

use crate::{
    Result,
    broken::Broken,
    collection::Collection,
    model::Key,
    node::Node,
    storage::records::{CommitRecord, WriteSet},
};

/// How many versions are deleted at a time. A store that executes deletions one after another would
/// keep a commit waiting for all of them.
const DELETIONS_AT_ONCE: usize = 16;
/// How many versions the index forgets at a time: no read or commit runs meanwhile.
const FORGOTTEN_AT_ONCE: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Superseded {
    pub(crate) key: Key,
    pub(crate) record: Arc<CommitRecord>,
}

impl Collection {
    /// Deletes versions that no transaction needs.
    ///
    /// The index forgets them before, so that no read chooses a deleted version, and again after,
    /// because a load may have read them meanwhile.
    pub(crate) async fn delete_versions(
        &self,
        node: &Arc<Node>,
        plan: &[Superseded],
    ) -> Result<()> {
        for part in plan.chunks(FORGOTTEN_AT_ONCE) {
            self.drop_from_memory(node, part);
            self.delete_from_store(node, part).await?;
            self.drop_from_memory(node, part);
        }
        Ok(())
    }

    async fn delete_from_store(&self, node: &Node, plan: &[Superseded]) -> Result<()> {
        let all = stream::iter(plan.iter().map(Ok::<_, crate::Error>));
        all.try_for_each_concurrent(DELETIONS_AT_ONCE, |Superseded { key, record }| async move {
            consume_budget().await;
            let write = record
                .write_of(key)
                .expect("a version is collected of a key that its record names");
            if self.context.breaks(Broken::ForgetsChunks) {
                node.store.delete_version(key, record.attempt).await?;
            } else {
                node.store.delete_written(record.attempt, write).await?;
            }
            self.context.counters.collected(record.value_bytes(key));
            Ok(())
        })
        .await
    }

    fn drop_from_memory(&self, node: &Arc<Node>, plan: &[Superseded]) {
        let Some(mut cache) = self.cache.of(node.id) else {
            return;
        };
        for of_key in plan.chunk_by(|one, next| one.key == next.key) {
            let key = &of_key[0].key;
            cache.index.drop_versions(
                key,
                &of_key.iter().map(|gone| gone.record.attempt).collect(),
            );
            for Superseded { record, .. } in of_key {
                if let Some(write) = record.write_of(key) {
                    cache.data.remove(record.attempt, write.write);
                }
            }
        }
    }

    /// Handles a commit whose window is over: drops its row, or releases it while versions are
    /// left.
    pub(crate) async fn drop_or_release(
        &self,
        node: &Arc<Node>,
        record: &CommitRecord,
    ) -> Result<()> {
        if !self.context.breaks(Broken::DropsRowsOfLiveVersions)
            && self.is_left(node, record, 0).await?
        {
            node.store.release(&record.id, record.attempt).await?;
            // Another node may have collected the last of them before it could see the release.
            if self.context.is_alone() || self.is_left(node, record, 0).await? {
                return Ok(());
            }
        }
        drop_row(node, record).await
    }

    /// Whether any version of `record` is left. It searches outwards from one of its writes, so
    /// that few are read whether keys are overwritten in order, in reverse, or at random.
    async fn is_left(&self, node: &Arc<Node>, record: &CommitRecord, from: usize) -> Result<bool> {
        let count = record.writes.len();
        let outwards = (0..count).flat_map(|distance| {
            let after = from.checked_add(distance).filter(|place| *place < count);
            let before = from.checked_sub(distance).filter(|_| distance > 0);
            after.into_iter().chain(before)
        });
        for place in outwards {
            let key = &record.writes[place].key;
            // Among several nodes an index shows which versions are needed, not which exist.
            let known = self
                .cache
                .lock()
                .index
                .peek(key)
                .map(|entry| entry.holds(record.attempt));
            let known = known.filter(|_| self.context.is_alone());
            let is_left = match known {
                Some(is_left) => is_left,
                None => node.store.version(key, record.attempt).await?.is_some(),
            };
            if is_left {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A version of `record`, of `key`, was collected: if the row is released and that was the last,
/// drops the row.
pub(crate) async fn drop_released(
    collection: &Collection,
    node: &Arc<Node>,
    record: &CommitRecord,
    key: &Key,
) -> Result<()> {
    let (decision, _) = node.store.decision(&record.id).await?;
    let is_released =
        decision.is_some_and(|decision| decision.attempt == record.attempt && decision.is_released);
    let from = record
        .writes
        .binary_search_by(|write| write.key.cmp(key))
        .unwrap_or_default();
    if is_released && !collection.is_left(node, record, from).await? {
        drop_row(node, record).await?;
    }
    Ok(())
}

/// Parts are deleted before the row that names them.
async fn drop_row(node: &Node, record: &CommitRecord) -> Result<()> {
    node.store
        .delete_write_set(record.attempt, &WriteSet::Parts(record.parts))
        .await?;
    node.store.drop_committed(&record.id, record.attempt).await
}
