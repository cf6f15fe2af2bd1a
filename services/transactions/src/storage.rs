//! What the service keeps in the key-value store: keys, records, logs, and every conditional write.

pub(crate) mod frontier;
pub(crate) mod hybrid_clock;
pub mod layout;
pub(crate) mod node_log;
pub(crate) mod node_registry;
pub mod records;
pub(crate) mod secret;
pub(crate) mod slot_ages;
pub(crate) mod store;
