//! The test fixture: a runtime, a store and short helpers.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ports::{Key, KeyValue};
use redis_provider::{Config, Redis};

/// Runs a test on its own threads.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(future)
}

/// A namespace that no other store uses.
pub(crate) fn namespace() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Opens a store.
pub(crate) async fn open(config: &Config) -> Redis {
    Redis::open(config).await.expect("the store opens")
}

/// The key of a test's item.
pub(crate) fn key(name: &str) -> Key {
    Key::new("test", name)
}

/// The integer `n` of an item.
pub(crate) async fn value(store: &Arc<dyn KeyValue>, name: &str) -> Option<i64> {
    store
        .get(&key(name))
        .await
        .expect("get answers")
        .value
        .and_then(|item| item.integer("n"))
}

/// The same; zero if the item is absent.
pub(crate) async fn count(store: &Arc<dyn KeyValue>, name: &str) -> i64 {
    value(store, name).await.unwrap_or(0)
}
