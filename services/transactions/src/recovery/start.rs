//! A start: takes a new node id, and resolves the logs of earlier nodes.
//!
//! Before the first begin, the log of every earlier start is sealed, so that its owner can announce
//! nothing more. Then each of its entries is decided, which closes undecided ones, and uncommitted
//! data are deleted. The owner may be this very process, whose store was reset, with tasks that do
//! not know yet: their rows are closed before those tasks reach them.
//!
//! Every step can be repeated: the next start redoes one that crashed. Only after all steps is a
//! log marked as resolved, together with the highest timestamp it had given, which this node
//! exceeds (T-1).
//!
//! From AFT, section 4.2, whose fault manager scans all commits; ours reads only what follows the
//! last mark.

use std::sync::Arc;

use primitives::{Cursor, FencedLog, Writer};

use crate::{
    Error, Result,
    attempts::transaction::Phase,
    broken::Broken,
    model::{Address, NodeId},
    node::Node,
    recovery::{Recovery, resolve::Closing},
    sequencing::keyspace,
    storage::{
        frontier::Frontier,
        hybrid_clock::HybridClock,
        layout,
        node_log::NodeLog,
        node_registry::{self, NodeRow},
        secret::Secret,
        store::Store,
    },
};

/// A clock this far behind the last timestamp is logged as a warning.
const BEHIND_MS_MAX: u64 = 10_000;

impl Recovery {
    /// Ends the present node, and starts another. Errors: those of the store; then no node serves,
    /// and the next try begins again.
    pub(crate) async fn start_over(self: &Arc<Self>) -> Result<()> {
        self.stop_serving();
        let context = &self.calls.context;
        let store = Arc::new(Store::new(
            Arc::clone(&context.key_value),
            context.config.buckets,
            Arc::clone(&context.clock),
            Arc::clone(&context.entropy),
            Arc::clone(&self.calls.serving.on_fence),
        ));
        store.check_format().await?;
        if let Err(error) = self.calls.packing.find_home(&store).await {
            // No node waits for the lease of the previous one to expire.
            self.calls.cluster.membership.leave().await;
            return Err(error);
        }
        if context.is_alone() {
            self.start_alone(store).await
        } else {
            self.join_others(store).await
        }
    }

    /// Begins to serve as the only node, once all earlier ones are resolved.
    async fn start_alone(self: &Arc<Self>, store: Arc<Store>) -> Result<()> {
        let id = node_registry::take_id(&store).await?;
        let now = self.calls.context.clock.now();
        node_registry::put_row(&store, id, now, &Address::default()).await?;
        let writer = self.begin_log(&store, id).await?;
        // Taken over before any row is closed that was handed over: from here on the earlier
        // sequencer decides nothing.
        let mut marked = keyspace::list_marked(&store).await?;
        let sequencer = if marked.is_empty() {
            None
        } else {
            let sequencing = &self.calls.sequencing;
            Some(sequencing.take_over_sequencer(&store, id).await?)
        };
        let (highest, rows) = self.resolve_all(&store, id, sequencer.is_some()).await?;
        // An earlier start that marks a keyspace after this notices that it was succeeded.
        let marked_by_now = keyspace::list_marked(&store).await?;
        if !marked_by_now.keys().eq(marked.keys()) {
            return Err(Error::unavailable(
                "an earlier start has just marked a keyspace",
            ));
        }
        for (keyspace, is_whole) in &mut marked {
            keyspace::finish_mark(&store, *keyspace).await?;
            *is_whole = true;
        }
        let unsent = self.calls.effects.find_unsent(&store, id).await?;
        let mut applied = Frontier::default();
        applied.finish(NodeId(1), NodeId(id.0 - 1));
        let node = self.new_node(store, id, writer, highest, None).await?;
        self.calls.effects.hand_over(&node, unsent);
        self.calls.cache.start(node.id, applied, trimmed(&rows));
        self.calls.sequencing.keyspaces.start(node.id, &marked);
        if let Some(sequencer) = sequencer {
            self.calls.cache.lock().pass_sealed(sequencer.last());
            node.set_sequencer(sequencer);
        }
        self.calls.attempts.start(node.id);
        self.calls.serving.start(&node);
        tracing::info!(node = id.0, "transactions are served");
        self.calls.collection.keep_house(node, rows);
        Ok(())
    }

    /// The node `id` on `store`. The timestamps in its log lie above `highest`.
    pub(super) async fn new_node(
        &self,
        store: Arc<Store>,
        id: NodeId,
        writer: Writer,
        highest: HybridClock,
        secret: Option<Secret>,
    ) -> Result<Arc<Node>> {
        let context = &self.calls.context;
        let log = NodeLog::new(
            Arc::clone(&store),
            writer,
            Arc::clone(&context.clock),
            highest,
            context.slot_bounds(),
            context.config.mutant,
        );
        store.check_incarnation()?;
        let node = Arc::new(Node::new(context, id, store, log, secret));
        self.calls.packing.pass_packs(&node).await?;
        Ok(node)
    }

    /// The log of a new node.
    pub(crate) async fn begin_log(&self, store: &Store, id: NodeId) -> Result<Writer> {
        let log = FencedLog::new(Arc::clone(&self.calls.context.key_value), layout::log(id));
        let (writer, _) = store.again(|| log.take_over(Cursor::START)).await?;
        store.seen(writer.point())?;
        Ok(writer)
    }

    /// Drops everything that depends on data the store may have lost.
    fn stop_serving(self: &Arc<Self>) {
        let why = Error::unavailable("the node restarts");
        let open = {
            if let Some(node) = self.calls.serving.stop() {
                node.store.fence();
                node.work.notify_one();
                node.following.notify_one();
            }
            self.calls.effects.outbox.clear();
            self.calls.cluster.stop();
            self.calls.sequencing.keyspaces.stop();
            self.calls.cache.stop(&why);
            self.calls.idempotency_keys.lock().clear();
            self.calls.attempts.stop()
        };
        for transaction in open {
            let mut state = transaction.state();
            // A committing attempt is answered by its own task.
            if state.phase == Phase::Open {
                self.calls.end(&transaction, &mut state, &Err(why.clone()));
            }
        }
    }

    /// Resolves the logs of all nodes before `own`, and moves the clock above their timestamps.
    /// Also returns their rows.
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
        // A later start's sequencer may have decided what that start handed over.
        rows.retain(|row| row.node < own);
        for row in &mut rows {
            if !row.is_resolved {
                *row = self.resolve(store, *row, closing).await?;
            }
            if !self.calls.context.breaks(Broken::ForgetsItsClock) {
                highest.observe(row.timestamp);
            }
        }
        let ahead_ms = highest.ahead_ms(self.calls.context.clock.now());
        if ahead_ms > BEHIND_MS_MAX {
            tracing::warn!(
                ahead_ms,
                "the last commit is ahead of this machine's clock: the clock was set back"
            );
        }
        Ok((highest, rows))
    }
}

/// The logs of which nothing is kept.
fn trimmed(rows: &[NodeRow]) -> Frontier {
    let mut trimmed = Frontier::default();
    for row in rows.iter().filter(|row| row.is_trimmed) {
        trimmed.finish(row.node, row.node);
    }
    trimmed
}
