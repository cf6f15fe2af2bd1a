//! The collector: deletes versions below the horizon, which no present or future transaction may
//! need.
//!
//! The horizon is the oldest frontier of all running transactions. Of a key's versions, the newest
//! at or below the horizon is the one that the oldest transaction may read; all older ones are
//! deleted. The unit is the version, not the transaction. The paper's Algorithm 2 frees a
//! transaction once all its keys are overwritten, so a counter written beside a fresh key would
//! keep all its versions forever.
//!
//! The collector follows each log in the order of its slots, which name the keys to examine. After
//! a crash, the slots after the last noted cursor are processed again, and finding nothing is fine.
//! For the own log, slots and rows are read from the store only where memory has evicted them.
//!
//! Among several nodes each follows its own log, and one follows those of dead nodes. The node of a
//! superseding commit finds the superseded version in its index and deletes it. A commit that was
//! superseded when it should have been announced was omitted, so that node may not know of it. Then
//! its own node deletes it: it finds the version superseded when it reaches the slot, and does not
//! pass the slot before. For the log of a dead node, no other node remembers what was omitted: its
//! keys are read from the store.
//!
//! Invariants
//! - Nothing is collected above the horizon, and horizons only grow: design note 0003, section 6.4,
//!   lemma 2.
//! - The index forgets a version before the store does, so that no reader chooses a version whose
//!   value is gone.
//! - Among several nodes a slot is passed once each version that it wrote is deleted, or is the
//!   newest of its key and was announced to all.
//! - Chunks are deleted before the version that names them, and versions before their row.
//! - A store in memory answers at once, and a process may have one worker. A walk through many
//!   versions therefore yields every hundred or so ([`consume_budget`]), or commits would wait for
//!   all of it.
//!
//! From AFT, section 5, Algorithm 2.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::{StreamExt, TryStreamExt, stream};
use primitives::{Cursor, SlotIndex};
use tokio::task::coop::consume_budget;

use crate::{
    Result,
    broken::Broken,
    cache::version_index::Entry as IndexEntry,
    collection::{
        Collection,
        delete::{Superseded, drop_released},
        tended::{Tended, collectable},
    },
    loader::wait_for_load,
    model::{Attempt, Key, NodeId},
    node::Node,
    storage::{
        frontier::Frontier,
        node_registry,
        records::{CommitRecord, Entry, StoredSlot, decode},
    },
};

/// Slots read at a time.
const SLOTS_AT_ONCE: usize = 64;
/// How many rows and keys are read at a time.
const LOOKS_AT_ONCE: usize = 16;
/// How many keys are planned together; one large transaction may have more.
const KEYS_AT_ONCE: usize = 1_024;
/// The approximate memory of the commits that are examined together.
const COMMITS_BYTES_MAX: usize = 256 << 10;
/// A cursor is noted after this many slots, for the next start after a crash.
const SLOTS_UNNOTED_MAX: u64 = 1_000;

/// Plans which versions of `entries` to delete; `horizon` is the oldest frontier of all running
/// transactions.
pub(crate) fn plan(
    entries: &BTreeMap<Key, Arc<IndexEntry>>,
    horizon: &Frontier,
) -> Vec<Superseded> {
    let mut plan = Vec::new();
    for (key, entry) in entries {
        let Some(floor) = entry
            .versions
            .iter()
            .rposition(|record| horizon.contains(record.position))
        else {
            continue;
        };
        let older = entry.versions[..floor].iter();
        plan.extend(older.map(|record| Superseded {
            key: key.clone(),
            record: Arc::clone(record),
        }));
    }
    plan
}

/// The commits of a log's next slots, each with its slot, and the position after them.
struct Next {
    commits: Vec<(u64, Arc<CommitRecord>)>,
    until: Cursor,
}

impl Collection {
    /// Collects versions that the next slots of a log have superseded, and superseded versions that
    /// they wrote. Returns false if nothing can be done before the horizon advances.
    pub(crate) async fn collect(
        self: &Arc<Self>,
        node: &Arc<Node>,
        tended: &mut Tended,
        may_be_released: &(dyn Fn(&CommitRecord) -> bool + Sync),
    ) -> Result<bool> {
        let horizon = self.cluster.horizon(node);
        let through = collectable(tended, &horizon);
        if tended.collected.next.0 > through || tended.looked == horizon {
            return Ok(false);
        }
        let Some(Next { commits, until }) = self.next_commits(node, tended, through).await? else {
            tended.looked = horizon;
            return Ok(false);
        };
        let entries = self.entries_of(node, tended, &commits).await?;
        let plan = self.plan(&entries, &horizon);
        let first_left = commits
            .iter()
            .find(|(_, record)| !self.context.is_alone() && waits(record, &entries, &horizon));
        // A change to an entry that is referenced elsewhere copies it.
        drop(entries);
        self.collect_planned(node, plan, may_be_released).await?;
        let mut collected = until;
        if let Some((slot, _)) = first_left {
            collected.next = SlotIndex(*slot);
            tended.looked = horizon;
        }
        if collected <= tended.collected {
            return Ok(false);
        }
        self.note_collected(node, tended, collected).await?;
        Ok(first_left.is_none())
    }

