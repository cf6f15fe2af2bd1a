//! The durability barrier of all ports of this provider.

use async_trait::async_trait;
use ports::{DurabilityPoint, Error, Externalize, Result};

use crate::engine::Engine;

/// Items and queues share one order, so they share this barrier (Q7).
#[async_trait]
impl Externalize for Engine {
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        if let Some(outcome) = self.parts.durability.outcome(point) {
            return outcome;
        }
        if point > self.point() {
            // If the store went back to its durable state meanwhile, the point is lost.
            let error = || {
                Error::invalid(format!(
                    "externalize {point:?}, which the store has not reached"
                ))
            };
            return self
                .parts
                .durability
                .outcome(point)
                .unwrap_or_else(|| Err(error()));
        }
        self.parts.durability.wait(point).await
    }

    fn point(&self) -> DurabilityPoint {
        self.state().store.point()
    }

    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.parts.durability.is_durable(point)
    }
}
