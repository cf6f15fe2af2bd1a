//! Plain Redis: each read and write takes effect at once. Transactions are ordered by their starts,
//! as in the paper.

use std::time::Instant;

use anyhow::{Context, Result};
use bytes::Bytes;
use redis::{aio::MultiplexedConnection, cmd};
use simulation::transactions::history::{ReadResult, Writer};
use transactions::model::{Attempt, Key, NodeId, Timestamp, TransactionId, Version};

use super::servers::master_of;

/// One client of plain Redis.
#[derive(Debug)]
pub struct Plain {
    /// Connections to the one server, or to both masters of a cluster.
    connections: Vec<MultiplexedConnection>,
    prefix: String,
    client: u32,
    begun: u64,
    epoch: Instant,
    version: Version,
}

impl Plain {
    /// Client number `client` of the servers at `urls`; all clients of one run share `prefix` and `epoch`.
    pub async fn connect(
        urls: &[String],
        prefix: &str,
        client: u32,
        epoch: Instant,
    ) -> Result<Self> {
        let mut connections = Vec::new();
        for url in urls {
            let connection = redis::Client::open(url.as_str())?
                .get_multiplexed_async_connection()
                .await;
            connections.push(connection.with_context(|| format!("connect to {url}"))?);
        }
        Ok(Self {
            connections,
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
        self.version = Version {
            timestamp,
            node: NodeId(self.client),
        };
        let id = TransactionId::new(format!("{}-{}", self.client, self.begun))?;
        Ok(Writer {
            id,
            attempt: Attempt {
                node: NodeId(self.client),
                sequence: self.begun,
            },
        })
    }

    pub(super) async fn get(&mut self, key: &Key) -> Result<ReadResult> {
        let name = self.name(key);
        let found: Option<Vec<u8>> = cmd("GET")
            .arg(&name)
            .query_async(self.server(&name))
            .await?;
        Ok(found.map_or(ReadResult::Absent, |value| ReadResult::Value(value.into())))
    }

    pub(super) async fn put(&mut self, key: &Key, value: Bytes) -> Result<()> {
        let name = self.name(key);
        Ok(cmd("SET")
            .arg(&name)
            .arg(&value[..])
            .query_async(self.server(&name))
            .await?)
    }

    #[allow(clippy::unnecessary_wraps)] // beside the others, which can fail
    pub(super) fn commit(&self) -> Result<Version> {
        Ok(self.version)
    }

    fn server(&mut self, name: &[u8]) -> &mut MultiplexedConnection {
        let number = if self.connections.len() > 1 {
            master_of(name)
        } else {
            0
        };
        &mut self.connections[number]
    }

    fn name(&self, key: &Key) -> Vec<u8> {
        [self.prefix.as_bytes(), &key.name()[..]].concat()
    }
}
