//! The ports' contracts, on one server that syncs before it replies and on a cluster.

use std::sync::Arc;

use async_trait::async_trait;
use in_process::SystemClock;
use ports::{
    Clock,
    contract::{self, Case, Spawn},
    key_value::SharedKeyValue,
    queue::{SharedQueue, SharedQueueAdmin},
};
use redis_provider::{Acknowledged, Config, Redis};

use crate::{
    cluster::Cluster,
    fixture::{block_on, namespace, open},
    server::{Persistence, Server, shared},
};

const SPAWN: Spawn = |task| {
    let task = tokio::spawn(task);
    Box::pin(async move { task.await.expect("the task ends well") })
};

/// The one case that waits for the deduplication window has a short one; no other case may reach
/// its end.
const WAITS_FOR_THE_WINDOW: &str = "a_deduplication_id_is_forgotten_when_its_window_is_over";
const WINDOW_MS: u64 = 400;
/// Few enough for a case to exceed.
const DEAD_LETTERS_MAX: usize = 20;

/// The configuration of a separate store for one case.
fn config_for(name: &str, config: Config) -> Config {
    let mut config = Config {
        namespace: namespace(),
        ..config
    };
    config.queue_limits.dead_letters_max = DEAD_LETTERS_MAX;
    if name == WAITS_FOR_THE_WINDOW {
        config.queue_limits.deduplication_window_ms = WINDOW_MS;
    }
    config
}

/// Runs a case of the key-value contract on a separate store.
fn run_key_value(case: Case<contract::key_value::Subject>, config: Config) {
    let config = config_for(case.name, config);
    block_on(async {
        let store = open(&config).await;
        case.run(
            contract::key_value::Subject::new(store.key_value(), Arc::new(SystemClock))
                .spawning(SPAWN),
        )
        .await;
    });
}

/// Runs a case of the queue contract on a separate store.
fn run_queue(case: Case<contract::queue::Subject>, config: Config) {
    let config = config_for(case.name, config);
    block_on(async {
        let store = open(&config).await;
        let subject = contract::queue::Subject::new(
            store.queue(),
            store.queue_admin(),
            Arc::new(SystemClock),
        );
        case.run(subject.spawning(SPAWN).beside(store.key_value()))
            .await;
    });
}

/// Servers that can be killed and restarted with their append-only files.
trait Crash: std::fmt::Debug + Send + Sync + 'static {
    fn crash(&self);
}

impl Crash for Server {
    fn crash(&self) {
        self.kill();
        self.restart();
    }
}

impl Crash for Cluster {
    fn crash(&self) {
        Self::crash(self);
    }
}

/// A store on such servers.
#[derive(Debug)]
struct Crashing<S> {
    store: Redis,
    config: Config,
    servers: S,
}

#[async_trait]
impl<S: Crash> contract::durability::Crashable for Crashing<S> {
    fn key_value(&self) -> SharedKeyValue {
        self.store.key_value()
    }

    fn queue(&self) -> Option<SharedQueue> {
        Some(self.store.queue())
    }
    fn queue_admin(&self) -> Option<SharedQueueAdmin> {
        Some(self.store.queue_admin())
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    async fn crash_and_reopen(self: Box<Self>) -> contract::durability::Subject {
        let Self {
            store,
            config,
            servers,
        } = *self;
        drop(store);
        servers.crash();
        let store = open(&config).await;
        Box::new(Self {
            store,
            config,
            servers,
        })
    }
}

mod single {
    use super::*;

    fn key_value(case: Case<contract::key_value::Subject>) {
        let server = shared();
        run_key_value(case, Config::single(server.url()));
    }

    mod key_value {
        ports::key_value_contract!(super::key_value);
    }

    fn queue(case: Case<contract::queue::Subject>) {
        let server = shared();
        run_queue(case, Config::single(server.url()));
    }

    mod queue {
        ports::queue_contract!(super::queue);
    }

    fn durability(case: Case<contract::durability::Subject>) {
        let server = Server::start(Persistence::Always);
        let config = Config::single(server.url());
        block_on(async {
            let store = open(&config).await;
            case.run(Box::new(Crashing {
                store,
                config,
                servers: server,
            }))
            .await;
        });
    }

    mod durability {
        ports::durability_contract!(super::durability);
    }
}

mod cluster {
    use super::*;
    use crate::cluster::shared;

    fn replicated(cluster: &Cluster) -> Config {
        Config {
            acknowledged: Acknowledged::Replicas(1),
            ..Config::cluster(cluster.urls())
        }
    }

    fn key_value(case: Case<contract::key_value::Subject>) {
        let cluster = shared();
        run_key_value(case, replicated(&cluster));
    }

    mod key_value {
        ports::key_value_contract!(super::key_value);
    }

    /// The key-value port whose items change together over partitions of a cluster.
    fn in_one_slot(case: Case<contract::key_value::Subject>) {
        let cluster = shared();
        let config = config_for(case.name, replicated(&cluster));
        block_on(async {
            let store = open(&config).await.key_value_in_one_slot("together");
            assert!(store.limits().transact_across_partitions);
            case.run(
                contract::key_value::Subject::new(store, Arc::new(SystemClock)).spawning(SPAWN),
            )
            .await;
        });
    }

    mod in_one_slot {
        ports::key_value_contract!(super::in_one_slot);
    }

    fn queue(case: Case<contract::queue::Subject>) {
        let cluster = shared();
        run_queue(case, replicated(&cluster));
    }

    mod queue {
        ports::queue_contract!(super::queue);
    }

    fn durability(case: Case<contract::durability::Subject>) {
        let cluster = Cluster::bare(Persistence::Always);
        let config = Config::cluster(cluster.urls());
        block_on(async {
            let store = open(&config).await;
            case.run(Box::new(Crashing {
                store,
                config,
                servers: cluster,
            }))
            .await;
        });
    }

    mod durability {
        ports::durability_contract!(super::durability);
    }
}
