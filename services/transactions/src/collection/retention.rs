//! Retention: drops rows and slots after their windows, and deletions that no transaction can see
//! any more.
//!
//! A slot is done once each of its entries is decided, its owner has learned the decision and
//! cleaned up, the collector has passed it, and the window for repeats by its clients is over.
//! Then:
//!
//! - The data of uncommitted attempts are deleted once more, because a write of a timed-out call
//!   may have landed after the first deletion.
//! - A deletion that is still the newest version of its key is dropped, and with it the key. All
//!   horizons have passed it, so nothing older can reappear or is needed.
//! - A decision row is dropped, unless it still decides about existing versions. Then it is
//!   *released*, and dropped with the last of them. Rows of client ids are kept for a longer
//!   window, by [`idempotency_keys`](crate::idempotency_keys).
//!
//! Then the log is trimmed. After a crash the slots are still there, and are processed again.
//!
//! Invariants
//! - A row is dropped only once its attempt cannot commit: its owner has ended it, or its log was
//!   sealed and resolved. A row that a resolver closed is kept as long as one of a client id,
//!   because its owner may only be paused.
//! - A row stays while effects of its commit are unsent: from the row a successor learns that they
//!   take effect.
//! - Before rows of generated ids are dropped, their attempts are noted, so that no caller takes
//!   one for never committed.
//!
//! The paper keeps records until all keys are overwritten, and has no deletions.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use primitives::Cursor;
use tokio::task::coop::consume_budget;

use crate::{
    Result,
    broken::Broken,
    collection::{
        Collection,
        delete::Superseded,
        tended::Tended,
        uncommitted::{delete_uncommitted, tidy_spilled},
    },
    model::{Attempt, NodeId, TransactionId},
    node::Node,
    storage::{
        node_registry,
        records::{CommitRecord, Entry, Place, StoredSlot, decode},
        store::State,
    },
};

/// How many slots are processed at a time, and trimmed together.
const SLOTS_AT_ONCE: usize = 64;
/// Entries done at a time.
const ENTRIES_AT_ONCE: usize = 16;
/// How far the clock of an earlier start may have been ahead of this one's.
const CLOCK_SLACK: Duration = Duration::from_secs(10);

/// A row that is kept as long as those of client ids.
type Kept = Option<(TransactionId, Attempt)>;

impl Collection {
    /// Processes the next slots of a log whose windows are over. Returns false if there are none.
    pub(crate) async fn retain(
        self: &Arc<Self>,
        node: &Arc<Node>,
        tended: &mut Tended,
    ) -> Result<bool> {
        let mut through = self.retainable(node, tended);
        if !self.context.is_alone() && tended.retained.next.0 <= through {
            // A reader that misses a deletion must know the reason, so all nodes are told before
            // any is dropped.
            self.drops(tended.node, through);
            through = self.told(node, tended, through);
        }
        if tended.retained.next.0 > through {
            return Ok(false);
        }
        let Some((done, entries)) = self.next_done(node, tended, through).await? else {
            return Ok(false);
        };
        self.note_dropped(node, tended, &entries).await?;
        // Before any deletion is dropped, so that a reader that misses one knows the reason.
        self.drops(tended.node, done.next.0 - 1);
        let is_own = tended.node == node.id;
        let kept = stream::iter(entries).map(|entry| self.retain_entry(node, entry, is_own));
        let kept: Vec<Kept> = kept.buffered(ENTRIES_AT_ONCE).try_collect().await?;
        let kept = kept.into_iter().flatten().collect();
        self.idempotency_keys.keep_names(node, kept).await?;
        node.store.again(|| tended.log.trim(done)).await?;
        tended.retained = done;
        Ok(true)
    }

