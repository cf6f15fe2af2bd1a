//! Key-value items and queues on Redis or Valkey, one server or a cluster.
//!
//! An item is one value, and each partition and each queue lies in one slot. Every change is one
//! script, so it happens entirely or not at all. [`ports::key_value::evaluate`] alone defines
//! conditions and changes; Redis compares and sets (`compare_and_set.rs` gives the reasons).
//!
//! **Durability.** The operator chooses what an acknowledged write has survived ([`Acknowledged`]).
//! `open` refuses a server that cannot guarantee it:
//!
//! | acknowledged | a crash of the server | loss of its disk | failover to a replica |
//! | --- | --- | --- | --- |
//! | `AppendOnlyFile` | survives | lost | may be lost |
//! | `Replicas(n)` | survives if one of those n takes over | survives likewise | survives if one of those n takes over |
//! | `InMemory` | depends on the server's settings | lost | may be lost |
//!
//! A lost write takes the locks, tokens and decisions that it recorded with it, so two holders
//! become possible. Use another provider where that is not acceptable.
//!
//! **Detection of losses.** On one server, a point is an incarnation and a position of a clock in
//! the store. A server that restarted or was replaced no longer knows our scripts, which is how we
//! detect it. Points that it lost return [`Lost`](ports::ErrorKind::Lost) (`servers/single.rs`). In
//! a cluster no order spans the servers. Each reply is as safe as configured when it is given, and
//! a loss during a failover is not reported (`servers/cluster.rs`).
//!
//! Absent: functions, the clock and randomness, because Redis provides none (`in_process` does);
//! objects, because Redis holds values in memory.
//!
//! Reading order: `redis_keys.rs`, `codec.rs`, `compare_and_set.rs`,
//! `compare_and_set/pipelining.rs`, `key_value.rs`; `queue.rs` and `servers/scripts/queue.lua`;
//! `servers/scripts.rs`, `servers/single.rs`, `servers/cluster.rs`; `servers/node.rs`,
//! `servers/preflight.rs`, `servers/durability_wait.rs`.

#![allow(rustdoc::private_intra_doc_links)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "connections, timeouts and the system's randomness live in providers"
)]

mod codec;
mod compare_and_set;
mod config;
mod error;
mod key_value;
mod queue;
mod redis_keys;
mod servers;
mod store;
mod wake_up;

use std::sync::Arc;

use ports::{KeyValue, Queue, QueueAdmin};

pub use config::{Acknowledged, Config, Topology};
pub use error::OpenError;
pub use servers::Status;

use crate::{servers::Servers, store::Store};

/// An open store. Any number of processes may have it open; dropping it changes nothing in Redis.
#[derive(Debug)]
pub struct Redis {
    store: Arc<Store>,
}

impl Redis {
    /// Connects, checks the servers, and joins their incarnation or begins one.
    pub async fn open(config: &Config) -> Result<Self, OpenError> {
        Ok(Self {
            store: Arc::new(Store::open(config).await?),
        })
    }

    /// Connects and checks the servers without changing anything. Returns warnings for the
    /// operator.
    pub async fn inspect(config: &Config) -> Result<Vec<String>, OpenError> {
        Servers::inspect(config).await
    }

    /// Warnings for the operator about the durability settings of the servers, as of `open`.
    pub fn warnings(&self) -> &[String] {
        self.store.servers.warnings()
    }

    /// The last known state of the store.
    pub fn status(&self) -> Status {
        self.store.servers.status()
    }

    /// The key-value port.
    pub fn key_value(&self) -> Arc<dyn KeyValue> {
        Arc::clone(&self.store) as Arc<dyn KeyValue>
    }

    /// The key-value port with all partitions in one slot. A transaction over several partitions
    /// then works in a cluster too, on the one server with this slot. Its items are separate from
    /// those of [`Redis::key_value`]; `tag` distinguishes several such stores.
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
