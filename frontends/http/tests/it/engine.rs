//! The real service on the embedded provider, in a directory of its own.

use std::{ops::Deref, sync::Arc};

use embedded::{
    Embedded,
    storage::{DiskStorage, Storage},
};
use http_frontend::{Config, HttpPeers, Limits, Services, Status, VolumePeers};
use in_process::{SystemClock, SystemEntropy};
use ports::{
    faults::{Calm, FaultSchedule, FaultyKeyValue},
    queue::{Delivery, QueueOptions},
};
use tempfile::TempDir;
use tokio::task::JoinSet;
use transactions::{Destinations, Parts, Service, effects::queue_name, membership::Alone};

use crate::Fixture;

/// A running engine; it ends when dropped.
pub(crate) struct Engine {
    inner: transactions::Engine,
    _background: JoinSet<()>,
    provider: Embedded,
    _directory: TempDir,
}

impl Engine {
    pub(crate) async fn open() -> Self {
        Self::with(transactions::Config::default()).await
    }

    pub(crate) async fn with(config: transactions::Config) -> Self {
        Self::on(Arc::new(DiskStorage), config).await
    }

    /// On the test's own disk.
    pub(crate) async fn on(disk: Arc<dyn Storage>, config: transactions::Config) -> Self {
        Self::amid(Arc::new(Calm), disk, config).await
    }

    /// The same, with the test's own faults in its store.
    pub(crate) async fn amid(
        faults: Arc<dyn FaultSchedule>,
        disk: Arc<dyn Storage>,
        config: transactions::Config,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = embedded::Config {
            storage: disk,
            ..embedded::Config::new(directory.path())
        };
        let provider = Embedded::open(store).await.expect("a store");
        let clock = Arc::new(SystemClock);
        let key_value = Arc::new(FaultyKeyValue::new(
            provider.key_value(),
            faults,
            clock.clone(),
        ));
        let parts = Parts {
            key_value,
            clock,
            entropy: Arc::new(SystemEntropy::default()),
        };
        let destinations = Destinations {
            queue: Some(provider.queue()),
            functions: None,
        };
        Self::running(
            Service::builder(parts)
                .destinations(destinations)
                .build(config),
            provider,
            directory,
        )
        .await
    }

    /// As a node of a store that others could share, though none does. It is always a member.
    pub(crate) async fn among(config: transactions::Config) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let provider = Embedded::open(embedded::Config::new(directory.path()))
            .await
            .expect("a store");
        let parts = Parts {
            key_value: provider.key_value(),
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy::default()),
        };
        let peers = Arc::new(HttpPeers::new(None, None).expect("no token"));
        let service = Service::builder(parts)
            .among(Arc::new(Alone::default()), peers)
            .build(config);
        Self::running(service, provider, directory).await
    }

    async fn running(service: Service, provider: Embedded, directory: TempDir) -> Self {
        service.start().await.expect("the service starts");
        let engine = service.engine();
        let mut background = JoinSet::new();
        background.spawn(async move { service.run().await });
        Self {
            inner: engine,
            _background: background,
            provider,
            _directory: directory,
        }
    }

    /// A queue that clients may send to.
    pub(crate) async fn create_queue(&self, name: &str) {
        let created = self
            .provider
            .queue()
            .create(&queue_name(name), QueueOptions::default())
            .await;
        created.expect("a queue is made");
    }

    /// Takes the messages of a queue: the group, id and body of each.
    pub(crate) async fn receive(&self, name: &str) -> Vec<[String; 3]> {
        let (queue, name) = (self.provider.queue(), queue_name(name));
        let mut received = Vec::new();
        loop {
            let batch = queue.receive(&name, 100).await.expect("the queue answers");
            if batch.is_empty() {
                return received;
            }
            for Delivery {
                handle,
                deduplication,
                body,
                ..
            } in batch
            {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
                let id = deduplication.expect("every effect has an id");
                received.push([text(&handle.group), text(&id), text(&body)]);
                queue
                    .acknowledge(&name, &[handle])
                    .await
                    .expect("the queue answers");
            }
        }
    }

    /// The next `count` messages of a queue, waited for as consumers wait.
    pub(crate) async fn wait_for(&self, name: &str, count: usize) -> Vec<[String; 3]> {
        let mut received = Vec::new();
        while received.len() < count {
            self.provider
                .queue()
                .ready(&queue_name(name))
                .await
                .expect("the queue answers");
            received.extend(self.receive(name).await);
        }
        received
    }

    /// From now on the store returns errors.
    pub(crate) async fn close_store(&self) {
        self.provider.close().await;
    }

    /// A server for it, with the limits of the program.
    pub(crate) async fn serve(&self) -> Fixture {
        let value_bytes_max = transactions::Config::default().value_bytes_max;
        self.serve_within(Limits {
            value_bytes_max,
            ..Limits::default()
        })
        .await
    }

    pub(crate) async fn serve_within(&self, limits: Limits) -> Fixture {
        self.serve_with("127.0.0.1:0", None, limits).await
    }

    /// A server that requires a token.
    pub(crate) async fn serve_at(&self, address: &str, token: Option<&str>) -> Fixture {
        self.serve_with(address, token, Limits::default()).await
    }

    /// The parts of the engine.
    pub(crate) fn provider(&self) -> &Embedded {
        &self.provider
    }

    /// A server for it and for functions, with a token if there is one.
    pub(crate) async fn serve_functions(
        &self,
        address: &str,
        token: Option<&str>,
        functions: functions::Service,
    ) -> Fixture {
        let services = Arc::<Services>::default();
        services.provide_functions(functions);
        self.serve_services(address, token, Limits::default(), services)
            .await
    }

    /// A server for it that passes the connections of other servers for volumes on to `peers`.
    pub(crate) async fn serve_volume_peers(&self, peers: Arc<dyn VolumePeers>) -> Fixture {
        let services = Arc::<Services>::default();
        services.provide_volume_peers(peers);
        self.serve_services("127.0.0.1:0", None, Limits::default(), services)
            .await
    }

    async fn serve_with(&self, address: &str, token: Option<&str>, limits: Limits) -> Fixture {
        self.serve_services(address, token, limits, Arc::default())
            .await
    }

    async fn serve_services(
        &self,
        address: &str,
        token: Option<&str>,
        limits: Limits,
        services: Arc<Services>,
    ) -> Fixture {
        services.provide_transactions(self.inner.clone());
        let address = address.parse().expect("a literal address");
        let config = Config {
            address,
            token: token.map(str::to_owned),
            keys: None,
            tls: None,
            limits,
        };
        Fixture::with(config, Status::default(), services).await
    }
}

impl Deref for Engine {
    type Target = transactions::Engine;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}
