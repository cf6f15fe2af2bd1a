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
//! Invariants
//! - Nothing is collected above the horizon, and horizons only grow: design note 0003, section 6.4,
//!   lemma 2.
//! - The index forgets a version before the store does, so that no reader chooses a version whose
//!   value is gone.
//! - Chunks are deleted before the version that names them, and versions before their row.
//! - A store in memory answers at once, and a process may have one worker. A walk through many
//!   versions therefore yields every hundred or so ([`consume_budget`]), or commits would wait for
//!   all of it.
//!
//! From AFT, section 5, Algorithm 2.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use primitives::{Cursor, Slot};
use tokio::task::coop::consume_budget;

use crate::{
    Result,
    broken::Broken,
    cache::{recent_commits::Walked, version_index::Entry as IndexEntry},
    collection::{
        Collection,
        delete::{Superseded, drop_released},
        tended::{Tended, collectable},
    },
    loader::wait_for_load,
    model::{Attempt, Key, TransactionId},
    node::Node,
    storage::{
        frontier::Frontier,
        node_registry,
        records::{CommitRecord, Entry, StoredSlot, WriteSet, decode},
        store::{Decision, State},
    },
};

mod shared;

/// Slots read at a time.
const SLOTS_AT_ONCE: usize = 64;
/// How many rows and keys are read at a time.
const LOOKS_AT_ONCE: usize = 16;
/// How many keys are planned together; one large transaction may have more.
const KEYS_AT_ONCE: usize = 1_024;
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

impl Collection {
    /// Collects versions that a log's next slots superseded. Returns false if there are none below
    /// the horizon.
    pub(crate) async fn collect(
        self: &Arc<Self>,
        node: &Arc<Node>,
        tended: &mut Tended,
        may_be_released: &(dyn Fn(&CommitRecord) -> bool + Sync),
    ) -> Result<bool> {
        let horizon = self.cluster.horizon(node);
        let through = collectable(tended, &horizon);
        if tended.collected.next.0 > through {
            return Ok(false);
        }
        if !self.context.is_alone() {
            return self
                .collect_shared(node, tended, through, &horizon, may_be_released)
                .await;
        }
        let recent = self.walk_recent(node, tended, through);
        let collected = if let Some(Walked { keys, through }) = recent {
            let keys = keys.into_iter().collect();
            self.collect_keys(node, keys, &horizon, may_be_released)
                .await?;
            Some(node.log.cursor_behind(through))
        } else {
            self.collect_from_log(node, tended, through, &horizon, may_be_released)
                .await?
        };
        let Some(collected) = collected.filter(|collected| *collected > tended.collected) else {
            return Ok(false);
        };
        self.note_collected(node, tended, collected).await?;
        Ok(true)
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

    /// The next slots of the own log, as far as they are in memory.
    fn walk_recent(&self, node: &Arc<Node>, tended: &Tended, through: u64) -> Option<Walked> {
        let cache = self.cache.of(node.id)?;
        if tended.node != node.id {
            return None;
        }
        cache
            .recent
            .walk(tended.collected.next.0, through, KEYS_AT_ONCE)
    }

    /// Collects versions that the next slots of a log superseded. Returns the position reached.
    async fn collect_from_log(
        self: &Arc<Self>,
        node: &Arc<Node>,
        tended: &Tended,
        through: u64,
        horizon: &Frontier,
        may_be_released: &(dyn Fn(&CommitRecord) -> bool + Sync),
    ) -> Result<Option<Cursor>> {
        let read = node
            .store
            .again(|| tended.log.read(tended.collected, SLOTS_AT_ONCE))
            .await?;
        let is_below = |slot: &&Slot| slot.index.0 <= through;
        let below: Vec<&Slot> = read.slots.iter().take_while(is_below).collect();
        // After the last record there are at most seals.
        let is_whole = below.len() == read.slots.len();
        let collected = if is_whole {
            Some(read.cursor)
        } else {
            below.last().map(|slot| slot.cursor())
        };
        if collected.is_none_or(|collected| collected <= tended.collected) {
            return Ok(None);
        }
        let mut commits = Vec::new();
        for slot in below {
            let stored: StoredSlot = decode(&slot.payload, "a slot of a node's log")?;
            commits.extend(stored.entries.into_iter().filter_map(Committing::of));
        }
        while !commits.is_empty() {
            let mut keys = 0;
            let count = commits.iter().take_while(|commit| {
                let fits = keys < KEYS_AT_ONCE;
                keys += commit.keys();
                fits
            });
            let rest = commits.split_off(count.count());
            self.collect_batch(
                node,
                std::mem::replace(&mut commits, rest),
                horizon,
                may_be_released,
            )
            .await?;
        }
        Ok(collected)
    }

    async fn collect_batch(
        self: &Arc<Self>,
        node: &Arc<Node>,
        commits: Vec<Committing>,
        horizon: &Frontier,
        may_be_released: &(dyn Fn(&CommitRecord) -> bool + Sync),
    ) -> Result<()> {
        let rows = stream::iter(commits).map(|commit| commit.keys_if_committed(node));
        let keys: Vec<Vec<Key>> = rows.buffered(LOOKS_AT_ONCE).try_collect().await?;
        self.collect_keys(
            node,
            keys.into_iter().flatten().collect(),
            horizon,
            may_be_released,
        )
        .await
    }

    /// Collects the versions of these keys that no transaction below the horizon may need.
    async fn collect_keys(
        self: &Arc<Self>,
        node: &Arc<Node>,
        keys: BTreeSet<Key>,
        horizon: &Frontier,
        may_be_released: &(dyn Fn(&CommitRecord) -> bool + Sync),
    ) -> Result<()> {
        let looks = stream::iter(keys).map(|key| async move {
            consume_budget().await;
            let entry = self.entry(node, &key).await?;
            Ok::<_, crate::Error>((key, entry))
        });
        let entries: BTreeMap<_, _> = looks.buffered(LOOKS_AT_ONCE).try_collect().await?;
        let plan = self.plan(&entries, horizon);
        // A change to an entry that is referenced elsewhere copies it.
        drop(entries);
        self.collect_planned(node, plan, may_be_released).await
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

/// A commit as its log announces it.
struct Committing {
    id: TransactionId,
    attempt: Attempt,
    writes: WriteSet,
}

impl Committing {
    fn of(entry: Entry) -> Option<Self> {
        match entry {
            Entry::Committing {
                id,
                attempt,
                writes,
                ..
            } => Some(Self {
                id,
                attempt,
                writes,
            }),
            Entry::Began { .. } | Entry::Spilled { .. } => None,
        }
    }

    /// The number of keys that it writes, as far as the entry tells.
    fn keys(&self) -> usize {
        match &self.writes {
            WriteSet::Inline(writes) => writes.len(),
            WriteSet::Parts(_) => KEYS_AT_ONCE,
        }
    }

    /// The keys it wrote, if it committed.
    async fn keys_if_committed(self, node: &Node) -> Result<Vec<Key>> {
        let (decision, _) = node.store.decision(&self.id).await?;
        let Some(Decision {
            attempt,
            state: State::Committed(stored),
            ..
        }) = decision
        else {
            return Ok(Vec::new());
        };
        if attempt != self.attempt {
            return Ok(Vec::new());
        }
        let writes = node.store.write_set(attempt, &stored.writes).await?;
        Ok(writes.into_iter().map(|write| write.key).collect())
    }
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
