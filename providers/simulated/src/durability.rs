//! The store's ports as one handle: items and queues share one order, so one barrier serves both
//! (Q7).

use std::sync::Arc;

use async_trait::async_trait;
use ports::{DurabilityPoint, Externalize, Result};

use crate::{call::Kind, cloud::Cloud, store::Durability};

/// The key-value port and the queue port of a world.
#[derive(Debug)]
pub struct SimulatedStore(pub(crate) Arc<Cloud>);

#[async_trait]
impl Externalize for SimulatedStore {
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        let subject = format!("{}.{}", point.incarnation.0, point.position.0);
        let call = self.0.begin_call("externalize", subject).await?;
        let result = self.0.wait_durable(point).await;
        self.0
            .end_call(call, Kind::Reads, result, |()| "durable".into())
            .await
    }

    fn point(&self) -> DurabilityPoint {
        self.0.store().point()
    }

    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.0.store().durability(point) == Durability::Durable
    }
}
