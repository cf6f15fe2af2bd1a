//! The durability barrier of all ports of this provider.

use async_trait::async_trait;
use ports::{DurabilityPoint, Error, Externalize, Result};

use crate::engine::Engine;

/// One order, so one barrier: items and queues share it (Q7).
#[async_trait]
impl Externalize for Engine {
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        if let Some(outcome) = self.durability.outcome(point) {
            return outcome;
        }
        if point > self.point() {
            // The store may have gone back meanwhile; then the point is outcome lost.
            let error =
                || Error::invalid(format!("externalize {point:?}, which was never reached"));
            return self
                .durability
                .outcome(point)
                .unwrap_or_else(|| Err(error()));
        }
        self.durability.wait(point).await
    }

    fn point(&self) -> DurabilityPoint {
        self.state().store.point()
    }

    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.durability.is_durable(point)
    }
}
