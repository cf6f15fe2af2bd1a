//! Nodes on a store, and short helpers for tests.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use embedded::Embedded;
use in_process::{SystemClock, SystemEntropy};
use ports::{KeyValue, key_value::Scan};
use simulated::World;
use tokio::task::JoinHandle;
use transactions::{
    Config, Destinations, Engine, Error, Parts, Service,
    layout::Buckets,
    model::{Begin, Begun, Call, Committed, Key, Outcome, TransactionId},
};

/// A live node. Dropping it stops all its tasks where they are.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) service: Arc<Service>,
    running: JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Node {
    pub(crate) async fn start(parts: Parts, config: Config) -> Self {
        Self::sending(parts, Destinations::default(), config).await
    }

    pub(crate) async fn sending(parts: Parts, destinations: Destinations, config: Config) -> Self {
        Self::of(
            Service::builder(parts)
                .destinations(destinations)
                .build(config),
        )
        .await
    }

    pub(crate) async fn of(service: Service) -> Self {
        let service = Arc::new(service);
        service.start().await.expect("the node starts");
        let (engine, runner) = (service.engine(), Arc::clone(&service));
        Self {
            engine,
            service,
            running: tokio::spawn(async move { runner.run().await }),
        }
    }

    /// A node on a world's store as it is, or behind a gate.
    pub(crate) async fn on(world: &World, key_value: Arc<dyn KeyValue>, config: Config) -> Self {
        Self::start(
            Parts {
                key_value,
                clock: world.clock(),
                entropy: world.entropy(),
            },
            config,
        )
        .await
    }

    pub(crate) async fn begin(&self) -> Call {
        self.begin_as(Begin::default()).await
    }

    pub(crate) async fn begin_named(&self, name: &str) -> Call {
        self.begin_as(Begin {
            id: Some(id(name)),
            ..Begin::default()
        })
        .await
    }

    pub(crate) async fn begin_as(&self, begin: Begin) -> Call {
        match self
            .engine
            .begin(begin)
            .await
            .expect("a begin is answered")
            .value
        {
            Begun::Open { id, attempt } => Call {
                id,
                attempt: Some(attempt),
            },
            Begun::Committed { id, .. } => panic!("{id:?} has committed"),
        }
    }

    pub(crate) async fn put(&self, call: &Call, name: &str, value: &str) {
        self.engine
            .put(call, key(name), bytes(value))
            .await
            .expect("a put is taken");
    }

    pub(crate) async fn try_get(&self, call: &Call, name: &str) -> Result<Option<String>, Error> {
        let shown = self.engine.get(call, &key(name)).await?;
        self.engine.externalize(shown.point).await?;
        Ok(shown
            .value
            .map(|value| String::from_utf8(value.to_vec()).expect("text")))
    }

    pub(crate) async fn get(&self, call: &Call, name: &str) -> Option<String> {
        self.try_get(call, name).await.expect("a get is answered")
    }

    pub(crate) async fn commit(&self, call: &Call) -> Committed {
        self.engine
            .commit(call)
            .await
            .expect("a commit is answered")
    }

    /// One transaction that writes all of these.
    pub(crate) async fn write(&self, writes: &[(&str, &str)]) -> Committed {
        let call = self.begin().await;
        for (name, value) in writes {
            self.put(&call, name, value).await;
        }
        self.commit(&call).await
    }

    /// Plain state.
    pub(crate) async fn now(&self, name: &str) -> Option<String> {
        let shown = self
            .engine
            .get_now(&key(name))
            .await
            .expect("a get is answered");
        self.engine
            .externalize(shown.point)
            .await
            .expect("the store keeps what it showed");
        shown
            .value
            .map(|value| String::from_utf8(value.to_vec()).expect("text"))
    }

    pub(crate) async fn status(&self, call: &Call) -> Outcome {
        self.engine
            .status(&call.id)
            .await
            .expect("a status is answered")
            .value
    }
}

pub(crate) fn id(name: &str) -> TransactionId {
    TransactionId::new(name.to_owned()).expect("a name")
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name.to_owned()).expect("short")
}

pub(crate) fn bytes(value: &str) -> Bytes {
    Bytes::from(value.to_owned())
}

pub(crate) fn finished(outcome: Outcome) -> Error {
    Error::TransactionFinished(outcome)
}

/// The number of stored versions of a key, decided or not.
pub(crate) async fn versions_at_rest(key_value: &dyn KeyValue, name: &str) -> usize {
    key_value
        .scan(&Buckets::default().versions(&key(name), 1_000))
        .await
        .expect("calm")
        .value
        .items
        .len()
}

/// The number of stored items of one partition.
pub(crate) async fn items_at_rest(key_value: &dyn KeyValue, partition: Vec<u8>) -> usize {
    key_value
        .scan(&Scan::partition(partition, 1_000))
        .await
        .expect("calm")
        .value
        .items
        .len()
}

pub(crate) fn parts(store: &Embedded) -> Parts {
    Parts {
        key_value: store.key_value(),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(SystemEntropy::default()),
    }
}

pub(crate) async fn open(directory: &Path) -> Embedded {
    let config = embedded::Config {
        journal_segment_bytes: 256 << 10,
        ..embedded::Config::new(directory)
    };
    Embedded::open(config).await.expect("the store opens")
}

/// Runs a test on the simulated provider.
pub(crate) fn in_virtual_time(test: impl AsyncFnOnce(World)) {
    simulated::run(test(World::new(7)));
}

/// Runs a test of one node on both providers.
pub(crate) fn on_every_provider(test: impl AsyncFn(Node)) {
    simulated::run(async {
        let world = World::new(7);
        test(Node::on(&world, world.key_value(), Config::default()).await).await;
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(async {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = open(directory.path()).await;
        test(Node::start(parts(&store), Config::default()).await).await;
        store.close().await;
    });
}
