//! A start: a new node, and what the logs of earlier ones left.
//!
//! Before the first begin, the log of every earlier start is sealed, so that its owner can announce nothing more; then
//! each of its entries is decided, by closing what is not, and what does not count is deleted. The owner may be this very
//! process, whose store went back, with tasks that do not know yet: their rows are closed before they come to them.
//!
//! Every step can be repeated: a start that dies on the way is done again by the next one. Only then is a log marked as
//! resolved, with the highest timestamp it had given, above which this node goes on (T-1).
//!
//! From AFT, section 4.2, whose fault manager scans all commits; ours reads what is behind the last mark.

use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use primitives::{Cursor, FencedLog, Slot, Writer};

use crate::{
    Error, Result,
    attempts::transaction::Phase,
    broken::Broken,
    calls::spill::tidy_spilled,
    cluster::membership::Address,
    collection::retention::delete_uncommitted,
    engine::Core,
    model::{Attempt, NodeId, TransactionId},
    node::Node,
    serializable::keyspace,
    storage::{
        frontier::Heard,
        hybrid_clock::HybridClock,
        layout,
        node_log::{Bounds, NodeLog},
        node_registry::{self, NodeRow},
        records::{Entry, StoredSlot, decode},
        store::{Decided, Decision, State, Store},
    },
};

/// How an attempt is closed whose row was handed over to the sequencer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Closing<'a> {
    /// There is no sequencer, so there is no such row.
    Never,
    /// What the log had decided is settled already, and nobody else writes it.
    ByRow,
    /// The sequencer's log says it.
    ByLog(&'a Arc<Node>),
}

/// Entries resolved at a time.
const ENTRIES_AT_ONCE: usize = 16;
/// A clock this far behind the last timestamp is worth a warning.
const BEHIND_MS_MAX: u64 = 10_000;

impl Core {
    /// Ends what the present node holds, and starts another. Errors: what the store answers; nothing is served then, and
    /// the next try begins from the start.
    pub(crate) async fn start_over(self: &Arc<Self>) -> Result<()> {
        self.stop_serving();
        let (clock, entropy) = (
            Arc::clone(&self.context.clock),
            Arc::clone(&self.context.entropy),
        );
        let fell = Arc::clone(&self.serving.fell);
        let store = Arc::new(Store::new(
            Arc::clone(&self.context.key_value),
            self.context.config.buckets,
            clock,
            entropy,
            fell,
        ));
        store.check_format().await?;
        if let Err(error) = self.find_home(&store).await {
            // Nobody waits for what this process has heard.
            self.membership.leave().await;
            return Err(error);
        }
        if !self.context.is_alone() {
            return self.join_others(store).await;
        }
        let id = node_registry::take_id(&store).await?;
        node_registry::put_row(&store, id, self.context.clock.now(), &Address::default()).await?;
        let writer = self.begin_log(&store, id).await?;
        // Before any row is judged that was handed over to it: from here on it decides nothing.
        let mut marked = keyspace::list_marked(&store).await?;
        let sequencer = if marked.is_empty() {
            None
        } else {
            Some(self.take_over_sequencer(&store, id).await?)
        };
        let (highest, rows) = self.resolve_all(&store, id, sequencer.is_some()).await?;
        // An earlier start marks nothing after this without noticing that it is none any more.
        if !keyspace::list_marked(&store)
            .await?
            .keys()
            .eq(marked.keys())
        {
            return Err(Error::unavailable(
                "an earlier start has just marked a keyspace",
            ));
        }
        for (keyspace, is_whole) in &mut marked {
            keyspace::finish_mark(&store, *keyspace).await?;
            *is_whole = true;
        }
        let unsent = self.find_unsent(&store, id).await?;
        let clock = Arc::clone(&self.context.clock);
        let log = NodeLog::new(
            Arc::clone(&store),
            writer,
            clock,
            highest,
            self.slot_bounds(),
            self.context.config.broken,
        );
        let mut heard = Heard::default();
        heard.finish(NodeId(1), NodeId(id.0 - 1));
        store.look()?;
        let node = Arc::new(Node::new(self, id, store, log, None));
        self.pass_packs(&node).await?;
        self.hand_over(&node, unsent);
        self.cache.start(node.id, heard, trimmed(&rows));
        self.keyspaces.start(node.id, &marked);
        if let Some(sequencer) = sequencer {
            self.cache.lock().pass_sealed(sequencer.last());
            node.set_sequencer(sequencer);
        }
        self.attempts.start(node.id);
        self.serving.start(&node);
        tracing::info!(node = id.0, "transactions are served");
        self.keep_house(node, rows);
        Ok(())
    }

