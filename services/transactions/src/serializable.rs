//! Serializable transactions: sequenced keyspaces, and the log that orders their commits.

pub(crate) mod keyspace;
pub(crate) mod sequencer;
