//! Rows and slots past their windows, and deletions that nobody can see any more.
//!
//! A slot is done once each of its entries is decided, its owner has heard so and has cleaned up, the collector has passed
//! it, and the window is over in which its clients may ask again. Then:
//!
//! - what did not commit is deleted once more: a write of a call that timed out may have landed behind the first time;
//! - a deletion that is still the newest version of its key goes, and with it the key: all horizons have passed it, so
//!   nothing older can come back or is needed;
//! - a decision row goes, unless versions are left that it decides about: then it is *released*, and goes with the last
//!   of them. Names are kept for a longer window, in [`names`](crate::idempotency_keys).
//!
//! Then the log is trimmed. Dies anywhere: the slots are still there, and are done again.
//!
//! Invariants
//! - A row is dropped only once nobody can commit its attempt: its owner has ended it, or its log was sealed and
//!   resolved. What a resolver closed is kept as long as a name is, since its owner may only be paused.
//! - A row stays while effects of its commit are unsent: by it a successor tells that they count.
//! - What is dropped of generated ids was noted before, so that nobody takes it for never committed.
//!
//! The paper keeps records until all keys are overwritten, and has no deletions.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use primitives::{Cursor, Slot};
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
    model::{Attempt, NodeId, Position, TransactionId},
    node::Node,
    storage::{
        node_registry,
        records::{CommitRecord, Entry, Place, StoredSlot, decode},
        store::{Decision, State},
    },
};

/// Slots done at a time, and trimmed together.
const SLOTS_AT_ONCE: usize = 64;
/// Entries done at a time.
const ENTRIES_AT_ONCE: usize = 16;
/// By how much the clock of an earlier start may have been ahead of this one's.
const CLOCK_SLACK: Duration = Duration::from_secs(10);

/// What remains to be done about an entry once its data are dealt with.
enum Rest {
    Nothing,
    /// The row is kept as long as names are.
    Keep(TransactionId, Attempt),
}

impl Collection {
    /// Does the next slots of a log whose windows are over. False: there are none.
    pub(crate) async fn retain(
        self: &Arc<Self>,
        node: &Arc<Node>,
        tended: &mut Tended,
    ) -> Result<bool> {
        let mut through = self.retainable(node, tended);
        if tended.retained.next.0 > through {
            return Ok(false);
        }
        if !self.context.is_alone() {
            // Whoever misses a deletion anywhere has to know why, so all are told before any goes.
            self.drops(
                tended.node,
                Cursor {
                    next: primitives::SlotIndex(through + 1),
                    ..tended.retained
                },
            );
            through = self.told(node, tended, through);
            if tended.retained.next.0 > through {
                return Ok(false);
            }
        }
        let read = node
            .store
            .again(|| tended.log.read(tended.retained, SLOTS_AT_ONCE))
            .await?;
        let mut done = None;
        let mut entries = Vec::new();
        for slot in &read.slots {
            let stored: StoredSlot = decode(&slot.payload, "a slot of a node's log")?;
            if slot.index.0 > through {
                break;
            }
            if let Some(left) = self.left_of_window(tended, &stored) {
                tended.young_until = Some(self.context.clock.monotonic() + left);
                break;
            }
            done = Some(Slot::cursor(slot));
            entries.extend(stored.entries);
        }
        if read.slots.is_empty() {
            done = Some(read.cursor);
        }
        let Some(done) = done.filter(|done| *done > tended.retained) else {
            return Ok(false);
        };
        self.note_dropped(node, tended, &entries).await?;
        // Before any deletion goes: whoever misses one knows why.
        self.drops(tended.node, done);
        let is_own = tended.node == node.id;
        let resting = stream::iter(entries).map(|entry| self.retain_entry(node, entry, is_own));
        let rests: Vec<Rest> = resting.buffered(ENTRIES_AT_ONCE).try_collect().await?;
        let kept = rests.into_iter().filter_map(|rest| match rest {
            Rest::Keep(id, attempt) => Some((id, attempt)),
            Rest::Nothing => None,
        });
        self.idempotency_keys
            .keep_names(node, kept.collect())
            .await?;
        node.store.again(|| tended.log.trim(done)).await?;
        tended.retained = done;
        Ok(true)
    }

    /// Up to which slot nothing but a window can stand in the way.
    pub(crate) fn retainable(&self, node: &Node, tended: &Tended) -> u64 {
        if tended
            .young_until
            .is_some_and(|until| until > self.context.clock.monotonic())
        {
            return 0;
        }
        let collected = tended.collected.next.0 - 1;
        match tended.last {
            Some(last) => last.min(collected),
            None if self.context.config.is_broken(Broken::DropsUnheardDecisions) => {
                node.log.aged_through(self.context.config.retry_window)
            }
            None => node
                .log
                .aged_through(self.context.config.retry_window)
                .min(collected)
                .min(node.log.settled_through()),
        }
    }

    /// Whether nothing but a window can stand in the way of a log's next slot.
    pub(crate) fn is_retainable(&self, node: &Node, tended: &Tended) -> bool {
        self.told(node, tended, self.retainable(node, tended)) >= tended.retained.next.0
    }

