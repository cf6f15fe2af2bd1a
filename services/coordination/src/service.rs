//! The service composed from its ports: functions, queues and the gateway.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ports::{
    Clock, Entropy, Functions, KeyValue, Queue, Result,
    functions::{Definition, FunctionOptions, QueueTrigger},
    objects::ObjectStore,
    queue::{OnFailure, QueueOptions, Retention},
};
use primitives::FencedLog;

use crate::{
    client::Shared,
    config::Config,
    dependency::Dependency,
    distributor::{Distributor, LOG_PARTITION},
    gateway::Gateway,
    heartbeat::{self, Heartbeat},
    model::{SessionId, Zxid},
    path, queue_names,
    records::{NodeState, Payload, UpdateId},
    storage::{
        node::Nodes,
        session::{ALL_SHARDS, Sessions},
        temporary::Temporaries,
        user_store::{Meta, Node, UserStore, encode_acl},
    },
    tail::Tail,
    watch::Watch,
    writer::{self, Writer},
};

/// The built-in znodes of every ZooKeeper, with their initial numbers of children.
const BUILT_IN: [(&str, i32); 4] = [
    ("/", 1),
    ("/zookeeper", 2),
    (path::CONFIG, 0),
    ("/zookeeper/quota", 0),
];

/// Time until an unacknowledged message is delivered to another writer or distributor.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(20);

/// An invocation that takes longer is cancelled. Another invocation continues from the rows.
const INVOCATION_TIMEOUT: Duration = Duration::from_secs(20);

/// Size of a znode's item beyond its request: key, names and Stat, with a reserve for later fields.
/// In bytes.
const ITEM_OVERHEAD_BYTES: usize = 16 * 1024;

/// The ports of the service.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The store of sessions, locks and the log.
    pub system: Arc<dyn KeyValue>,
    /// The user stores, one per region. The first is in this process's region.
    pub regions: Vec<Region>,
    /// The queues of requests and decisions.
    pub queue: Arc<dyn Queue>,
    /// The function runtime.
    pub functions: Arc<dyn Functions>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of session ids and passwords.
    pub entropy: Arc<dyn Entropy>,
}

/// One region's stores.
#[derive(Debug, Clone)]
pub struct Region {
    /// The znodes.
    pub items: Arc<dyn KeyValue>,
    /// The data of znodes that is not in the items. In the first region also the temporary objects.
    pub objects: Arc<dyn ObjectStore>,
}

/// The coordination service of one process.
#[derive(Debug)]
pub struct Service {
    parts: Parts,
    config: Config,
    regions: Vec<UserStore>,
    tail: Arc<Tail>,
}

impl Service {
    /// The service on `parts`. It does nothing before [`Service::start`].
    pub fn new(parts: Parts, config: Config) -> Self {
        let store = |region: &Region| {
            UserStore::new(
                region.items.clone(),
                region.objects.clone(),
                config.placement,
            )
        };
        let regions: Vec<UserStore> = parts.regions.iter().map(store).collect();
        let log = FencedLog::new(parts.system.clone(), LOG_PARTITION);
        let tail = Arc::new(Tail::new(
            regions[0].clone(),
            log,
            parts.clock.clone(),
            &config,
        ));
        Self {
            parts,
            config,
            regions,
            tail,
        }
    }

    /// The longest request that can be stored, in bytes. The data that it sets must fit into one
    /// item of each region.
    pub fn request_bytes_max(&self) -> usize {
        let of_region = |region: &Region| region.items.limits().item_bytes_max;
        let items = self
            .parts
            .regions
            .iter()
            .map(of_region)
            .min()
            .unwrap_or_default();
        items.saturating_sub(ITEM_OVERHEAD_BYTES)
    }

