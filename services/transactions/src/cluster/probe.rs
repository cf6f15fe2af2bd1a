//! Looks at another node: whether it lives, asked while something is waited for that it was asked at length.
//!
//! A node that is busy is asked by many, and none of them knows more by a question of its own. So one looks for all who wait
//! for the same node, from the first of them until nobody waits any more, once in [`LOOK_EVERY`] at the most. Whoever comes later joins
//! in: that a node says nothing is true of the node, not of a call.
//!
//! Invariants
//! - One question at a time is under way to each node, however many wait for it.
//! - A node counts as silent only if it left [`LOOKS`] questions in a row without an answer, which began at least [`LOOK_EVERY`] apart.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};

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

/// After how long without an answer a node is asked how it stands, and the least from one such question to the next.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often in a row it does not answer that before it counts as silent: who is dead is missed by then too.
const LOOKS: usize = 2;

/// Ends with the reason once a node says nothing any more, or is gone.
pub(crate) type Silence = Shared<BoxFuture<'static, Error>>;

/// At whom is being looked. Whoever waits holds the look; nothing is left of one that nobody waits for.
#[derive(Debug, Default)]
pub(crate) struct Looks(Mutex<BTreeMap<NodeId, WeakShared<BoxFuture<'static, Error>>>>);

impl Looks {
    /// The look at `to` that is under way, or else a new one.
    fn join(&self, to: NodeId, look: impl FnOnce() -> BoxFuture<'static, Error>) -> Silence {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has ended is old news.
        let under_way = |look: &WeakShared<_>| {
            look.upgrade()
                .filter(|look: &Silence| look.peek().is_none())
        };
        looks.retain(|_, look| under_way(look).is_some());
        if let Some(look) = looks.get(&to).and_then(under_way) {
            return look;
        }
        let look = look().shared();
        looks.extend(look.downgrade().map(|weak| (to, weak)));
        look
    }
}

impl Cluster {
    /// Waits until the node `to` says nothing any more, or is gone.
    pub(crate) fn silence_of(
        self: &Arc<Self>,
        node: &Arc<Node>,
        to: NodeId,
        address: &Address,
    ) -> Silence {
        self.looks.join(to, || {
            let (this, node, address) = (Arc::clone(self), Arc::clone(node), address.clone());
            Box::pin(async move { this.look_until_silence(&node, to, &address).await })
        })
    }

    async fn look_until_silence(&self, node: &Node, to: NodeId, address: &Address) -> Error {
        let mut unanswered = 0;
        let mut last = self.context.clock.monotonic();
        loop {
            self.context
                .clock
                .sleep(LOOK_EVERY.saturating_sub(self.context.clock.monotonic().since(last)))
                .await;
            last = self.context.clock.monotonic();
            match self.lives(node, to, address).await {
                Ok(()) => unanswered = 0,
                Err(_) if unanswered + 1 < LOOKS => unanswered += 1,
                Err(why) => return why,
            }
        }
    }

    /// Asks the node `to` how it stands. Who refuses to say so for now lives as well. Errors: it says nothing, or is gone.
    async fn lives(&self, node: &Node, to: NodeId, address: &Address) -> Result<()> {
        let (peers, message) = self.envelope(node, to, &Message::Ask)?;
        match self.call_in_time(peers, address, message).await {
            Ok(answer) => understood(&answer).map(drop),
            Err(NoAnswer::Silence(why)) => Err(Error::unavailable(&why)),
            Err(NoAnswer::TooMuchBuffered | NoAnswer::Unavailable(_)) => Ok(()),
        }
    }
}
