//! What both ports stand on: the servers, the names, the turns.

use std::sync::Arc;

use async_trait::async_trait;
use ports::{DurabilityPoint, Externalize, Result, key_value::KeyValueLimits, queue::QueueLimits};

use crate::{
    codec::Stamps, config::Config, error::OpenError, names::Names, servers::Servers, turns::Turns,
    wake_up::WakeUps,
};

/// An open store.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) servers: Arc<Servers>,
    pub(crate) names: Names,
    pub(crate) turns: Turns,
    pub(crate) stamps: Stamps,
    pub(crate) wake_ups: WakeUps,
    pub(crate) key_value_limits: KeyValueLimits,
    pub(crate) queue_limits: QueueLimits,
}

impl Store {
    pub(crate) async fn open(config: &Config) -> Result<Self, OpenError> {
        let names = config.names()?;
        Ok(Self {
            servers: Arc::new(Servers::open(config, &names).await?),
            names,
            turns: Turns::default(),
            stamps: Stamps::default(),
            wake_ups: WakeUps::new(config.hint_patience),
            key_value_limits: config.key_value_limits(),
            queue_limits: config.queue_limits(),
        })
    }
}

impl Store {
    /// The same store with every item in one slot, so that any of them change together.
    pub(crate) fn in_one_slot(&self, tag: &'static str) -> Self {
        Self {
            servers: Arc::clone(&self.servers),
            names: self.names.in_one_slot(tag),
            turns: Turns::default(),
            stamps: Stamps::default(),
            wake_ups: self.wake_ups.another(),
            key_value_limits: KeyValueLimits {
                transact_across_partitions: true,
                ..self.key_value_limits
            },
            queue_limits: self.queue_limits,
        }
    }
}

#[async_trait]
impl Externalize for Store {
    async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        self.servers.externalize(point).await
    }

    fn point(&self) -> DurabilityPoint {
        self.servers.point()
    }

    fn is_durable(&self, point: DurabilityPoint) -> bool {
        self.servers.is_durable(point)
    }
}
