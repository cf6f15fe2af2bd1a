//! Collection among several nodes: each follows its own log, and one follows those of dead nodes.
//!
//! The node of a superseding commit finds the superseded version in its index and deletes it. A
//! commit that was superseded when it should have been announced was omitted, so that node may not
//! know of it. Then its own node deletes it. It was omitted because there was a newer version, so
//! its own node finds it superseded when it reaches the slot, and does not pass the slot before the
//! deletion.
//!
//! For the log of a dead node, no other node remembers what was omitted: its keys are read from the
//! store.
//!
//! Invariants
//! - A slot is passed once each version that it wrote is deleted, or is the newest of its key and
//!   was announced to all.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::{StreamExt, TryStreamExt, stream};
use primitives::{Cursor, SlotIndex};
use tokio::task::coop::consume_budget;

use crate::{
    Result,
    cache::version_index::Entry as IndexEntry,
    collection::{Collection, tended::Tended},
    loader::wait_for_load,
    model::{Key, NodeId},
    node::Node,
    storage::{
        frontier::Frontier,
        records::{CommitRecord, StoredSlot, decode},
    },
};

use super::{Committing, KEYS_AT_ONCE, LOOKS_AT_ONCE, SLOTS_AT_ONCE};

/// The approximate memory of the commits that are examined together.
const COMMITS_BYTES_MAX: usize = 256 << 10;

/// The commits of a log's next slots, and the position after them.
struct Next {
    commits: Vec<Committed>,
    until: Cursor,
}

/// The writes of a slot's commit.
struct Committed {
    slot: u64,
    record: Arc<CommitRecord>,
}

impl Collection {
    /// Collects versions that the next slots of a log, at most up to `through`, have superseded,
    /// and superseded versions that they wrote. Returns false if nothing can be done before more is
    /// agreed on.
    pub(super) async fn collect_shared(
        self: &Arc<Self>,
        node: &Arc<Node>,
        tended: &mut Tended,
        through: u64,
        horizon: &Frontier,
        may_be_released: &(dyn Fn(&CommitRecord) -> bool + Sync),
    ) -> Result<bool> {
        if tended.looked == *horizon {
            return Ok(false);
        }
        let Some(Next { commits, until }) = self.next_commits(node, tended, through).await? else {
            tended.looked.clone_from(horizon);
            return Ok(false);
        };
        // Some sequenced commits may have been omitted from announcements to this node too, or were
        // evicted from its index.
        let is_unknown = |commit: &Committed| {
            tended.node != node.id || commit.record.position.log == NodeId::SEQUENCER
        };
        let mut keys: BTreeMap<Key, bool> = BTreeMap::new();
        for commit in &commits {
            for write in &commit.record.writes {
                *keys.entry(write.key.clone()).or_default() |= is_unknown(commit);
            }
        }
        let looks = stream::iter(keys).map(|(key, is_unknown)| async move {
            consume_budget().await;
            let entry = if is_unknown {
                self.cache.lock().index.forget(&key);
                wait_for_load(self.loader.load(node, &key)).await?
            } else {
                self.entry(node, &key).await?
            };
            Ok::<_, crate::Error>((key, entry))
        });
        let entries: BTreeMap<_, _> = looks.buffered(LOOKS_AT_ONCE).try_collect().await?;
        let plan = self.plan(&entries, horizon);
        let first_left = commits
            .iter()
            .find(|commit| waits(&commit.record, &entries, horizon));
        drop(entries);
        self.collect_planned(node, plan, may_be_released).await?;
        let collected = match first_left {
            Some(commit) => Cursor {
                next: SlotIndex(commit.slot),
                ..until
            },
            None => until,
        };
        if first_left.is_some() {
            tended.looked.clone_from(horizon);
        }
        if collected <= tended.collected {
            return Ok(false);
        }
        self.note_collected(node, tended, collected).await?;
        Ok(first_left.is_none())
    }

    /// `None` if there are no more below `through`.
    async fn next_commits(
        &self,
        node: &Arc<Node>,
        tended: &Tended,
        through: u64,
    ) -> Result<Option<Next>> {
        let first = tended.collected.next.0;
        if tended.node == node.id
            && let Some(cache) = self.cache.of(node.id)
            && first >= cache.recent.complete_from()
            && first <= through
        {
            let (records, last) = cache.recent.commits(first, through, COMMITS_BYTES_MAX);
            let commits = records
                .into_iter()
                .map(|(slot, record)| Committed { slot, record });
            let (commits, until) = (commits.collect(), node.log.cursor_behind(last));
            return Ok(Some(Next { commits, until }));
        }
        let read = node
            .store
            .again(|| tended.log.read(tended.collected, SLOTS_AT_ONCE))
            .await?;
        let (mut commits, mut keys) = (Vec::new(), 0);
        let mut until = tended.collected;
        for slot in read.slots.iter().take_while(|slot| slot.index.0 <= through) {
            if keys >= KEYS_AT_ONCE {
                return Ok(Some(Next { commits, until }));
            }
            let stored: StoredSlot = decode(&slot.payload, "a slot of a node's log")?;
            let announced = stored.entries.into_iter().filter_map(Committing::of);
            let records: Vec<_> = stream::iter(announced)
                .map(|commit| commit.record_if_committed(node))
                .buffered(LOOKS_AT_ONCE)
                .try_collect()
                .await?;
            let records = records.into_iter().flatten();
            for record in records {
                keys += record.writes.len();
                commits.push(Committed {
                    slot: slot.index.0,
                    record,
                });
            }
            until = slot.cursor();
        }
        // After the last record there are at most seals.
        if read.cursor.next.0 <= through + 1 {
            until = read.cursor;
        }
        Ok((until > tended.collected).then_some(Next { commits, until }))
    }
}

/// Whether the collection of a commit must wait. It must if its writes are superseded by a commit
/// that not all nodes have applied: it may have been omitted from an announcement, so no other node
/// would delete it. It must also wait if not all nodes have applied the slot that decided it, which
/// is in another log for a sequenced commit: then the versions that it supersedes are still needed.
fn waits(
    record: &CommitRecord,
    entries: &BTreeMap<Key, Arc<IndexEntry>>,
    horizon: &Frontier,
) -> bool {
    if !horizon.contains(record.position) {
        return true;
    }
    record.writes.iter().any(|write| {
        let versions = &entries[&write.key].versions;
        let Some(place) = versions
            .iter()
            .position(|other| other.attempt == record.attempt)
        else {
            return false;
        };
        let newer = &versions[place + 1..];
        !newer.is_empty() && newer.iter().all(|newer| !horizon.contains(newer.position))
    })
}

impl Committing {
    /// The record, if it committed.
    async fn record_if_committed(self, node: &Node) -> Result<Option<Arc<CommitRecord>>> {
        let (decision, point) = node.store.decision(&self.id).await?;
        let Some(crate::storage::store::Decision {
            attempt,
            state: crate::storage::store::State::Committed(stored),
            ..
        }) = decision
        else {
            return Ok(None);
        };
        if attempt != self.attempt {
            return Ok(None);
        }
        let record = node.store.record(&self.id, attempt, &stored, point).await?;
        Ok(Some(Arc::new(record)))
    }
}
