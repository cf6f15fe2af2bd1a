//! One server or a cluster: what the ports need of either.

use bytes::Bytes;
use ports::{DurabilityPoint, Result};
use redis::{IntoConnectionInfo, Value, cmd};

use crate::{
    answer,
    cluster::Cluster,
    codec,
    config::{Config, Topology},
    error::{Effect, Failure, OpenError},
    fitness,
    names::Names,
    node::Node,
    scripts::Script,
    single::Single,
};

/// The most bytes in one command: a server closes a connection on which it holds more than four times as much.
const REQUEST_BYTES_MAX: usize = 256 << 20;

/// The servers of a store.
#[derive(Debug)]
pub(crate) enum Servers {
    Single(Box<Single>),
    Cluster(Box<Cluster>),
}

impl Servers {
    /// Connects, judges, checks the stored format, and begins.
    pub(crate) async fn open(config: &Config, names: &Names) -> Result<Self, OpenError> {
        if config.topology == Topology::Cluster {
            let servers = Self::Cluster(Box::new(Cluster::open(config).await?));
            servers.check_format(names).await?;
            return Ok(servers);
        }
        let node = the_node(config)?;
        let fit = fitness::judge(&node, config).await?;
        check_format_of(node.command(cmd("GET").arg(&names.format()[..])).await)?;
        let beginning =
            OpenError::unreachable(format!("begin on the server at {}", node.address()));
        let single = Single::open(node, names, fit, config)
            .await
            .map_err(beginning)?;
        let set = single
            .node
            .command(cmd("SET").arg(&names.format()[..]).arg(codec::FORMAT))
            .await;
        set.map_err(OpenError::unreachable("write the format"))?;
        Ok(Self::Single(Box::new(single)))
    }

    /// Connects, judges and checks the stored format, and begins nothing.
    pub(crate) async fn inspect(config: &Config) -> Result<Vec<String>, OpenError> {
        let names = config.names()?;
        if config.topology == Topology::Cluster {
            return Ok(Self::open(config, &names).await?.warnings().to_vec());
        }
        let node = the_node(config)?;
        let fit = fitness::judge(&node, config).await?;
        check_format_of(node.command(cmd("GET").arg(&names.format()[..])).await)?;
        Ok(fit.warnings)
    }

    /// What an operator should know about how the servers keep what is acknowledged.
    pub(crate) fn warnings(&self) -> &[String] {
        match self {
            Self::Single(single) => single.warnings(),
            Self::Cluster(cluster) => cluster.warnings(),
        }
    }

    async fn check_format(&self, names: &Names) -> Result<(), OpenError> {
        let found = self
            .get(&names.format())
            .await
            .map(|(_, found)| Value::BulkString(found.to_vec()));
        let found = found.map(|value| {
            if value == Value::BulkString(Vec::new()) {
                Value::Nil
            } else {
                value
            }
        });
        check_format_of(found)
    }

    /// Runs a script over `keys`, which lie in one slot where there are several servers.
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

    /// The bytes under `name`; empty if nothing is there.
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

    /// Messages published on `channel` through some server, another one each turn.
    pub(crate) async fn subscribe(&self, channel: &str, turn: usize) -> Option<redis::aio::PubSub> {
        match self {
            Self::Single(single) => single.node.subscribe(channel).await.ok(),
            Self::Cluster(cluster) => cluster.any_node(turn)?.subscribe(channel).await.ok(),
        }
    }
}

/// The one server.
fn the_node(config: &Config) -> Result<Node, OpenError> {
    let [url] = &config.urls[..] else {
        return Err(OpenError::Configuration(
            "one server has one URL".to_owned(),
        ));
    };
    let info = url.as_str().into_connection_info();
    let info = info.map_err(|error| OpenError::Configuration(format!("read the URL: {error}")))?;
    Node::new(info, config).map_err(OpenError::unreachable("connect"))
}

fn check_format_of(found: Result<Value, Failure>) -> Result<(), OpenError> {
    let reading = || OpenError::unreachable("read the format");
    let (found, supported) = (
        answer::number(&found.map_err(reading())?).map_err(reading())?,
        u64::from(codec::FORMAT),
    );
    if found > supported {
        Err(OpenError::NewerFormat { found, supported })
    } else {
        Ok(())
    }
}
