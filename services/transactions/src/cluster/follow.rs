//! Reads another node's log in the store, for commits that its announcements did not bring.
//!
//! It starts at the slot after the applied frontier. Each commit that a slot announces has a row,
//! and the row tells its outcome. The frontier advances up to the first slot with an undecided
//! commit; commits after it are merged all the same. A log that is sealed and resolved is applied
//! to its end.
//!
//! It follows slots, never times: a commit with a lower timestamp than other known ones is found
//! like any other.
//!
//! Invariants
//! - The frontier advances over a slot only once every commit of it was merged.
//!
//! From AFT, section 4.2, where the fault manager scans the commit set; ours reads from a cursor.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use ports::ErrorKind;
use primitives::{Cursor, Epoch, FencedLog, SlotIndex, Slots};

use crate::{
    Error, Result,
    broken::Broken,
    cluster::Cluster,
    model::{Attempt, NodeId, Timestamp, TransactionId},
    node::Node,
    storage::{
        layout, node_registry,
        records::{CommitRecord, Entry, StoredSlot, decode},
        store::{State, Store},
    },
};

/// Slots read at a time.
const SLOTS_AT_ONCE: usize = 64;
/// Rows read at a time.
const ROWS_AT_ONCE: usize = 16;

/// The outcome of a commit that a log announces.
enum Announced {
    Undecided,
    Aborted,
    Committed(Arc<CommitRecord>),
}

impl Cluster {
    /// Reads the slots of `log` after its frontier. Returns the last existing slot: every commit up
    /// to there is merged.
    pub(crate) async fn follow(&self, node: &Arc<Node>, log: NodeId) -> Result<u64> {
        // Read first: if it is sealed, the slots read afterwards are all there will ever be.
        let row = node_registry::get(&node.store, log).await?;
        let fenced = FencedLog::new(node.store.key_value().clone(), layout::log(log));
        let applied = self.cache.lock().applied.through(log);
        if applied == u64::MAX {
            return Ok(applied);
        }
        // A node's log has one writer, which writes its slots in order, so none of them is void.
        let mut cursor = Cursor {
            next: SlotIndex(applied + 1),
            epoch: Epoch(0),
        };
        let mut is_decided = true;
        loop {
            let read = self.read_on(node, &fenced, cursor).await?;
            for slot in &read.slots {
                let stored: StoredSlot = decode(&slot.payload, "a slot of a node's log")?;
                node.log.observe(stored.timestamp);
                let (records, all_decided) = self.outcomes(node, stored).await?;
                is_decided &= all_decided;
                let mut cache = self
                    .cache
                    .of(node.id)
                    .ok_or_else(|| Error::unavailable("the node restarts"))?;
                cache.on_commits_elsewhere(node, &records);
                if is_decided {
                    cache.advance(log, slot.index.0);
                }
            }
            cursor = read.cursor;
            if is_decided && let Some(mut cache) = self.cache.of(node.id) {
                // Seals have nothing to decide.
                cache.advance(log, cursor.next.0 - 1);
            }
            if !read.is_tail {
                continue;
            }
            let is_whole = is_decided && row.is_some_and(|row| row.is_resolved);
            if is_whole && let Some(mut cache) = self.cache.of(node.id) {
                Arc::make_mut(&mut cache.applied).finish(log, log);
            }
            self.lock()
                .neighbours
                .caught_up(log, self.context.clock.monotonic());
            return Ok(cursor.next.0 - 1);
        }
    }

    /// Errors: `Unavailable` if a slot was trimmed there. All counted nodes had applied it, so this
    /// node is no longer one of them.
    pub(crate) async fn read_on(
        &self,
        node: &Node,
        log: &FencedLog,
        cursor: Cursor,
    ) -> Result<Slots> {
        if let Some(read) = try_read_on(node, log, cursor).await? {
            return Ok(read);
        }
        node.store.fence();
        Err(Error::unavailable("the node was presumed dead"))
    }

    /// The outcome of a slot's commits: the records, and whether all are decided.
    async fn outcomes(
        &self,
        node: &Node,
        slot: StoredSlot,
    ) -> Result<(Vec<Arc<CommitRecord>>, bool)> {
        let known = node.log.highest();
        let commits = slot.entries.into_iter().filter_map(|entry| match entry {
            Entry::Committing {
                id,
                attempt,
                timestamp,
                ..
            } => Some((id, attempt, timestamp)),
            Entry::Began { .. } | Entry::Spilled { .. } => None,
        });
        let is_passed = |timestamp: Timestamp| {
            self.context.breaks(Broken::FollowsClockNotSlots) && timestamp < known
        };
        let commits = commits.filter(|(_, _, timestamp)| !is_passed(*timestamp));
        let looks =
            stream::iter(commits).map(|(id, attempt, _)| announced(&node.store, id, attempt));
        let found: Vec<Announced> = looks.buffered(ROWS_AT_ONCE).try_collect().await?;
        let all_decided = found
            .iter()
            .all(|found| !matches!(found, Announced::Undecided));
        let records = found.into_iter().filter_map(|found| match found {
            Announced::Committed(record) => Some(record),
            Announced::Undecided | Announced::Aborted => None,
        });
        Ok((records.collect(), all_decided))
    }
}

/// The slots from `cursor` on; `None` if one of them was trimmed.
pub(crate) async fn try_read_on(
    node: &Node,
    log: &FencedLog,
    cursor: Cursor,
) -> Result<Option<Slots>> {
    let read = || async {
        match log.read(cursor, SLOTS_AT_ONCE).await {
            Err(error) if error.kind() == ErrorKind::Invalid => Ok(None),
            read => read.map(Some),
        }
    };
    let read = node.store.again(read).await?;
    if let Some(read) = &read {
        node.store.seen(read.point)?;
    }
    Ok(read)
}

/// The outcome of an attempt.
async fn announced(store: &Store, id: TransactionId, attempt: Attempt) -> Result<Announced> {
    let (decision, point) = store.decision(&id).await?;
    let Some(decision) = decision else {
        return Ok(Announced::Undecided);
    };
    // The row of a later attempt of the id: this one cannot commit any more.
    if decision.attempt != attempt {
        return Ok(Announced::Aborted);
    }
    Ok(match decision.state {
        State::Committed(stored) => {
            let record = store.record(&id, attempt, &stored, point).await?;
            Announced::Committed(Arc::new(record))
        }
        State::Undecided | State::Prepared => Announced::Undecided,
        State::Aborted => Announced::Aborted,
    })
}