    /// How much of `through` all other nodes have been told that it may be dropped.
    fn told(&self, node: &Node, tended: &Tended, through: u64) -> u64 {
        if self.context.is_alone() {
            return through;
        }
        through.min(
            self.cluster
                .lock()
                .neighbours
                .told_dropped(node.id, tended.node),
        )
    }

    /// What is left of a slot's window; none: it is over. Slots of the own log are aged by the clock that never goes back;
    /// those of earlier starts only have the wall clock, or the age of this start.
    /// Chunks that such a start may still write can be found by its entries alone: these wait until nothing more comes.
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

    /// From now on deletions before `until` may be gone.
    pub(crate) fn drops(&self, log: NodeId, until: Cursor) {
        Arc::make_mut(&mut self.cache.lock().dropped).advance(log, until.next.0 - 1);
    }

    /// From now on rows of these attempts may be missing although they committed.
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
        let Some(dropped) = generated
            .max()
            .filter(|sequence| *sequence > tended.dropped)
        else {
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
    ) -> Result<Rest> {
        consume_budget().await;
        match entry {
            Entry::Began { id, attempt } => self.retain_begun(node, id, attempt).await,
            Entry::Spilled {
                id,
                attempt,
                writes,
            } => {
                let store = &node.store;
                tidy_spilled(store, &id, attempt, &writes, self.context.config.broken)
                    .await
                    .map(|()| Rest::Nothing)
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
                match decision {
                    Some(Decision {
                        state: State::Committed(stored),
                        ..
                    }) => {
                        let is_sent = self.is_sent(node, attempt, stored.effects).await?;
                        let record =
                            Arc::new(node.store.record(&id, attempt, &stored, point).await?);
                        self.drop_tombstones(node, &record).await?;
                        // By its row the next start tells what is still to be sent.
                        if named || !is_sent {
                            return Ok(Rest::Keep(id, attempt));
                        }
                        self.drop_or_release(node, &record).await?;
                        Ok(Rest::Nothing)
                    }
                    other => {
                        delete_uncommitted(&node.store, attempt, &writes).await?;
                        node.store.delete_outbox(attempt).await?;
                        let is_closed =
                            other.is_some_and(|decision| decision.state == State::Aborted);
                        let is_safe = named && id.generated().is_none() || !named && is_own;
                        match (is_closed, is_safe) {
                            (false, _) => Ok(Rest::Nothing),
                            (true, true) => node
                                .store
                                .drop_aborted(&id, attempt)
                                .await
                                .map(|()| Rest::Nothing),
                            (true, false) => Ok(Rest::Keep(id, attempt)),
                        }
                    }
                }
            }
        }
    }

    /// Whether nothing is left in the outbox of a commit.
    pub(crate) async fn is_sent(
        &self,
        node: &Node,
        attempt: Attempt,
        effects: u32,
    ) -> Result<bool> {
        Ok(effects == 0 || !node.store.has_unsent(attempt).await?)
    }

    /// A named begin: what it led to has an entry of its own, unless it wrote nothing.
    async fn retain_begun(&self, node: &Node, id: TransactionId, attempt: Attempt) -> Result<Rest> {
        let (decision, _) = node.store.decision(&id).await?;
        match decision
            .filter(|decision| decision.attempt == attempt)
            .map(|decision| decision.state)
        {
            Some(State::Committed(stored)) if stored.after().is_none() => {
                Ok(Rest::Keep(id, attempt))
            }
            Some(State::Aborted) if id.generated().is_none() => node
                .store
                .drop_aborted(&id, attempt)
                .await
                .map(|()| Rest::Nothing),
            Some(State::Aborted) => Ok(Rest::Keep(id, attempt)),
            _ => Ok(Rest::Nothing),
        }
    }

    /// Deletes the deletions of `record` that are still the newest versions of their keys.
    async fn drop_tombstones(
        self: &Arc<Self>,
        node: &Arc<Node>,
        record: &Arc<CommitRecord>,
    ) -> Result<()> {
        if record.position.log == NodeId::SEQUENCER {
            let Position { log, slot } = record.position;
            Arc::make_mut(&mut self.cache.lock().dropped).advance(log, slot);
        }
        for write in record
            .writes
            .iter()
            .filter(|write| write.place == Place::Gone)
        {
            if !self.context.is_alone() {
                // Memory may have been left out what superseded it.
                self.cache.lock().index.forget(&write.key);
            }
            let entry = self.entry(node, &write.key).await?;
            if entry
                .versions
                .last()
                .is_none_or(|newest| newest.attempt != record.attempt)
            {
                continue;
            }
            // Older ones went when the collector passed; what a load has brought back goes with it, oldest first.
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

/// Nothing of a log stands before this.
pub(crate) fn is_trimmed(tended: &Tended) -> bool {
    tended.last.is_some_and(|last| {
        tended.retained
            > Cursor {
                next: primitives::SlotIndex(last),
                ..tended.retained
            }
    })
}
