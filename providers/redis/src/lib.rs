//! Key-value items and queues on Redis or Valkey, one server or a cluster.
//!
//! The fast tier: an item is one value, a partition is one slot, a queue is one slot; every change is one script, so
//! it happens whole or not at all. What conditions and changes mean is [`ports::key_value::evaluate`]'s word alone; Redis
//! compares and sets (`compare_and_set.rs` says why). Two things are decided by what Redis is:
//!
//! **What an acknowledged write has survived** is the operator's choice ([`Acknowledged`]), and a server that cannot
//! keep it is refused at open. Said plainly:
//!
//! | acknowledged | a crash of the server | loss of its disk | failover to a replica |
//! | --- | --- | --- | --- |
//! | `AppendOnlyFile` | survives | lost | may be lost |
//! | `Replicas(n)` | survives if one of those n takes over | survives likewise | survives if one of those n takes over |
//! | `InMemory` | as the server's own settings | lost | may be lost |
//!
//! With a lost write go the locks, tokens and decisions it stood for: two holders are possible then. Whoever needs
//! more uses another provider for that.
//!
//! **How a loss is noticed.** On one server, points are incarnation and position of a clock in the store, and a server
//! that restarted or was replaced is recognised by having forgotten our scripts; points that it lost answer
//! [`Lost`](ports::ErrorKind::Lost) (`single.rs`). In a cluster no order spans the servers: each answer is as safe
//! as configured when it is given, and a loss in a failover is not reported (`cluster.rs`).
//!
//! Left to others: functions, the clock and randomness come from the process, as with the embedded provider, because
//! Redis runs none; objects from an object store, because values here are held in memory.
//!
//! Reading order: `names.rs`, `codec.rs`, `compare_and_set.rs`, `key_value.rs`; `queue.rs` and `scripts/queue.lua`;
//! `scripts.rs`, `single.rs`, `cluster.rs`; `node.rs`, `fitness.rs`, `waiting.rs`.

#![allow(rustdoc::private_intra_doc_links)]
#![allow(
    clippy::disallowed_methods,
    reason = "connections, timeouts and the system's randomness live in providers"
)]

mod answer;
mod cluster;
mod codec;
mod compare_and_set;
mod config;
mod error;
mod fitness;
mod key_value;
mod names;
mod node;
mod queue;
mod scripts;
mod servers;
mod single;
mod store;
mod waiting;
mod wake_up;

use std::sync::Arc;

use ports::{KeyValue, Queue};

pub use config::{Acknowledged, Config, Topology};
pub use error::OpenError;

use crate::store::Store;

/// An open store. Any number of processes may have it open; dropping it leaves everything as it is.
#[derive(Debug)]
pub struct Redis {
    store: Arc<Store>,
}

impl Redis {
    /// Connects, judges the servers, and begins an incarnation.
    pub async fn open(config: &Config) -> Result<Self, OpenError> {
        Ok(Self { store: Arc::new(Store::open(config).await?) })
    }

    /// The key-value port.
    pub fn key_value(&self) -> Arc<dyn KeyValue> {
        Arc::clone(&self.store) as Arc<dyn KeyValue>
    }

    /// The queue port.
    pub fn queue(&self) -> Arc<dyn Queue> {
        Arc::clone(&self.store) as Arc<dyn Queue>
    }
}