    /// The index entries of the keys that these commits of a log wrote.
    async fn entries_of(
        self: &Arc<Self>,
        node: &Arc<Node>,
        tended: &Tended,
        commits: &[(u64, Arc<CommitRecord>)],
    ) -> Result<BTreeMap<Key, Arc<IndexEntry>>> {
        // Among several nodes, some sequenced commits may have been omitted from announcements to
        // this node too, or were evicted from its index.
        let is_unknown = |record: &CommitRecord| {
            let is_others = tended.node != node.id || record.position.log == NodeId::SEQUENCER;
            is_others && !self.context.is_alone()
        };
        let mut keys: BTreeMap<Key, bool> = BTreeMap::new();
        for (_, record) in commits {
            for write in &record.writes {
                *keys.entry(write.key.clone()).or_default() |= is_unknown(record);
            }
        }
        let looks = stream::iter(keys).map(|(key, is_unknown)| async move {
            consume_budget().await;
            if is_unknown {
                self.cache.lock().index.forget(&key);
            }
            let entry = self.entry(node, &key).await?;
            Ok::<_, crate::Error>((key, entry))
        });
        looks.buffered(LOOKS_AT_ONCE).try_collect().await
    }

    /// Notes that everything before `collected` is collected.
    async fn note_collected(
        &self,
        node: &Arc<Node>,
        tended: &mut Tended,
        collected: Cursor,
    ) -> Result<()> {
        tended.collected = collected;
        if tended.node == node.id
            && let Some(mut cache) = self.cache.of(node.id)
        {
            cache.collected = collected.next.0 - 1;
        }
        if tended.collected.next.0 >= tended.noted + SLOTS_UNNOTED_MAX {
            node_registry::note_collected(&node.store, tended.node, tended.collected).await?;
            tended.noted = tended.collected.next.0;
        }
        Ok(())
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
            return Ok(Some(Next {
                commits: records,
                until: node.log.cursor_behind(last),
            }));
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
            let records = stream::iter(stored.entries).map(|entry| async move {
                match entry {
                    Entry::Committing { id, attempt, .. } => {
                        node.store.committed(&id, attempt).await
                    }
                    Entry::Began { .. } | Entry::Spilled { .. } => Ok(None),
                }
            });
            let records: Vec<_> = records.buffered(LOOKS_AT_ONCE).try_collect().await?;
            for record in records.into_iter().flatten() {
                keys += record.writes.len();
                commits.push((slot.index.0, Arc::new(record)));
            }
            until = slot.cursor();
        }
        // After the last record there are at most seals.
        if read.cursor.next.0 <= through + 1 {
            until = read.cursor;
        }
        Ok((until > tended.collected).then_some(Next { commits, until }))
    }

    fn plan(
        &self,
        entries: &BTreeMap<Key, Arc<IndexEntry>>,
        horizon: &Frontier,
    ) -> Vec<Superseded> {
        let mut plan = plan(entries, horizon);
        if self.context.breaks(Broken::CollectsWholeTransactions) {
            plan.retain(|superseded| is_wholly_superseded(&superseded.record, entries));
        }
        plan
    }

    /// Deletes the versions of a plan, and their rows that may be released.
    async fn collect_planned(
        &self,
        node: &Arc<Node>,
        plan: Vec<Superseded>,
        may_be_released: &(dyn Fn(&CommitRecord) -> bool + Sync),
    ) -> Result<()> {
        self.delete_versions(node, &plan).await?;
        let released = plan
            .into_iter()
            .filter(|superseded| may_be_released(&superseded.record));
        let rows: BTreeMap<Attempt, Superseded> = released
            .map(|superseded| (superseded.record.attempt, superseded))
            .collect();
        let rows = stream::iter(rows.into_values().map(Ok));
        rows.try_for_each_concurrent(LOOKS_AT_ONCE, |Superseded { key, record }| async move {
            consume_budget().await;
            drop_released(self, node, &record, &key).await
        })
        .await
    }

    /// The index entry of `key`, loaded if necessary.
    pub(crate) async fn entry(
        self: &Arc<Self>,
        node: &Arc<Node>,
        key: &Key,
    ) -> Result<Arc<IndexEntry>> {
        let known = self.cache.lock().index.peek(key).cloned();
        match known {
            Some(entry) => Ok(entry),
            None => wait_for_load(self.loader.load(node, key)).await,
        }
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

/// Whether every write of `record` is superseded, judged by `entries`: the paper's condition.
fn is_wholly_superseded(record: &CommitRecord, entries: &BTreeMap<Key, Arc<IndexEntry>>) -> bool {
    record.writes.iter().all(|write| {
        let newest = entries
            .get(&write.key)
            .and_then(|entry| entry.versions.last());
        newest.is_some_and(|newest| newest.version > record.version)
    })
}