    /// The entries of the next slots, up to `through`, whose windows are over, and the position
    /// after them; `None` if there are none.
    async fn next_done(
        &self,
        node: &Node,
        tended: &mut Tended,
        through: u64,
    ) -> Result<Option<(Cursor, Vec<Entry>)>> {
        let read = node
            .store
            .again(|| tended.log.read(tended.retained, SLOTS_AT_ONCE))
            .await?;
        let mut done = tended.retained;
        let mut entries = Vec::new();
        for slot in read.slots.iter().take_while(|slot| slot.index.0 <= through) {
            let stored: StoredSlot = decode(&slot.payload, "a slot of a node's log")?;
            if let Some(left) = self.left_of_window(tended, &stored) {
                tended.young_until = Some(self.context.clock.monotonic() + left);
                break;
            }
            done = slot.cursor();
            entries.extend(stored.entries);
        }
        if read.slots.is_empty() {
            done = read.cursor;
        }
        Ok((done > tended.retained).then_some((done, entries)))
    }

    /// The slot up to which only a window can block retention.
    pub(crate) fn retainable(&self, node: &Node, tended: &Tended) -> u64 {
        let now = self.context.clock.monotonic();
        if tended.young_until.is_some_and(|until| until > now) {
            return 0;
        }
        let collected = tended.collected.next.0 - 1;
        let aged = || node.log.aged_through(self.context.config.retry_window);
        match tended.last {
            Some(last) => last.min(collected),
            None if self.context.breaks(Broken::DropsUnheardDecisions) => aged(),
            None => aged().min(collected).min(node.log.settled_through()),
        }
    }

    /// Whether only a window can block a log's next slot.
    pub(crate) fn is_retainable(&self, node: &Node, tended: &Tended) -> bool {
        self.told(node, tended, self.retainable(node, tended)) >= tended.retained.next.0
    }

    /// The slot, at most `through`, up to which all other nodes know that deletions may be dropped.
    fn told(&self, node: &Node, tended: &Tended, through: u64) -> u64 {
        if self.context.is_alone() {
            return through;
        }
        let neighbours = &self.cluster.lock().neighbours;
        through.min(neighbours.told_dropped(node.id, tended.node))
    }

    /// The time left in a slot's window; `None` if it is over. The monotonic clock measures the age
    /// of own slots. For those of earlier starts there is only the wall clock, or the age of this
    /// start. Chunks that such a start may still write are found only through its entries, which
    /// therefore wait until no more can arrive.
    fn left_of_window(&self, tended: &Tended, slot: &StoredSlot) -> Option<Duration> {
        tended.last?;
        let window = self.context.config.retry_window;
        let age = Duration::from_millis(self.context.clock.now().0.saturating_sub(slot.written_ms));
        let by_wall = (window + CLOCK_SLACK).saturating_sub(age);
        let by_start = (tended.since + window).since(self.context.clock.monotonic());
        let has_spilled = slot
            .entries
            .iter()
            .any(|entry| matches!(entry, Entry::Spilled { .. }));
        let late = if has_spilled {
            self.late_writes(tended.since)
        } else {
            Duration::ZERO
        };
        let left = by_wall.min(by_start).max(late);
        (left > Duration::ZERO).then_some(left)
    }

    /// Notes that from now on deletions up to slot `through` may be gone.
    pub(crate) fn drops(&self, log: NodeId, through: u64) {
        Arc::make_mut(&mut self.cache.lock().dropped).advance(log, through);
    }

    /// Notes that from now on rows of these attempts may be missing although they committed.
    async fn note_dropped(
        &self,
        node: &Node,
        tended: &mut Tended,
        entries: &[Entry],
    ) -> Result<()> {
        let generated = entries.iter().filter_map(|entry| match entry {
            Entry::Committing {
                named: false,
                attempt,
                ..
            } => Some(attempt.sequence),
            _ => None,
        });
        let dropped = generated.max().filter(|last| *last > tended.dropped);
        let Some(dropped) = dropped else {
            return Ok(());
        };
        node_registry::note_dropped(&node.store, tended.node, dropped).await?;
        tended.dropped = dropped;
        Ok(())
    }