    /// The log of a new node.
    pub(crate) async fn begin_log(&self, store: &Store, id: NodeId) -> Result<Writer> {
        let log = FencedLog::new(Arc::clone(&self.context.key_value), layout::log(id));
        let (writer, _) = store.again(|| log.take_over(Cursor::START)).await?;
        store.seen(writer.point())?;
        Ok(writer)
    }

    /// A slot has to fit an item, with room for what a large last entry adds.
    pub(crate) fn slot_bytes_max(&self) -> usize {
        self.context
            .config
            .slot_bytes_max
            .min(self.context.key_value.limits().item_bytes_max / 2)
    }

    /// What is written with a slot has to fit a transaction of the store, if that has such over all its partitions.
    pub(crate) fn slot_bounds(&self) -> Bounds {
        let limits = self.context.key_value.limits();
        let items = if limits.transact_across_partitions {
            limits.transact_items_max
        } else {
            0
        };
        Bounds {
            slot_bytes: self.slot_bytes_max(),
            group_items: self.context.config.group_items_max.min(items),
        }
    }

    /// Whatever rests on what the store may have lost goes.
    fn stop_serving(self: &Arc<Self>) {
        let why = Error::unavailable("the node starts over");
        let open = {
            if let Some(node) = self.serving.stop() {
                node.store.fall();
                node.work.notify_one();
                node.following.notify_one();
            }
            self.outbox.clear();
            self.cluster.stop();
            self.keyspaces.stop();
            self.cache.stop(&why);
            self.idempotency_keys.lock().clear();
            self.attempts.stop()
        };
        for transaction in open {
            let mut state = transaction.state();
            // One that is committing hears from its own task.
            if state.phase == Phase::Open {
                self.end(&transaction, &mut state, &Err(why.clone()));
            }
        }
    }

    /// Resolves the logs of all nodes before `own`; the clock goes on above what they gave. Also returns their rows.
    async fn resolve_all(
        self: &Arc<Self>,
        store: &Store,
        own: NodeId,
        is_sequencer: bool,
    ) -> Result<(HybridClock, Vec<NodeRow>)> {
        let closing = if is_sequencer {
            Closing::ByRow
        } else {
            Closing::Never
        };
        let mut highest = HybridClock::default();
        let mut rows = node_registry::list(store).await?;
        // What a later start has handed over, its own sequencer may have decided.
        rows.retain(|row| row.node < own);
        for row in &mut rows {
            if !row.is_resolved {
                *row = self.resolve(store, *row, closing).await?;
            }
            if !self.context.config.is_broken(Broken::ForgetsItsClock) {
                highest.observe(row.timestamp);
            }
        }
        let ahead_ms = highest.ahead_ms(self.context.clock.now());
        if ahead_ms > BEHIND_MS_MAX {
            tracing::warn!(
                ahead_ms,
                "the last commit is ahead of this machine's clock: its time was set back"
            );
        }
        Ok((highest, rows))
    }

    /// Resolves one log. Returns the row as it is then.
    pub(crate) async fn resolve(
        self: &Arc<Self>,
        store: &Store,
        row: NodeRow,
        closing: Closing<'_>,
    ) -> Result<NodeRow> {
        let log = FencedLog::new(Arc::clone(&self.context.key_value), layout::log(row.node));
        let slots = if self.context.config.is_broken(Broken::ResolvesWithoutSeal) {
            store
                .again(|| log.take_over_without_seal(row.done))
                .await?
                .1
        } else {
            let (writer, slots) = store.again(|| log.take_over(row.done)).await?;
            store.seen(writer.point())?;
            slots
        };
        let (mut done, mut timestamp) = (row.done, row.timestamp);
        let (mut commits, mut others) = (Vec::new(), Vec::new());
        for slot in slots {
            let stored: StoredSlot = decode(&slot.payload, "a slot of a node's log")?;
            timestamp = timestamp.max(stored.timestamp);
            done = Slot::cursor(&slot);
            let (committing, other): (Vec<_>, Vec<_>) = stored
                .entries
                .into_iter()
                .partition(|entry| matches!(entry, Entry::Committing { .. }));
            others.extend(other);
            commits.extend(committing);
        }
        let count = commits.len() + others.len();
        // A name whose commit hangs is closed, and stays so for who asks; one that was only begun is forgotten. What was
        // written ahead goes by what its commit came to, if there was one.
        for entries in [commits, others] {
            let resolving =
                stream::iter(entries).map(|entry| self.resolve_entry(store, entry, closing));
            all_of(resolving.buffered(ENTRIES_AT_ONCE)).await?;
        }
        tracing::info!(
            node = row.node.0,
            slot = done.next.0 - 1,
            count,
            "the log of an earlier start is resolved"
        );
        let row = NodeRow {
            done,
            timestamp,
            is_resolved: true,
            ..row
        };
        node_registry::mark_resolved(store, row).await?;
        Ok(row)
    }
}

