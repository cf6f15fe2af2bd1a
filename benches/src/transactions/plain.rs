//! Plain Redis: reads and writes as they come. Its order of transactions is that of their starts, as in the paper.

use std::time::Instant;

use anyhow::{Context, Result};
use bytes::Bytes;
use redis::{aio::MultiplexedConnection, cmd};
use simulation::transactions::history::{Shown, Writer};
use transactions::model::{Attempt, Key, NodeId, Timestamp, TransactionId, Version};

/// One client of plain Redis.
#[derive(Debug)]
pub struct Plain {
    connection: MultiplexedConnection,
    prefix: String,
    client: u32,
    begun: u64,
    epoch: Instant,
    version: Version,
}

impl Plain {
    /// Client number `client` of the server at `url`; all clients of one run share `prefix` and `epoch`.
    pub async fn connect(url: &str, prefix: &str, client: u32, epoch: Instant) -> Result<Self> {
        let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await;
        let connection = connection.with_context(|| format!("connect to {url}"))?;
        Ok(Self {
            connection,
            prefix: prefix.to_owned(),
            client,
            begun: 0,
            epoch,
            version: Version::default(),
        })
    }

    pub(super) fn begin(&mut self) -> Result<Writer> {
        self.begun += 1;
        let timestamp = Timestamp(self.epoch.elapsed().as_nanos() as u64 + 1);
        self.version = Version { timestamp, node: NodeId(self.client) };
        let id = TransactionId::new(format!("{}-{}", self.client, self.begun))?;
        Ok(Writer { id, attempt: Attempt { node: NodeId(self.client), sequence: self.begun } })
    }

    pub(super) async fn get(&mut self, key: &Key) -> Result<Shown> {
        let found: Option<Vec<u8>> = cmd("GET").arg(self.name(key)).query_async(&mut self.connection).await?;
        Ok(found.map_or(Shown::Absent, |value| Shown::Value(value.into())))
    }

    pub(super) async fn put(&mut self, key: &Key, value: Bytes) -> Result<()> {
        Ok(cmd("SET").arg(self.name(key)).arg(&value[..]).query_async(&mut self.connection).await?)
    }

    #[allow(clippy::unnecessary_wraps)] // beside the others, which can fail
    pub(super) fn commit(&self) -> Result<Version> {
        Ok(self.version)
    }

    fn name(&self, key: &Key) -> Vec<u8> {
        [self.prefix.as_bytes(), &key.name()[..]].concat()
    }
}
