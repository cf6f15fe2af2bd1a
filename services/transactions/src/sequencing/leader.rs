//! The sequencer among several nodes: the elected leader takes the log over, and keeps it short.
//!
//! The first slot of a sequencer holds only its node id, so readers of the log know which node to
//! ask. A sequencer whose lease expired, or that finds itself deposed, restarts its node under a
//! new id. A node therefore takes the log over at most once.
//!
//! The leader finishes marks that other nodes began. It may not know of one, and not be the
//! sequencer yet. Therefore every other node that was told of a mark finishes it too, a while
//! later, and thereby informs the leader. The leader settles rows that their owners have not
//! settled, and trims slots that all nodes have applied.

use std::{sync::Arc, time::Duration};

use crate::{
    Error, Result, broken::Broken, cluster::membership::Election, node::Node, sequencer::Sequencer,
    sequencing::Sequencing,
};

/// The interval between two rounds, of which most call no port.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// A node that does not lead finishes marks that stay half done for this long: only if the node
/// that began them is gone.
const OTHERS_FINISH_AFTER: Duration = Duration::from_secs(2);
/// The wait after the log could not be taken over, because each try may leave a seal.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Sequencing {
    /// Becomes the sequencer when this node leads and there is something to order.
    pub(crate) fn sequence_for_ever(self: &Arc<Self>, node: &Arc<Node>) {
        let (sequencing, node) = (Arc::clone(self), Arc::clone(node));
        self.context.spawn(async move {
            let mut half_marked_for = Duration::ZERO;
            while !node.store.is_fenced() {
                let may_answer = sequencing.cluster.may_answer(&node).is_ok();
                let is_leader =
                    sequencing.cluster.membership.leads(Election::Sequencer) && may_answer;
                let has_work = sequencing.keyspaces.lock().are_any_sequenced();
                let mut is_held = true;
                if is_leader
                    && has_work
                    && let Err(error) = sequencing.order_for_all(&node).await
                {
                    tracing::debug!(%error, "commits cannot be ordered at the moment");
                    is_held = false;
                }
                let finishes = is_leader && is_held
                    || may_answer
                        && !sequencing.context.breaks(Broken::LeaderAloneFinishesMarks)
                        && half_marked_for >= OTHERS_FINISH_AFTER;
                let is_half_marked = sequencing.finish_marks(&node, finishes);
                let wait = if is_held { CHECK_EVERY } else { AGAIN_AFTER };
                sequencing.context.clock.sleep(wait).await;
                half_marked_for = if is_half_marked {
                    half_marked_for + wait
                } else {
                    Duration::ZERO
                };
            }
        });
    }

    async fn order_for_all(self: &Arc<Self>, node: &Arc<Node>) -> Result<()> {
        if node.sequencer().is_none() {
            self.become_sequencer(node).await?;
        }
        let sequencer = node
            .sequencer()
            .ok_or_else(|| Error::unavailable("there is no sequencer"))?;
        for attempt in sequencer.lately_unsettled() {
            sequencer.settle(attempt).await?;
        }
        let agreed = self.cluster.agreed_of_sequencer(node).await?;
        sequencer.trim(agreed).await
    }

    /// Whether a mark is half done; with `finishes`, finishes it unless a task here is at it.
    fn finish_marks(self: &Arc<Self>, node: &Arc<Node>, finishes: bool) -> bool {
        let half_marked = self.keyspaces.lock().half_marked();
        let is_half_marked = !half_marked.is_empty();
        if finishes && self.marking.try_lock().is_ok() {
            for keyspace in half_marked {
                let (sequencing, node) = (Arc::clone(self), Arc::clone(node));
                self.context.spawn(async move {
                    // The next round tries again.
                    let _ = sequencing.sequence_keyspace(&node, keyspace).await;
                });
            }
        }
        is_half_marked
    }

    /// Takes the log over from the previous leader.
    async fn become_sequencer(self: &Arc<Self>, node: &Arc<Node>) -> Result<()> {
        self.follow_sequencer(node).await?;
        let sequencer = Sequencer::take_over(&self.context, &node.store, false).await?;
        sequencer.say_who(node.id).await?;
        // Reads the last decisions of its predecessor, and its own slot.
        self.follow_sequencer(node).await?;
        node.set_sequencer(sequencer);
        Ok(())
    }
}
