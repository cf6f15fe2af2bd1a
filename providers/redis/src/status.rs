//! What the store says about itself, without asking anybody.

use crate::{config::Acknowledged, servers::Servers};

/// How the store is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The servers that take writes, as host and port.
    pub servers: Vec<String>,
    /// Whether they are a cluster.
    pub is_cluster: bool,
    /// What an acknowledged write has survived.
    pub acknowledged: Acknowledged,
    /// Why a server could not be used when it was last needed; none: it could.
    pub trouble: Option<String>,
}

impl Servers {
    pub(crate) fn status(&self) -> Status {
        let (nodes, acknowledged) = match self {
            Self::Single(single) => (vec![single.health()], single.acknowledged()),
            Self::Cluster(cluster) => (cluster.health(), cluster.acknowledged()),
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
}
