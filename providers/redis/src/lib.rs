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
//! Reading order: `names.rs`, `codec.rs`, `compare_and_set.rs`, `turns.rs`, `key_value.rs`; `queue.rs` and `scripts/queue.lua`;
//! `scripts.rs`, `single.rs`, `cluster.rs`; `node.rs`, `fitness.rs`, `waiting.rs`.

#![allow(rustdoc::private_intra_doc_links)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
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
mod status;
mod store;
mod turns;
mod url;
mod waiting;
mod wake_up;

use std::sync::Arc;

use ports::{KeyValue, Queue, QueueAdmin};

pub use config::{Acknowledged, Config, Topology};
pub use error::OpenError;
pub use status::Status;

use crate::store::Store;

/// An open store. Any number of processes may have it open; dropping it leaves everything as it is.
#[derive(Debug)]
pub struct Redis {
    store: Arc<Store>,
}

impl Redis {
    /// Connects, judges the servers, and joins their incarnation or begins one.
    pub async fn open(config: &Config) -> Result<Self, OpenError> {
        Ok(Self {
            store: Arc::new(Store::open(config).await?),
        })
    }

    /// Connects and judges the servers, and changes nothing. Answers what an operator should know.
    pub async fn inspect(config: &Config) -> Result<Vec<String>, OpenError> {
        servers::Servers::inspect(config).await
    }

    /// What an operator should know about how the servers keep what is acknowledged, as found at open.
    pub fn warnings(&self) -> &[String] {
        self.store.servers.warnings()
    }

    /// What the store says about itself.
    pub fn status(&self) -> Status {
        self.store.servers.status()
    }

    /// The key-value port.
    pub fn key_value(&self) -> Arc<dyn KeyValue> {
        Arc::clone(&self.store) as Arc<dyn KeyValue>
    }

    /// The key-value port with all its partitions in one slot: what has to change items of several partitions
    /// together can do so in a cluster too, on the one server that has this slot. Its items are others than
    /// [`Redis::key_value`]'s; `tag` tells stores of this kind apart.
    pub fn key_value_in_one_slot(&self, tag: &'static str) -> Arc<dyn KeyValue> {
        Arc::new(self.store.in_one_slot(tag))
    }

    /// The queue port.
    pub fn queue(&self) -> Arc<dyn Queue> {
        Arc::clone(&self.store) as Arc<dyn Queue>
    }

    /// The administration of those queues.
    pub fn queue_admin(&self) -> Arc<dyn QueueAdmin> {
        Arc::clone(&self.store) as Arc<dyn QueueAdmin>
    }
}
