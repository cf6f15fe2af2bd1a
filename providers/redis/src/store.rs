//! The state that both ports share: the servers, the key names and the pipelines.

use std::sync::Arc;

use async_trait::async_trait;
use ports::{DurabilityPoint, Externalize, Result, key_value::KeyValueLimits, queue::QueueLimits};

use crate::{
    codec::Stamps, compare_and_set::KeyPipelines, config::Config, error::OpenError,
    redis_keys::RedisKeys, servers::Servers, wake_up::WakeUps,
};

/// An open store.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) servers: Arc<Servers>,
    pub(crate) redis_keys: RedisKeys,
    pub(crate) pipelines: KeyPipelines,
    pub(crate) stamps: Stamps,
    pub(crate) wake_ups: WakeUps,
    pub(crate) key_value_limits: KeyValueLimits,
    pub(crate) queue_limits: QueueLimits,
}

impl Store {
    pub(crate) async fn open(config: &Config) -> Result<Self, OpenError> {
        let redis_keys = config.redis_keys()?;
        Ok(Self {
            servers: Arc::new(Servers::open(config, &redis_keys).await?),
            redis_keys,
            pipelines: KeyPipelines::default(),
            stamps: Stamps::default(),
            wake_ups: WakeUps::new(config.poll_interval),
            key_value_limits: config.key_value_limits(),
            queue_limits: config.queue_limits(),
        })
    }
}

impl Store {
    /// The same store with all items in one slot, so that any of them can change together.
    pub(crate) fn in_one_slot(&self, tag: &'static str) -> Self {
        Self {
            servers: Arc::clone(&self.servers),
            redis_keys: self.redis_keys.in_one_slot(tag),
            pipelines: KeyPipelines::default(),
            stamps: Stamps::default(),
            wake_ups: WakeUps::new(self.wake_ups.poll_interval_subscribed),
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
