//! The last known state of the store.

use crate::config::Acknowledged;

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
