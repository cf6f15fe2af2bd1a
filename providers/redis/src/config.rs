//! The configuration: server addresses, and when a write is acknowledged.

mod url;

use std::{fmt, time::Duration};

use ports::{key_value::KeyValueLimits, queue::QueueLimits};

use crate::{error::OpenError, redis_keys::RedisKeys};

/// Key-value limits on one server. A cluster transacts within one partition.
pub(crate) const KEY_VALUE_LIMITS: KeyValueLimits = KeyValueLimits {
    key_bytes_max: 2048,
    item_bytes_max: 4 << 20,
    transact_items_max: 128,
    transact_across_partitions: true,
    page_items_max: 1000,
    page_is_snapshot: true,
    operations_remembered: 64,
    operation_retention_ms: 10 * 60 * 1000,
    tells_room: false,
};

/// Queue limits on one server. Only one server has a common order of queues and items (Q7).
pub(crate) const QUEUE_LIMITS: QueueLimits = QueueLimits {
    message_bytes_max: 4 << 20,
    batch_messages_max: 256,
    dead_letters_max: 10_000,
    deduplication_window_ms: 5 * 60 * 1000,
    shares_journal: true,
};

/// How many servers there are, and how keys are placed on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// One server that takes writes, with any number of replicas.
    Single,
    /// Redis Cluster: keys are placed by their slots, and the servers report which of them serves
    /// which slot.
    Cluster,
}

/// The faults that a write has survived once
/// [`externalize`](ports::Externalize::externalize) confirmed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledged {
    /// The write is in the server's memory. A crash of this process does not lose it; a crash of
    /// the server loses as much as the server's own settings allow. For caches and comparisons.
    InMemory,
    /// The write is in the server's append-only file, synced. It survives a crash of the server,
    /// but not the loss of its disk and not a failover to a lagging replica.
    AppendOnlyFile,
    /// This many replicas hold the write in memory. It survives a crash of the server if one of
    /// those replicas takes over.
    Replicas(u32),
}

/// The address of the store and its guarantees.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// `redis://[user:password@]host:port[/database]`. In a cluster, some of its servers; the
    /// others are discovered.
    pub urls: Vec<String>,
    /// One server or a cluster.
    pub topology: Topology,
    /// When a write is acknowledged. Opening fails if the server cannot guarantee it.
    pub acknowledged: Acknowledged,
    /// The prefix of every key. Stores with different namespaces can share a server. Letters,
    /// digits, `-`, `_`, `.`.
    pub namespace: String,
    /// How long a command may take before its outcome counts as unknown.
    pub response_timeout: Duration,
    /// How long connecting may take.
    pub connection_timeout: Duration,
    /// How long the append-only file or the replicas may take before `externalize` fails.
    pub durability_timeout: Duration,
    /// The limits of the queues. Tests shorten the deduplication window here.
    #[doc(hidden)]
    pub queue_limits: QueueLimits,
    /// How long a consumer waits for a wake-up message before it polls. Tests of wake-ups make it
    /// longer than the test.
    #[doc(hidden)]
    pub poll_interval: Duration,
}

impl Config {
    /// One server that syncs a write before it is acknowledged.
    pub fn single(url: impl Into<String>) -> Self {
        Self {
            urls: vec![url.into()],
            ..Self::default()
        }
    }

    /// A cluster, discovered through any of its servers.
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let urls = urls.into_iter().map(Into::into).collect();
        Self {
            urls,
            topology: Topology::Cluster,
            ..Self::default()
        }
    }

    pub(crate) fn redis_keys(&self) -> Result<RedisKeys, OpenError> {
        let named = RedisKeys::new(&self.namespace);
        named.ok_or_else(|| {
            OpenError::Configuration(format!("{:?} cannot be a namespace", self.namespace))
        })
    }

    pub(crate) fn key_value_limits(&self) -> KeyValueLimits {
        let transact_across_partitions = self.topology == Topology::Single;
        KeyValueLimits {
            transact_across_partitions,
            ..KEY_VALUE_LIMITS
        }
    }

    pub(crate) fn queue_limits(&self) -> QueueLimits {
        QueueLimits {
            shares_journal: self.topology == Topology::Single,
            ..self.queue_limits
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            urls: vec!["redis://127.0.0.1:6379".to_owned()],
            topology: Topology::Single,
            acknowledged: Acknowledged::AppendOnlyFile,
            namespace: "landfast".to_owned(),
            response_timeout: Duration::from_secs(5),
            connection_timeout: Duration::from_secs(2),
            durability_timeout: Duration::from_secs(5),
            queue_limits: QUEUE_LIMITS,
            poll_interval: Duration::from_secs(2),
        }
    }
}

impl fmt::Display for Config {
    /// The store's servers and namespace, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("redis ")?;
        for (number, url) in self.urls.iter().enumerate() {
            let place = url
                .rsplit_once('@')
                .map_or(url.trim_start_matches("redis://"), |(_, place)| place);
            write!(f, "{}{place}", if number > 0 { "," } else { "" })?;
        }
        write!(f, ", namespace {}", self.namespace)
    }
}

impl fmt::Debug for Config {
    /// Leaves out the URLs, which carry passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("servers", &self.urls.len())
            .field("topology", &self.topology)
            .field("acknowledged", &self.acknowledged)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let config = Config::single("redis://user:hunter2@127.0.0.1:6379");
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
