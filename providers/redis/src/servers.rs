//! The server or servers of a store: the interface that the ports use for one server and for a
//! cluster.

mod cluster;
mod durability_wait;
mod node;
mod preflight;
pub(crate) mod reply;
pub(crate) mod scripts;
mod single;

use bytes::Bytes;
use ports::{DurabilityPoint, Result};
use redis::{IntoConnectionInfo, Value, cmd};

use crate::{
    codec,
    config::{Acknowledged, Config, Topology},
    error::{Effect, Failure, OpenError},
    redis_keys::RedisKeys,
    servers::{cluster::Cluster, node::Node, scripts::Script, single::SingleServer},
};

/// The most bytes in one command. A server closes a connection on which it buffers more than four
/// times as much.
const REQUEST_BYTES_MAX: usize = 256 << 20;

/// The state of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The servers that take writes, as host and port.
    pub servers: Vec<String>,
    /// Whether they form a cluster.
    pub is_cluster: bool,
    /// The faults that an acknowledged write has survived.
    pub acknowledged: Acknowledged,
    /// Why the last use of a server failed; none if it succeeded.
    pub trouble: Option<String>,
}

/// The servers of a store.
#[derive(Debug)]
pub(crate) enum Servers {
    Single(Box<SingleServer>),
    Cluster(Box<Cluster>),
}

impl Servers {
    /// Connects, checks the servers and the stored format, and joins or begins an incarnation.
    pub(crate) async fn open(config: &Config, keys: &RedisKeys) -> Result<Self, OpenError> {
        if config.topology == Topology::Cluster {
            let cluster = Cluster::open(config).await?;
            check_found_format(cluster.value(&keys.format()).await)?;
            return Ok(Self::Cluster(Box::new(cluster)));
        }
        let node = single_node(config)?;
        let preflight = preflight::check(&node, config).await?;
        check_found_format(node.command(cmd("GET").arg(&keys.format()[..])).await)?;
        let beginning =
            OpenError::unreachable(format!("begin on the server at {}", node.address()));
        let single = SingleServer::open(node, keys, preflight, config)
            .await
            .map_err(beginning)?;
        let set = single
            .node()
            .command(cmd("SET").arg(&keys.format()[..]).arg(codec::FORMAT))
            .await;
        set.map_err(OpenError::unreachable("write the format"))?;
        Ok(Self::Single(Box::new(single)))
    }

    /// Connects and checks the servers and the stored format, without beginning an incarnation.
    pub(crate) async fn inspect(config: &Config) -> Result<Vec<String>, OpenError> {
        let keys = config.redis_keys()?;
        if config.topology == Topology::Cluster {
            return Ok(Self::open(config, &keys).await?.warnings().to_vec());
        }
        let node = single_node(config)?;
        let preflight = preflight::check(&node, config).await?;
        check_found_format(node.command(cmd("GET").arg(&keys.format()[..])).await)?;
        Ok(preflight.warnings)
    }

    /// Warnings for the operator about the durability settings of the servers.
    pub(crate) fn warnings(&self) -> &[String] {
        match self {
            Self::Single(single) => &single.warnings,
            Self::Cluster(cluster) => &cluster.warnings,
        }
    }

    /// The last known state of the servers; sends no command.
    pub(crate) fn status(&self) -> Status {
        let (nodes, acknowledged) = match self {
            Self::Single(single) => (vec![single.node().health()], single.acknowledged),
            Self::Cluster(cluster) => (cluster.health(), cluster.config.acknowledged),
        };
        let trouble = nodes.iter().find_map(|(address, trouble)| {
            trouble
                .as_ref()
                .map(|trouble| format!("the server at {address}: {trouble}"))
        });
        let servers = nodes.into_iter().map(|(address, _)| address).collect();
        Status {
            servers,
            is_cluster: matches!(self, Self::Cluster(_)),
            acknowledged,
            trouble,
        }
    }

    /// Runs a script over `keys`. In a cluster they must lie in one slot.
    pub(crate) async fn run(
        &self,
        script: Script,
        keys: &[Bytes],
        arguments: &[Bytes],
        effect: Effect,
    ) -> Result<(DurabilityPoint, Vec<Value>), Failure> {
        let bytes = keys.iter().chain(arguments).map(Bytes::len).sum();
        if bytes > REQUEST_BYTES_MAX {
            return Err(Failure::TooLarge(bytes));
        }
        match self {
            Self::Single(single) => single.run(script, keys, arguments, effect).await,
            Self::Cluster(cluster) => cluster.run(script, keys, arguments, effect).await,
        }
    }

    /// The bytes under `name`; empty if the key is absent.
    pub(crate) async fn get(&self, name: &Bytes) -> Result<(DurabilityPoint, Bytes), Failure> {
        match self {
            Self::Single(single) => single.get(name).await,
            Self::Cluster(cluster) => cluster.get(name).await,
        }
    }

    pub(crate) async fn externalize(&self, point: DurabilityPoint) -> Result<()> {
        match self {
            Self::Single(single) => single.externalize(point).await,
            Self::Cluster(_) => Ok(()),
        }
    }

    pub(crate) fn point(&self) -> DurabilityPoint {
        match self {
            Self::Single(single) => single.point(),
            Self::Cluster(_) => DurabilityPoint::DURABLE,
        }
    }

    pub(crate) fn is_durable(&self, point: DurabilityPoint) -> bool {
        match self {
            Self::Single(single) => single.is_durable(point),
            Self::Cluster(_) => true,
        }
    }

    /// The messages published on `channel`, received through one server. `rotation` selects it.
    pub(crate) async fn subscribe(
        &self,
        channel: &str,
        rotation: usize,
    ) -> Option<redis::aio::PubSub> {
        match self {
            Self::Single(single) => single.node().subscribe(channel).await.ok(),
            Self::Cluster(cluster) => cluster.subscribe(channel, rotation).await,
        }
    }
}

/// The server of a single-server configuration.
fn single_node(config: &Config) -> Result<Node, OpenError> {
    let [url] = &config.urls[..] else {
        return Err(OpenError::Configuration(
            "a single server needs exactly one URL".to_owned(),
        ));
    };
    let info = url.as_str().into_connection_info();
    let info = info.map_err(|error| OpenError::Configuration(format!("read the URL: {error}")))?;
    Node::new(info, config).map_err(OpenError::unreachable("connect"))
}

fn check_found_format(found: Result<Value, Failure>) -> Result<(), OpenError> {
    let reading = || OpenError::unreachable("read the format");
    let (found, supported) = (
        reply::number(&found.map_err(reading())?).map_err(reading())?,
        u64::from(codec::FORMAT),
    );
    if found > supported {
        Err(OpenError::NewerFormat { found, supported })
    } else {
        Ok(())
    }
}
