//! The service composed from its ports: functions, queues and the gateway.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use ports::{
    Result,
    functions::{Definition, FunctionOptions, QueueTrigger},
    queue::{OnFailure, QueueOptions, Retention},
};

use crate::{
    access,
    config::Config,
    distributor::Distributor,
    environment::{Environment, Parts},
    gateway::Gateway,
    heartbeat::{self, Heartbeat},
    model::Zxid,
    path, queue_names,
    records::{Kind, NodeState, Payload, UpdateId},
    storage::{
        node,
        session::{ALL_SHARDS, Rows},
        user_store::Node,
    },
    tail::Tail,
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

/// The longest delay before failed messages are delivered again. A writer or a distributor that
/// others overtake, or that a slow machine delays beyond the visibility timeout, fails repeatedly
/// until one of them gets through. All later requests wait for that delivery. A request that always
/// fails costs one attempt per second.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);

/// The most messages of requests that one invocation of the writer receives of a session, so that
/// it handles at most 256 of them and ends long before its timeout.
const REQUEST_MESSAGES_MAX: usize = 256 / queue_names::MESSAGE_RECORDS_MAX;

/// The most sessions whose requests one invocation of the writer receives, where it can decide them
/// together.
const SESSIONS_TOGETHER_MAX: usize = 16;

/// Size of a znode's item beyond its request: key, names and Stat, with a reserve for later fields.
/// In bytes.
const ITEM_OVERHEAD_BYTES: usize = 16 * 1024;

/// The coordination service of one process.
#[derive(Debug)]
pub struct Service {
    env: Arc<Environment>,
    tail: Arc<Tail>,
}

impl Service {
    /// The service on `parts`. It does nothing before [`Service::start`].
    pub fn new(parts: Parts, config: Config) -> Self {
        let env = Arc::new(Environment { parts, config });
        let tail = Arc::new(Tail::new(env.clone()));
        Self { env, tail }
    }

    /// The longest request that can be stored, in bytes. The data that it sets must fit into one
    /// item.
    pub fn request_bytes_max(&self) -> usize {
        let item_bytes_max = self.env.parts.items.limits().item_bytes_max;
        item_bytes_max.saturating_sub(ITEM_OVERHEAD_BYTES)
    }

    /// The functions to register with the runtime.
    pub fn functions(&self) -> Vec<Definition> {
        let env = || self.env.clone();
        let options = FunctionOptions {
            timeout: INVOCATION_TIMEOUT,
            retry_delay_max: RETRY_DELAY_MAX,
            ..FunctionOptions::default()
        };
        let definition = |name: &'static str, handler| Definition {
            name: name.into(),
            options: options.clone(),
            handler,
        };
        let distributor = Arc::new(if self.env.config.applies_directly {
            Distributor::beside(&self.tail)
        } else {
            Distributor::new(env())
        });
        let writer = Arc::new(Writer::new(env(), &distributor));
        vec![
            definition(queue_names::WRITER, writer),
            definition(queue_names::DISTRIBUTOR, distributor),
            definition(queue_names::WATCH, self.tail.clone()),
            definition(queue_names::HEARTBEAT, Arc::new(Heartbeat::new(env()))),
        ]
    }

    /// Creates missing znodes and queues, and arms the triggers. Arms the heartbeat if sessions
    /// exist. The functions must be registered before.
    pub fn start(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let Parts {
                queue: queues,
                functions,
                ..
            } = &self.env.parts;
            self.create_built_in_znodes().await?;
            let most = queues.limits().batch_messages_max;
            let sessions_max = if self.env.config.applies_directly {
                SESSIONS_TOGETHER_MAX
            } else {
                1
            };
            for (queue, function, batch_messages_max, groups_max) in [
                (
                    queue_names::REQUEST_QUEUE,
                    queue_names::WRITER,
                    most.min(REQUEST_MESSAGES_MAX),
                    sessions_max,
                ),
                (
                    queue_names::DISTRIBUTOR_QUEUE,
                    queue_names::DISTRIBUTOR,
                    most,
                    1,
                ),
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
                queues.create(queue, options).await?;
                let trigger = QueueTrigger {
                    queue: queue.into(),
                    function: function.into(),
                    batch_messages_max,
                    groups_max,
                };
                functions.arm_queue(trigger).await?;
            }
            self.push_outboxes().await?;
            // During the downtime no session could be renewed.
            heartbeat::forget(&self.env).await?;
            heartbeat::arm_if_needed(&self.env).await?;
            self.tail.start().await
        })
    }

    /// Finishes the decisions of writers that died: installs and pushes every outbox, like the next
    /// writer of each session. Other processes may work at the same time.
    async fn push_outboxes(&self) -> Result<()> {
        let (mut store, queue) = (self.env.system(), &*self.env.parts.queue);
        for shard in ALL_SHARDS {
            let mut pages = Rows::of(shard);
            while let Some(rows) = pages.next_page(&mut store).await? {
                for row in &rows {
                    writer::finish_or_skip(&mut store, queue, row).await?;
                }
            }
        }
        Ok(())
    }

    /// Follows the log forever. The program runs it beside the front ends.
    pub fn run(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.tail.run().await;
        })
    }

    /// The gateway, which creates clients.
    pub fn gateway(&self) -> Gateway {
        Gateway::new(self.tail.clone())
    }

    async fn create_built_in_znodes(&self) -> Result<()> {
        let system = &*self.env.parts.system;
        for (path, children) in BUILT_IN {
            // As in ZooKeeper, only `super` may change the configuration.
            let (acl, aversion) = if path == path::CONFIG {
                (access::readable(), -1)
            } else {
                (Bytes::new(), 0)
            };
            let state = NodeState {
                aversion,
                children,
                ..NodeState::created(Kind::Persistent, acl.clone(), UpdateId::NONE)
            };
            let empty = Payload::Inline(Bytes::new());
            let mut node = Node::created(Zxid(0), 0, 0, empty, acl);
            node.stat.aversion = aversion;
            node.stat.num_children = children;
            node.stat.cversion = state.cversion();
            node::put_if_absent(system, path, state).await?;
            self.tail.region.put_if_absent(path, &node).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
