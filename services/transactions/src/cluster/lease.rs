//! The lease check: whether this node may answer, and whether its clock is close enough to the
//! others.
//!
//! Every answer from memory passes [`Cluster::may_answer`] first, because others collect and close
//! without this node once its lease has expired.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    Error, Result,
    broken::Broken,
    cluster::Cluster,
    model::{Address, NodeId},
    node::Node,
};

/// How far a wall clock may be ahead of the others'.
pub(super) const AHEAD_MAX: Duration = Duration::from_secs(10);

impl Cluster {
    /// Errors: `Unavailable` once this node must not answer any more: others act as if it were
    /// gone.
    pub(crate) fn may_answer(&self, node: &Node) -> Result<()> {
        let is_over = self
            .membership
            .may_answer_until()
            .is_some_and(|until| self.context.clock.monotonic() >= until);
        if is_over && !self.context.breaks(Broken::AnswersWithoutLease) {
            node.store.fence();
        }
        node.store.check_fence()
    }

    /// Errors: `Unavailable` while this machine's clock is so far ahead that every other node would
    /// have to exceed it.
    pub(crate) fn check_clock(&self) -> Result<()> {
        if self.context.is_alone() || self.context.breaks(Broken::AcceptsAnyClock) {
            return Ok(());
        }
        if self.lock().neighbours.ahead() > AHEAD_MAX {
            return Err(Error::unavailable(
                "this machine's clock is ahead of the other nodes'",
            ));
        }
        Ok(())
    }

    /// The members except this node.
    pub(crate) fn others(&self, node: &Node) -> BTreeMap<NodeId, Address> {
        let mut nodes = self.membership.members().nodes;
        nodes.remove(&node.id);
        nodes
    }
}
