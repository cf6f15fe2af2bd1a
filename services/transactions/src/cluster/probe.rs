//! Liveness probes: whether a peer is alive while a request at length to it is slow to return.
//!
//! Many requests may wait for one busy node, and separate probes would tell none of them more. One
//! probe therefore serves all requests that wait for the same node. It runs from the first of them
//! until none waits any more, and asks once in [`PROBE_EVERY`] at most. Later requests join it:
//! silence is a property of the node, not of a request.
//!
//! Invariants
//! - One question at a time is under way to each node, however many requests wait for it.
//! - A node counts as silent only if it left [`PROBES`] questions in a row unanswered, which began
//!   at least [`PROBE_EVERY`] apart.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};

use parking_lot::Mutex;

use crate::{
    Error, Result,
    cluster::{
        Cluster,
        messages::{Message, understood},
        peers::NoAnswer,
    },
    model::{Address, NodeId},
    node::Node,
};

/// How long a node may be silent before it is probed, and the least time between two probes.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How many probes in a row must fail before a node counts as silent. The lease of a dead node has
/// expired by then too.
const PROBES: usize = 2;

/// Resolves with the reason once a node is silent or gone.
pub(crate) type Silence = Shared<BoxFuture<'static, Error>>;

/// The running probes. Each waiting request holds its probe, which ends with the last of them.
#[derive(Debug, Default)]
pub(crate) struct Probes(Mutex<BTreeMap<NodeId, WeakShared<BoxFuture<'static, Error>>>>);

impl Probes {
    /// Joins the running probe of `to`, or starts one.
    fn join(&self, to: NodeId, probe: impl FnOnce() -> BoxFuture<'static, Error>) -> Silence {
        let mut probes = self.0.lock();
        // A probe that has ended is stale.
        let under_way = |probe: &WeakShared<_>| {
            probe
                .upgrade()
                .filter(|probe: &Silence| probe.peek().is_none())
        };
        probes.retain(|_, probe| under_way(probe).is_some());
        if let Some(probe) = probes.get(&to).and_then(under_way) {
            return probe;
        }
        let probe = probe().shared();
        probes.extend(probe.downgrade().map(|weak| (to, weak)));
        probe
    }
}

impl Cluster {
    /// Waits until the node `to` is silent or gone.
    pub(crate) fn silence_of(
        self: &Arc<Self>,
        node: &Arc<Node>,
        to: NodeId,
        address: &Address,
    ) -> Silence {
        self.probes.join(to, || {
            let (this, node, address) = (Arc::clone(self), Arc::clone(node), address.clone());
            Box::pin(async move { this.probe_until_silence(&node, to, &address).await })
        })
    }

    async fn probe_until_silence(&self, node: &Node, to: NodeId, address: &Address) -> Error {
        let mut unanswered = 0;
        let mut last = self.context.clock.monotonic();
        loop {
            self.context
                .clock
                .sleep(PROBE_EVERY.saturating_sub(self.context.clock.monotonic().since(last)))
                .await;
            last = self.context.clock.monotonic();
            match self.lives(node, to, address).await {
                Ok(()) => unanswered = 0,
                Err(_) if unanswered + 1 < PROBES => unanswered += 1,
                Err(why) => return why,
            }
        }
    }

    /// Asks the node `to` for its state. A node that refuses for now is alive as well. Errors: it
    /// is silent, or gone.
    async fn lives(&self, node: &Node, to: NodeId, address: &Address) -> Result<()> {
        let (peers, message) = self.envelope(node, to, &Message::Ask)?;
        match self.call_in_time(peers, address, message).await {
            Ok(answer) => understood(&answer).map(drop),
            Err(NoAnswer::Silence(why)) => Err(Error::unavailable(&why)),
            Err(NoAnswer::TooMuchBuffered | NoAnswer::Unavailable(_)) => Ok(()),
        }
    }
}