    /// The functions to register with the runtime.
    pub fn functions(&self) -> Vec<Definition> {
        let Parts {
            system,
            queue,
            functions,
            clock,
            ..
        } = self.parts.clone();
        let nodes = self.nodes();
        let writer = Writer::new(system.clone(), queue, clock, nodes.clone(), &self.config);
        let distributor =
            Distributor::new(system, self.regions.clone(), nodes, functions, &self.config);
        let options = FunctionOptions {
            timeout: INVOCATION_TIMEOUT,
            ..FunctionOptions::default()
        };
        let definition = |name: &'static str, handler| Definition {
            name: name.into(),
            options: options.clone(),
            handler,
        };
        vec![
            definition(queue_names::WRITER, Arc::new(writer)),
            definition(queue_names::DISTRIBUTOR, Arc::new(distributor)),
            definition(queue_names::WATCH, Arc::new(Watch::new(self.tail.clone()))),
            definition(queue_names::HEARTBEAT, Arc::new(self.heartbeat())),
        ]
    }

    /// Creates missing znodes and queues, and arms the triggers. Arms the heartbeat if sessions
    /// exist. The functions must be registered before.
    pub async fn start(&self) -> Result<()> {
        self.create_built_in_znodes().await?;
        for (queue, function) in [
            (queue_names::REQUEST_QUEUE, queue_names::WRITER),
            (queue_names::DISTRIBUTOR_QUEUE, queue_names::DISTRIBUTOR),
        ] {
            // Order matters more than progress: a failing message stays in place and is retried
            // (rule P1). A crash may lose messages safely. The client of a lost request is
            // disconnected, and a decided request is in its session's outbox.
            let options = QueueOptions {
                visibility_timeout_ms: VISIBILITY_TIMEOUT.as_millis() as u64,
                on_failure: OnFailure::Block,
                retention: Retention::Transient,
                ..QueueOptions::default()
            };
            self.parts.queue.create(queue, options).await?;
            let batch_messages_max = self.parts.queue.limits().batch_messages_max;
            let trigger = QueueTrigger {
                queue: queue.into(),
                function: function.into(),
                batch_messages_max,
            };
            self.parts.functions.arm_queue(trigger).await?;
        }
        self.push_outboxes().await?;
        // During the downtime no session could be renewed.
        self.heartbeat().forget().await?;
        if self.heartbeat().any_session().await? {
            let period = heartbeat::period(&self.config);
            self.parts
                .functions
                .arm_timer(queue_names::HEARTBEAT, period)
                .await?;
        }
        self.tail.start_at_cursor().await
    }

    /// Finishes the decisions of writers that died: installs and pushes every outbox, like the next
    /// writer of each session. Other processes may work at the same time.
    async fn push_outboxes(&self) -> Result<()> {
        let (sessions, nodes) = (Sessions::new(self.parts.system.clone()), self.nodes());
        let mut dependency = Dependency::default();
        for shard in ALL_SHARDS {
            let mut pages = sessions.rows(shard);
            while let Some(rows) = pages.next_page(&mut dependency).await? {
                for (session, row) in &rows {
                    writer::finish_or_skip(
                        &nodes,
                        &*self.parts.queue,
                        (*session, row),
                        &mut dependency,
                    )
                    .await?;
                }
            }
        }
        Ok(())
    }

    fn nodes(&self) -> Nodes {
        let Parts {
            system,
            clock,
            entropy,
            ..
        } = self.parts.clone();
        Nodes::new(system, clock, entropy, &self.config)
    }

    /// Follows the log forever. The program runs it beside the front ends.
    pub async fn run(&self) {
        self.tail.run().await;
    }

    /// The gateway, which creates clients.
    pub fn gateway(&self) -> Gateway {
        Gateway::new(Arc::new(Shared {
            config: self.config.clone(),
            sessions: Sessions::new(self.parts.system.clone()),
            region: self.regions[0].clone(),
            temporary: self.parts.regions[0].objects.clone(),
            queue: self.parts.queue.clone(),
            functions: self.parts.functions.clone(),
            clock: self.parts.clock.clone(),
            entropy: self.parts.entropy.clone(),
            tail: self.tail.clone(),
        }))
    }

    fn heartbeat(&self) -> Heartbeat {
        let Parts {
            system,
            queue,
            functions,
            clock,
            regions,
            ..
        } = self.parts.clone();
        let mut stores: Vec<Arc<dyn KeyValue>> =
            regions.iter().map(|region| region.items.clone()).collect();
        stores.push(system.clone());
        let (objects, sessions) = (regions[0].objects.clone(), Sessions::new(system.clone()));
        let temporaries = Temporaries::new(objects, sessions, stores, self.config.mutant);
        Heartbeat::new(
            heartbeat::Parts {
                system,
                queue,
                functions,
                clock,
            },
            temporaries,
            &self.config,
        )
    }

    async fn create_built_in_znodes(&self) -> Result<()> {
        let system = self.nodes();
        for (path, children) in BUILT_IN {
            let last = UpdateId {
                session: SessionId(0),
                sequence: 0,
            };
            let state = NodeState {
                version: 0,
                creates: 0,
                children,
                owner: None,
                last,
            };
            system.put_if_absent(path, state).await?;
            let born = Node::created(
                Zxid(0),
                0,
                0,
                Payload::Inline(Bytes::new()),
                encode_acl(&[]),
            );
            let node = Node {
                meta: Meta {
                    children,
                    ..born.meta
                },
                ..born
            };
            for region in &self.regions {
                region.put_if_absent(path, &node).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
