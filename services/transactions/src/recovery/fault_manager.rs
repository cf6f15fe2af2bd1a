//! The fault manager: the elected leader resolves the logs of dead nodes, and closes commits that
//! hang.
//!
//! A node whose membership has ended answers no more calls, so its log can be taken over. It is
//! sealed, so that it can announce nothing new, and resolved like that of an earlier start. Then
//! every node follows it to its end, its effects are sent, and housekeeping processes its log like
//! the leader's own.
//!
//! If one node's log cannot be read, the leader still processes the others. It retries that one,
//! and logs the failure.
//!
//! It keeps no state outside the store. After a crash the next leader repeats the work. Two leaders
//! at once do no harm: seals settle which node writes last, and rows decide once.
//!
//! A new node has its row only once it is a member. Nodes learn of members at different times, so a
//! node is presumed dead only after it has been missing for a while.
//!
//! From AFT, section 4.2 and 4.3.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ports::{LogThrottle, Monotonic};
use primitives::{Backoff, Cursor, Delays, Epoch, FencedLog, SlotIndex};

use crate::{
    Error, Result,
    cluster::membership::Election,
    model::NodeId,
    node::Node,
    recovery::{Recovery, resolve::Closing},
    storage::{
        layout,
        node_registry::{self, NodeRow},
        records::{Entry, StoredSlot, decode},
        store::Decision,
    },
};

/// The interval between two checks of the membership, which call no port.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// How long a non-member must be missing before it is presumed dead.
const MISSING_MIN: Duration = Duration::from_secs(1);
/// The waits before a damaged log is tried again: each try leaves a seal there.
const DAMAGED_AGAIN: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_mins(5),
    attempts_max: u32::MAX,
};
/// A commit that is undecided for this long is closed.
const HANGING_MAX: Duration = Duration::from_secs(30);

/// What the leader has observed since its election.
#[derive(Debug, Default)]
struct Seen {
    /// The membership view that the registry was compared with.
    view: Option<u64>,
    /// Nodes that are no members, and since when.
    missing: BTreeMap<NodeId, Monotonic>,
    /// Dead nodes that are processed.
    gone: BTreeSet<NodeId>,
    /// Nodes whose logs are damaged, with the error and the time of the next try.
    damaged: BTreeMap<NodeId, (Error, Monotonic, Delays)>,
}

impl Recovery {
    /// Starts to process the logs of dead nodes, while this node leads.
    pub(crate) fn look_after_others(self: &Arc<Self>, node: &Arc<Node>) {
        let (recovery, node) = (Arc::clone(self), Arc::clone(node));
        self.calls.context.spawn(async move {
            let mut seen = Seen::default();
            let (mut of_the_gone, mut of_hanging) =
                (LogThrottle::default(), LogThrottle::default());
            while !node.store.is_fenced() {
                if recovery.calls.cluster.membership.leads(Election::Collector) {
                    let seen_to = recovery.see_to_the_gone(&node, &mut seen).await;
                    recovery.say(&node, &mut of_the_gone, seen_to, "recovery of dead nodes");
                    let closed = recovery.close_hanging(&node).await;
                    recovery.say(&node, &mut of_hanging, closed, "closing hanging commits");
                } else {
                    seen = Seen::default();
                }
                recovery.calls.context.clock.sleep(CHECK_EVERY).await;
            }
        });
    }

    /// Logs that `what` is not being done, unless the reason is that this node cannot go on.
    fn say(&self, node: &Node, outage: &mut LogThrottle, done: Result<()>, what: &str) {
        let now = self.calls.context.clock.monotonic();
        match done {
            Ok(()) => {
                if let Some(lasted) = outage.ended(now) {
                    tracing::info!(?lasted, "{what} succeeds again");
                }
            }
            Err(_) if node.store.is_fenced() => {}
            Err(error) => {
                if let Some(lasts) = outage.failed(now, &error.to_string()) {
                    tracing::warn!(%error, ?lasts, "{what} is incomplete at the moment");
                }
            }
        }
    }

