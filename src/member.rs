//! This process as a member among others on its store.
//!
//! It takes a number that nobody has had and joins under it; when its lease has run out it is somebody else, under the next
//! number. As yet only one member serves transactions (`src/lease.rs`), so nobody asks who the others are but those who
//! look: the members are znodes like others.

use std::{sync::Arc, time::Duration};

use coordination::Gateway;
use in_process::SystemClock;
use ports::{Clock, Key, KeyValue};
use primitives::AtomicCounter;
use tokio::task::JoinHandle;
use transactions::{
    Error, Result,
    membership::{Address, Coordinated, Membership},
    model::NodeId,
};

use crate::provider::Provider;

/// How long to wait before joining is tried again.
const JOIN_AGAIN: Duration = Duration::from_millis(250);

/// A process that is, or is about to become, a member.
#[derive(Debug)]
pub(crate) struct Member {
    membership: Arc<Coordinated>,
    staying: JoinHandle<()>,
}

impl Member {
    /// Joins, sooner or later, as a process that others reach at `address`, and joins again whenever the lease has run out.
    pub(crate) fn join(provider: &Provider, gateway: &Gateway, address: Address) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let membership = Arc::new(Coordinated::new(gateway.clone(), Arc::clone(&clock), address));
        let stay = Stay { items: provider.key_value(), clock, membership: Arc::clone(&membership) };
        Self { membership, staying: tokio::spawn(async move { stay.stay().await }) }
    }

    /// Ends the membership, and says so to the others.
    pub(crate) async fn leave(self) {
        self.staying.abort();
        // It might join again meanwhile.
        let _ = self.staying.await;
        self.membership.leave().await;
    }
}

/// Keeps the process a member.
#[derive(Debug)]
struct Stay {
    items: Arc<dyn KeyValue>,
    clock: Arc<dyn Clock>,
    membership: Arc<Coordinated>,
}

impl Stay {
    async fn stay(&self) {
        loop {
            match self.join().await {
                Ok(node) => {
                    tracing::info!(node = node.0, "a member");
                    self.lapsed().await;
                }
                Err(error) => tracing::warn!(%error, "no member yet"),
            }
            self.clock.sleep(JOIN_AGAIN).await;
        }
    }

    async fn join(&self) -> Result<NodeId> {
        let counter = AtomicCounter::new(Arc::clone(&self.items), Key::new("landfast/process", "number"));
        let counted = counter.add(1).await?;
        self.items.externalize(counted.receipt.point).await?;
        let number = u32::try_from(counted.value).ok().map(NodeId).filter(|node| *node <= NodeId::MAX);
        let node =
            number.ok_or_else(|| Error::Corrupt("the store has no numbers of processes left".into()))?;
        self.membership.join(node).await?;
        Ok(node)
    }

    /// Returns once the lease has run out.
    async fn lapsed(&self) {
        while let Some(until) = self.membership.may_answer_until() {
            let left = until.since(self.clock.monotonic());
            if left.is_zero() {
                return;
            }
            self.clock.sleep(left).await;
        }
    }
}
