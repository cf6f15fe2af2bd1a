//! The contracts of the ports, run against the embedded provider.

use std::sync::{Arc, atomic::Ordering};

use async_trait::async_trait;
use embedded::{Config, Embedded};
use futures_util::future::BoxFuture;
use in_process::SystemClock;
use ports::{
    Clock,
    contract::{self, Case},
    key_value::SharedKeyValue,
    objects::ObjectStore,
    queue::{SharedQueue, SharedQueueAdmin},
};
use tempfile::TempDir;

use crate::{
    faulty::{Faults, FaultyStorage},
    world::{block_on, config, directory, open},
};

fn spawn(task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
    let task = tokio::spawn(task);
    Box::pin(async move { task.await.expect("the task ends well") })
}

fn with_store<F: Future<Output = ()>>(run: impl FnOnce(Arc<Embedded>) -> F) {
    let directory = directory();
    with_configured_store(config(directory.path()), run);
}

fn with_configured_store<F: Future<Output = ()>>(
    config: Config,
    run: impl FnOnce(Arc<Embedded>) -> F,
) {
    block_on(async {
        let store = Arc::new(Embedded::open(config).await.expect("the store opens"));
        run(Arc::clone(&store)).await;
        store.close().await;
    });
}

/// The disk, which a case may fill.
#[derive(Debug)]
struct Disk(Arc<Faults>);

impl contract::key_value::Disk for Disk {
    fn fill(&self) {
        self.0.capacity.store(self.0.used(), Ordering::SeqCst);
    }

    fn empty(&self) {
        self.0.capacity.store(0, Ordering::SeqCst);
    }
}

fn key_value(case: Case<contract::key_value::Subject>) {
    let directory = directory();
    let faults = Arc::new(Faults::default());
    let storage = Arc::new(FaultyStorage(Arc::clone(&faults)));
    with_configured_store(
        Config {
            storage,
            ..config(directory.path())
        },
        |store| async move {
            let subject =
                contract::key_value::Subject::new(store.key_value(), Arc::new(SystemClock));
            case.run(subject.spawning(spawn).on(Arc::new(Disk(faults))))
                .await;
        },
    );
}

mod key_value {
    ports::key_value_contract!(super::key_value);
}

/// The one case that waits for the end of the deduplication window has a short window. The others
/// must not reach its end.
const WAITS_FOR_THE_WINDOW: &str = "a_deduplication_id_is_forgotten_when_its_window_is_over";
const WINDOW_MS: u64 = 400;
/// Few enough that a case can exceed the bound.
const DEAD_LETTERS_MAX: usize = 20;

fn queue(case: Case<contract::queue::Subject>) {
    let directory = directory();
    let mut config = config(directory.path());
    config.queue_limits.dead_letters_max = DEAD_LETTERS_MAX;
    if case.name == WAITS_FOR_THE_WINDOW {
        config.queue_limits.deduplication_window_ms = WINDOW_MS;
    }
    with_configured_store(config, |store| async move {
        let subject = contract::queue::Subject::new(
            store.queue(),
            store.queue_admin(),
            Arc::new(SystemClock),
        );
        case.run(subject.spawning(spawn).beside(store.key_value()))
            .await;
    });
}

mod queue {
    ports::queue_contract!(super::queue);
}

fn objects(case: Case<contract::objects::Subject>) {
    with_store(|store| async move {
        case.run(
            contract::objects::Subject::new(store.objects(), embedded::OBJECT_LIMITS)
                .spawning(spawn),
        )
        .await;
    });
}

mod objects {
    ports::objects_contract!(super::objects);
}

fn objects_apart(case: Case<contract::objects::Subject>) {
    let directory = directory();
    block_on(async {
        let opened = embedded::open_objects(directory.path().join("made/for/them")).await;
        let objects = opened.expect("they open").objects();
        case.run(contract::objects::Subject::new(objects, embedded::OBJECT_LIMITS).spawning(spawn))
            .await;
    });
}

mod objects_apart {
    ports::objects_contract!(super::objects_apart);
}

/// A store that crashes when it is dropped, so that unwritten changes are lost.
#[derive(Debug)]
struct Crashing {
    store: Embedded,
    directory: TempDir,
}

#[async_trait]
impl contract::durability::Crashable for Crashing {
    fn key_value(&self) -> SharedKeyValue {
        self.store.key_value()
    }

    fn queue(&self) -> Option<SharedQueue> {
        Some(self.store.queue())
    }
    fn queue_admin(&self) -> Option<SharedQueueAdmin> {
        Some(self.store.queue_admin())
    }

    fn objects(&self) -> Option<Arc<dyn ObjectStore>> {
        Some(self.store.objects())
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    async fn crash_and_reopen(self: Box<Self>) -> contract::durability::Subject {
        let Self { store, directory } = *self;
        drop(store);
        let store = open(directory.path()).await;
        Box::new(Self { store, directory })
    }
}

fn durability(case: Case<contract::durability::Subject>) {
    let directory = directory();
    block_on(async {
        let store = open(directory.path()).await;
        case.run(Box::new(Crashing { store, directory })).await;
    });
}

mod durability {
    ports::durability_contract!(super::durability);
}