    async fn retain_entry(
        self: &Arc<Self>,
        node: &Arc<Node>,
        entry: Entry,
        is_own: bool,
    ) -> Result<Kept> {
        consume_budget().await;
        match entry {
            Entry::Began { id, attempt } => self.retain_begun(node, id, attempt).await,
            Entry::Spilled {
                id,
                attempt,
                writes,
            } => {
                let mutant = self.context.config.mutant;
                tidy_spilled(&node.store, &id, attempt, &writes, mutant).await?;
                Ok(None)
            }
            Entry::Committing {
                id,
                attempt,
                named,
                writes,
                ..
            } => {
                let (decision, point) = node.store.decision(&id).await?;
                let decision = decision.filter(|decision| decision.attempt == attempt);
                let state = decision.map(|decision| decision.state);
                if let Some(State::Committed(stored)) = state {
                    let is_sent = self.is_sent(node, attempt, stored.effects).await?;
                    let record = node.store.record(&id, attempt, &stored, point).await?;
                    self.drop_tombstones(node, &record).await?;
                    // From its row the next start learns which effects are unsent.
                    if named || !is_sent {
                        return Ok(Some((id, attempt)));
                    }
                    self.drop_or_release(node, &record).await?;
                    return Ok(None);
                }
                delete_uncommitted(&node.store, attempt, &writes).await?;
                node.store.delete_outbox(attempt).await?;
                let is_closed = state == Some(State::Aborted);
                let is_safe = named && id.generated().is_none() || !named && is_own;
                if is_closed && is_safe {
                    node.store.drop_aborted(&id, attempt).await?;
                }
                Ok((is_closed && !is_safe).then_some((id, attempt)))
            }
        }
    }

    /// Whether the outbox of a commit is empty.
    pub(crate) async fn is_sent(
        &self,
        node: &Node,
        attempt: Attempt,
        effects: u32,
    ) -> Result<bool> {
        Ok(effects == 0 || !node.store.has_unsent(attempt).await?)
    }

    /// The begin of a client id: its attempt has an entry of its own, unless it wrote nothing.
    async fn retain_begun(&self, node: &Node, id: TransactionId, attempt: Attempt) -> Result<Kept> {
        let (decision, _) = node.store.decision(&id).await?;
        let decision = decision.filter(|decision| decision.attempt == attempt);
        match decision.map(|decision| decision.state) {
            Some(State::Committed(stored)) if stored.after().is_none() => Ok(Some((id, attempt))),
            Some(State::Aborted) if id.generated().is_none() => {
                node.store.drop_aborted(&id, attempt).await?;
                Ok(None)
            }
            Some(State::Aborted) => Ok(Some((id, attempt))),
            _ => Ok(None),
        }
    }

    /// Drops the deletions of `record` that are still the newest versions of their keys.
    async fn drop_tombstones(
        self: &Arc<Self>,
        node: &Arc<Node>,
        record: &CommitRecord,
    ) -> Result<()> {
        if record.position.log == NodeId::SEQUENCER {
            self.drops(NodeId::SEQUENCER, record.position.slot);
        }
        for write in record
            .writes
            .iter()
            .filter(|write| write.place == Place::Gone)
        {
            if !self.context.is_alone() {
                // The index may lack the version that superseded it.
                self.cache.lock().index.forget(&write.key);
            }
            let entry = self.entry(node, &write.key).await?;
            let newest = entry.versions.last();
            if newest.is_none_or(|newest| newest.attempt != record.attempt) {
                continue;
            }
            // The collector has deleted the older ones; those that a load has restored are deleted
            // with it, oldest first.
            for record in &entry.versions {
                let gone = Superseded {
                    key: write.key.clone(),
                    record: Arc::clone(record),
                };
                self.delete_versions(node, &[gone]).await?;
            }
        }
        Ok(())
    }
}

/// Whether a log has nothing before this position.
pub(crate) fn is_trimmed(tended: &Tended) -> bool {
    tended
        .last
        .is_some_and(|last| tended.retained.next.0 > last)
}