impl Core {
    /// Decides an entry whose owner is gone, and deletes what does not count.
    async fn resolve_entry(
        self: &Arc<Self>,
        store: &Store,
        entry: Entry,
        closing: Closing<'_>,
    ) -> Result<()> {
        match entry {
            // Taken over by a later begin, committed, or nothing: all the same to this one.
            Entry::Began { id, attempt } => store.forget(&id, attempt).await.map(drop),
            Entry::Committing {
                id,
                attempt,
                named,
                writes,
                ..
            } => {
                if !self
                    .is_committed(store, &id, attempt, named, closing)
                    .await?
                {
                    delete_uncommitted(store, attempt, &writes).await?;
                }
                Ok(())
            }
            Entry::Spilled {
                id,
                attempt,
                writes,
            } => tidy_spilled(store, &id, attempt, &writes, self.context.config.broken).await,
        }
    }

    /// Whether an attempt has committed; from now on it has not, if it had not.
    async fn is_committed(
        self: &Arc<Self>,
        store: &Store,
        id: &TransactionId,
        attempt: Attempt,
        named: bool,
        closing: Closing<'_>,
    ) -> Result<bool> {
        let (mut decision, _) = store.decision(id).await?;
        let prepared = decision
            .as_ref()
            .filter(|decision| decision.state == State::Prepared);
        if let Some(prepared) = prepared.map(|decision| decision.attempt) {
            decision = match closing {
                Closing::Never => {
                    return Err(Error::unavailable(
                        "an earlier start has just marked a keyspace",
                    ));
                }
                Closing::ByRow => {
                    store.settle_aborted(id, attempt).await?;
                    store.decision(id).await?.0
                }
                Closing::ByLog(node) if prepared == attempt => {
                    self.close_prepared(node, id, attempt).await?.0
                }
                // A later attempt of the name has the row.
                Closing::ByLog(_) => return Ok(false),
            };
        }
        let is_undecided = decision
            .as_ref()
            .is_none_or(|decision| decision.state == State::Undecided);
        let decision = if is_undecided {
            let closed = if named {
                store.close_named(id, attempt).await?
            } else {
                store.close_generated(id, attempt).await?
            };
            match closed {
                Decided::Done(_) => return Ok(false),
                Decided::Refused(decision, _) => decision,
            }
        } else {
            decision
        };
        let is_this = |decision: &Decision| {
            decision.attempt == attempt && matches!(decision.state, State::Committed(_))
        };
        Ok(decision.as_ref().is_some_and(is_this))
    }
}

/// Waits for all steps, also behind one that fails, and says how the first one failed: whoever is dropped while they write in the
/// sequencer's log end the node.
pub(crate) async fn all_of(steps: impl Stream<Item = Result<()>>) -> Result<()> {
    steps.fold(Ok(()), async |all, step| all.and(step)).await
}

/// The logs of which nothing is kept.
fn trimmed(rows: &[NodeRow]) -> Heard {
    let mut trimmed = Heard::default();
    for row in rows.iter().filter(|row| row.is_trimmed) {
        trimmed.finish(row.node, row.node);
    }
    trimmed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T11: who decides about what a node left may be writing for others as well.
    #[test]
    fn a_step_that_fails_has_those_beside_it_come_to_their_end() {
        simulated::run(async {
            let (told, hears) = tokio::sync::oneshot::channel();
            let step = async {
                tokio::task::yield_now().await;
                let _ = told.send(());
                Ok(())
            };
            let fails = async { Err(Error::NoRoom) };
            let steps: [futures_util::future::BoxFuture<'_, Result<()>>; 2] =
                [Box::pin(fails), Box::pin(step)];
            assert_eq!(
                all_of(stream::iter(steps).buffered(2)).await,
                Err(Error::NoRoom)
            );
            assert_eq!(hears.await, Ok(()), "the other one was not dropped");
        });
    }
}
