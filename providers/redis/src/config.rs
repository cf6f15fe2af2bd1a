//! Where the servers are, and what an acknowledged write is.

use std::{fmt, time::Duration};

use ports::{key_value::KeyValueLimits, queue::QueueLimits};

use crate::{error::OpenError, key_value, names::Names, queue};

/// How many servers there are, and who places the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// One server that takes writes, with any number of replicas behind it.
    Single,
    /// Redis Cluster: keys are placed by their slots, and the servers say which is where.
    Cluster,
}

/// What a write that [`externalize`](ports::Externalize::externalize) confirmed has survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledged {
    /// Nothing but this process: it is in the server's memory. A crash of the server loses what its own settings
    /// lose. For caches and comparisons.
    InMemory,
    /// It is in the server's append-only file, synced. Survives a crash of the server, not the loss of its disk,
    /// and not a failover to a replica that was behind.
    AppendOnlyFile,
    /// So many replicas hold it in memory. Survives a crash of the server if one of those replicas takes over.
    Replicas(u32),
}

/// How the store is reached and what it promises.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// `redis://[user:password@]host:port[/database]`; in a cluster any servers of it, the rest is found out.
    pub urls: Vec<String>,
    /// One server or a cluster.
    pub topology: Topology,
    /// What an acknowledged write is. Opening fails where the server cannot keep it.
    pub acknowledged: Acknowledged,
    /// The beginning of every key: stores with different ones share a server. Letters, digits, `-`, `_`, `.`.
    pub namespace: String,
    /// How long a command may take before its outcome counts as unknown.
    pub response_timeout: Duration,
    /// How long a connection may take to be made.
    pub connection_timeout: Duration,
    /// How long the append-only file or the replicas may take before `externalize` gives up.
    pub durability_timeout: Duration,
    /// What the queues cannot exceed; a test that waits for the deduplication window shortens it here.
    #[doc(hidden)]
    pub queue_limits: QueueLimits,
    /// How long a consumer waits for a hint before it looks by itself; a test of hints makes it longer than itself.
    #[doc(hidden)]
    pub hint_patience: Duration,
}

impl Config {
    /// One server that fsyncs what it acknowledges.
    pub fn single(url: impl Into<String>) -> Self {
        Self {
            urls: vec![url.into()],
            ..Self::default()
        }
    }

    /// A cluster, found through any of its servers.
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let urls = urls.into_iter().map(Into::into).collect();
        Self {
            urls,
            topology: Topology::Cluster,
            ..Self::default()
        }
    }

    pub(crate) fn names(&self) -> Result<Names, OpenError> {
        let named = Names::new(&self.namespace);
        named.ok_or_else(|| {
            OpenError::Configuration(format!("{:?} cannot be a namespace", self.namespace))
        })
    }

    pub(crate) fn key_value_limits(&self) -> KeyValueLimits {
        let transact_across_partitions = self.topology == Topology::Single;
        KeyValueLimits {
            transact_across_partitions,
            ..key_value::LIMITS
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
            queue_limits: queue::LIMITS,
            hint_patience: Duration::from_secs(2),
        }
    }
}

impl fmt::Display for Config {
    /// Where the store is, for people: servers and namespace.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("redis ")?;
        for (number, url) in self.urls.iter().enumerate() {
            let place = url
                .rsplit_once('@')
                .or_else(|| url.rsplit_once('/'))
                .map_or("", |(_, place)| place);
            let place = url
                .strip_prefix("redis://")
                .filter(|_| !url.contains('@'))
                .unwrap_or(place);
            write!(f, "{}{place}", if number > 0 { "," } else { "" })?;
        }
        write!(f, ", namespace {}", self.namespace)
    }
}

impl fmt::Debug for Config {
    /// URLs carry passwords, so they are left out.
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