    /// Errors: the first failure, after all other nodes were processed.
    async fn see_to_the_gone(self: &Arc<Self>, node: &Arc<Node>, seen: &mut Seen) -> Result<()> {
        let members = self.calls.cluster.membership.members();
        if seen.view == Some(members.view) && seen.missing.is_empty() {
            return Ok(());
        }
        let now = self.calls.context.clock.monotonic();
        let rows = node_registry::list(&node.store).await?;
        seen.missing
            .retain(|missing, _| !members.nodes.contains_key(missing));
        let mut all = Ok(());
        for row in rows {
            let is_here = row.node == node.id || members.nodes.contains_key(&row.node);
            if is_here || seen.gone.contains(&row.node) {
                continue;
            }
            if !row.is_resolved {
                let since = *seen.missing.entry(row.node).or_insert(now);
                if now.since(since) < MISSING_MIN {
                    continue;
                }
            }
            if let Some((error, next, _)) = seen.damaged.get(&row.node)
                && *next > now
            {
                all = all.and(Err(error.clone()));
                continue;
            }
            match self.take_over(node, row).await {
                Ok(()) => {
                    seen.missing.remove(&row.node);
                    seen.damaged.remove(&row.node);
                    seen.gone.insert(row.node);
                }
                Err(error) => {
                    node.store.check_fence()?;
                    tracing::debug!(%error, gone = row.node.0, "a dead node cannot be recovered at the moment");
                    if let Error::Corrupt(_) = error {
                        let before = seen.damaged.remove(&row.node);
                        let mut delays =
                            before.map_or_else(|| DAMAGED_AGAIN.delays(), |(.., delays)| delays);
                        let wait = delays.next_wait(&*self.calls.context.entropy);
                        let next = now + wait.unwrap_or_default();
                        seen.damaged.insert(row.node, (error.clone(), next, delays));
                    }
                    all = all.and(Err(error));
                }
            }
        }
        all?;
        seen.view = Some(members.view);
        Ok(())
    }

    /// Resolves the log of a dead node, unless that is done, and takes over all it left.
    async fn take_over(self: &Arc<Self>, node: &Arc<Node>, row: NodeRow) -> Result<()> {
        let row = if row.is_resolved {
            row
        } else {
            self.resolve(&node.store, row, Closing::ByLog(node)).await?
        };
        self.calls.cluster.follow(node, row.node).await?;
        if !row.is_sent {
            let left = self
                .calls
                .effects
                .find_unsent_of(&node.store, row.node)
                .await?;
            self.calls.effects.hand_over(node, vec![left]);
        }
        if !row.is_trimmed || !row.is_swept {
            node.leave_to_house(row);
        }
        Ok(())
    }

    /// Closes the commits of members that have been undecided for too long.
    async fn close_hanging(&self, node: &Arc<Node>) -> Result<()> {
        let now = self.calls.context.clock.monotonic();
        let hanging = self
            .calls
            .cluster
            .lock()
            .neighbours
            .hanging(now, HANGING_MAX);
        for (member, slot) in hanging {
            let log = FencedLog::new(node.store.key_value().clone(), layout::log(member));
            let from = Cursor {
                next: SlotIndex(slot + 1),
                epoch: Epoch(0),
            };
            let read = node.store.again(|| log.read(from, 1)).await?;
            for slot in read.slots {
                let stored: StoredSlot = decode(&slot.payload, "a slot of a node's log")?;
                for entry in stored.entries {
                    if let Entry::Committing {
                        id, attempt, named, ..
                    } = entry
                    {
                        let (decision, _) = node.store.decision(&id).await?;
                        let is_open = decision.as_ref().is_none_or(Decision::is_undecided);
                        if is_open {
                            node.store.close(&id, attempt, named).await?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{cluster::peers::tests::start_among_others, model::Address};

    /// T9: an unreadable log does not stop the recovery of the others.
    #[test]
    fn a_damaged_log_of_one_node_keeps_nobody_from_seeing_to_the_next() {
        simulated::run(async {
            let service = start_among_others().await;
            let recovery = &service.engine().recovery;
            let node = recovery.calls.serving.node().expect("it has started");
            let store = &node.store;
            let mut gone = Vec::new();
            for _ in 0..2 {
                let id = node_registry::take_id(store).await.expect("a calm world");
                node_registry::put_row(
                    store,
                    id,
                    recovery.calls.context.clock.now(),
                    &Address::default(),
                )
                .await
                .expect("a calm world");
                gone.push(id);
            }
            let log = FencedLog::new(store.key_value().clone(), layout::log(gone[0]));
            let (mut writer, _) = log.take_over(Cursor::START).await.expect("a calm world");
            writer
                .append(Bytes::from_static(b"damaged"))
                .await
                .expect("a calm world");
            let mut seen = Seen::default();
            assert_eq!(
                recovery.see_to_the_gone(&node, &mut seen).await,
                Ok(()),
                "they may be about to join"
            );
            recovery.calls.context.clock.sleep(MISSING_MIN).await;
            let seen_to = recovery.see_to_the_gone(&node, &mut seen).await;
            assert!(
                matches!(seen_to, Err(crate::Error::Corrupt(_))),
                "{seen_to:?}"
            );
            let row = node_registry::get(store, gone[1])
                .await
                .expect("a calm world");
            assert!(
                row.is_some_and(|row| row.is_resolved),
                "the next one is seen to"
            );
            assert_eq!(
                seen.gone.into_iter().collect::<Vec<_>>(),
                gone[1..],
                "and the first is tried again"
            );
        });
    }
}
