//! The service's data in the key-value store: keys, records, logs, and every conditional write.
//!
//! Other modules build keys only through [`layout`], and write only through
//! [`Store`](store::Store). Every conditional write can be repeated.

pub(crate) mod frontier;
pub(crate) mod hybrid_clock;
pub mod layout;
pub(crate) mod node_log;
pub(crate) mod node_registry;
pub mod records;
pub(crate) mod secret;
pub(crate) mod slot_ages;
pub(crate) mod store;
