//! The real service on the embedded provider, in a directory of its own.

use std::{ops::Deref, sync::Arc};

use embedded::{
    Embedded,
    storage::{DiskStorage, Storage},
};
use http_frontend::{Config, Limits, Services, Status};
use in_process::{SystemClock, SystemEntropy};
use ports::faults::{Calm, FaultSchedule, FaultyKeyValue};
use tempfile::TempDir;
use tokio::task::JoinSet;
use transactions::{Parts, Service};

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

    /// On a disk of the test's own.
    pub(crate) async fn on(disk: Arc<dyn Storage>, config: transactions::Config) -> Self {
        Self::amid(Arc::new(Calm), disk, config).await
    }

    /// The same, with faults of the test's own in its store.
    pub(crate) async fn amid(
        faults: Arc<dyn FaultSchedule>,
        disk: Arc<dyn Storage>,
        config: transactions::Config,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = embedded::Config { storage: disk, ..embedded::Config::new(directory.path()) };
        let provider = Embedded::open(store).await.expect("a store");
        let clock = Arc::new(SystemClock::new());
        let key_value = Arc::new(FaultyKeyValue::new(provider.key_value(), faults, clock.clone()));
        let parts = Parts { key_value, clock, entropy: Arc::new(SystemEntropy::default()) };
        let service = Service::new(parts, config);
        service.start().await.expect("the service starts");
        let engine = service.engine();
        let mut background = JoinSet::new();
        background.spawn(async move { service.run().await });
        Self { inner: engine, _background: background, provider, _directory: directory }
    }

    /// From now on the store answers nothing.
    pub(crate) async fn close_store(&self) {
        self.provider.close().await;
    }

    /// A server before it, with the limits of the program.
    pub(crate) async fn serve(&self) -> Fixture {
        let value_bytes_max = transactions::Config::default().inline_bytes_max;
        self.serve_within(Limits { value_bytes_max, ..Limits::default() }).await
    }

    pub(crate) async fn serve_within(&self, limits: Limits) -> Fixture {
        let services = Arc::<Services>::default();
        services.provide_transactions(self.inner.clone());
        let address = "127.0.0.1:0".parse().expect("a literal address");
        Fixture::with(Config { address, token: None, limits }, Status::default(), services).await
    }
}

impl Deref for Engine {
    type Target = transactions::Engine;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}
