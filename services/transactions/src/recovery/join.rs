//! A start among other nodes: the node takes an id, becomes a member, and learns the common
//! frontier.
//!
//! ```text
//!  an id ──▶ a member ──▶ a row: from now on it is counted ──▶ a log
//!    ──▶ the others' frontiers ──▶ it serves
//! ```
//!
//! Nothing has to be finished before: loads find versions, and the leader resolves the logs of dead
//! nodes ([`fault_manager`](crate::recovery::fault_manager)). A start is a handful of calls,
//! however much was ever committed.
//!
//! **Why no version is collected that it needs.** A collecting node lists the rows of live nodes,
//! and takes the minimum of the oldest frontiers of their transactions. If one of them is unknown,
//! nothing is collected. If the list was read before this node's row existed, its minimum lies at
//! or below every counted node's frontier. This node asks the others after its row exists, and
//! begins with the frontier of one of them, or with everything decided in the store. So its
//! frontier lies at or above that minimum too, and every later list counts it.
//!
//! Another node's frontier is believed only within the present incarnation of the store. A node
//! that has yet to notice that the store was reset may have applied lost commits, whose slots and
//! ids may be given again. Such a node is a stranger ([`Secret`]).
//!
//! - The node becomes a member before it has a row: a row of a node that is no member marks a dead
//!   node.
//! - A crash loses an id, and perhaps leaves a row whose log is resolved as empty.
//!
//! From AFT, section 4.2, bootstrap, where a new node reads the commit set.

use std::sync::Arc;

use primitives::FencedLog;

use crate::{
    Error, Result,
    cluster::messages::{Answer, Message, NodeState},
    model::{KeyspaceId, NodeId},
    node::Node,
    recovery::Recovery,
    sequencing::keyspace,
    storage::{
        frontier::Frontier, hybrid_clock::HybridClock, layout, node_registry, secret::Secret,
        store::Store,
    },
};

impl Recovery {
    /// Begins to serve beside others. Errors: those of any start; the next try takes another id.
    pub(crate) async fn join_others(self: &Arc<Self>, store: Arc<Store>) -> Result<()> {
        let id = self.become_one_of_several(&store).await?;
        // A node that marks a keyspace after this finds this node's row.
        let marked = keyspace::list_marked(&store).await?;
        let secret = Secret::of(
            &store,
            &*self.calls.context.entropy,
            self.calls.context.config.mutant,
        )
        .await?;
        let writer = self.begin_log(&store, id).await?;
        let highest = HybridClock::default();
        let node = self
            .new_node(store, id, writer, highest, Some(secret))
            .await?;
        let (applied, dropped, unread) = self.initial_frontier(&node, !marked.is_empty()).await?;
        self.calls.cluster.start(node.id);
        self.calls.cache.start(node.id, applied, dropped);
        for log in unread {
            match self.calls.cluster.follow(&node, log).await {
                // The leader keeps logging it; a damaged log does not prevent serving the others'
                // data.
                Err(Error::Corrupt(_)) if !self.calls.cluster.others(&node).contains_key(&log) => {}
                followed => drop(followed?),
            }
        }
        node.store.check_incarnation()?;
        self.calls.sequencing.keyspaces.start(node.id, &marked);
        self.calls.attempts.start(node.id);
        self.calls.serving.start(&node);
        tracing::info!(
            node = id.0,
            "transactions are served, beside other nodes if there are any"
        );
        self.calls.cluster.announce_for_ever(&node);
        self.calls.sequencing.follow_for_ever(&node);
        self.look_after_others(&node);
        self.calls.sequencing.sequence_for_ever(&node);
        self.calls.collection.keep_house(node, Vec::new());
        Ok(())
    }

    /// The initial frontier of a new node, since its index is empty; the deletions that may be gone;
    /// and the logs to read in the store, because no other node answers.
    async fn initial_frontier(
        self: &Arc<Self>,
        node: &Arc<Node>,
        is_any_marked: bool,
    ) -> Result<(Frontier, Frontier, Vec<NodeId>)> {
        let rows = node_registry::list(&node.store).await?;
        let mut applied = Frontier::default();
        let mut dropped = Frontier::default();
        for row in &rows {
            node.log.observe(row.timestamp);
            // The commits of a resolved log are decided, and the index is empty.
            if row.is_resolved {
                applied.finish(row.node, row.node);
            }
            if row.is_trimmed {
                dropped.finish(row.node, row.node);
            }
        }
        let told = self.ask_others(node).await?;
        for state in &told {
            node.log.observe(state.timestamp);
            applied.merge(&state.applied);
            dropped.merge(&state.dropped);
        }
        if is_any_marked || applied.through(NodeId::SEQUENCER) > 0 {
            let start = FencedLog::new(
                Arc::clone(&self.calls.context.key_value),
                layout::sequencer_log(KeyspaceId::default()),
            );
            let start = node.store.again(|| start.start()).await?;
            dropped.advance(NodeId::SEQUENCER, start.next.0 - 1);
            self.calls.sequencing.follow_sequencer(node).await?;
            applied.advance(NodeId::SEQUENCER, node.followed.through());
        }
        let mut unread = Vec::new();
        if told.is_empty() {
            let others = rows.iter().filter(|row| row.node != node.id);
            unread.extend(others.filter(|row| !row.is_resolved).map(|row| row.node));
        }
        for log in &unread {
            let fenced = FencedLog::new(node.store.key_value().clone(), layout::log(*log));
            let trimmed = node.store.again(|| fenced.start()).await?.next.0 - 1;
            applied.advance(*log, trimmed);
            dropped.advance(*log, trimmed);
        }
        applied.advance(node.id, node.log.decided_through());
        Ok((applied, dropped, unread))
    }

    /// A new member with a row.
    async fn become_one_of_several(&self, store: &Store) -> Result<NodeId> {
        let id = node_registry::take_id(store).await?;
        self.calls.cluster.membership.join(id).await?;
        let address = self
            .calls
            .cluster
            .membership
            .members()
            .nodes
            .remove(&id)
            .unwrap_or_default();
        node_registry::put_row(store, id, self.calls.context.clock.now(), &address).await?;
        Ok(id)
    }

    /// The states of the other members that answer.
    async fn ask_others(self: &Arc<Self>, node: &Arc<Node>) -> Result<Vec<NodeState>> {
        let others = self.calls.cluster.others(node);
        let asked = others.into_iter().map(|(other, address)| {
            let (recovery, node) = (Arc::clone(self), Arc::clone(node));
            async move {
                recovery
                    .calls
                    .cluster
                    .ask(&node, other, &address, &Message::Ask)
                    .await
            }
        });
        let answers = futures_util::future::join_all(asked).await;
        let state = answers.into_iter().filter_map(|answer| match answer {
            Ok(Answer::NodeState(state)) => Some(state),
            _ => None,
        });
        node.store.check_fence()?;
        Ok(state.collect())
    }
}
