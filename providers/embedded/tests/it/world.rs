//! A store in its own directory, and short helpers for the tests.

use std::{
    future::Future,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use embedded::{Config, Embedded};
use ports::{
    Key, KeyValue, Update,
    key_value::{Action, Outcome, Transacted},
    queue::{Message, QueueOptions},
};
use tempfile::TempDir;

/// Small segments, so that tests use many of them and write few zeros.
pub(crate) const SEGMENT_BYTES: u64 = 256 << 10;

/// Runs a test with its own threads. The threads that opened a store end at once: the runtime would
/// keep them for seconds, and a test that waits for idleness would wait that long.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime
        .worker_threads(2)
        .thread_keep_alive(Duration::ZERO)
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(future)
}

/// A directory that is removed with the test.
pub(crate) fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// A configuration with small segments in `directory`.
pub(crate) fn config(directory: &Path) -> Config {
    Config {
        journal_segment_bytes: SEGMENT_BYTES,
        ..Config::new(directory)
    }
}

/// Opens the store in `directory`.
pub(crate) async fn open(directory: &Path) -> Embedded {
    Embedded::open(config(directory))
        .await
        .expect("the store opens")
}

/// The key of a test's item.
pub(crate) fn key(name: &str) -> Key {
    Key::new("test", name)
}

/// Sets an item's value.
pub(crate) fn put(name: &str, value: i64) -> Update {
    Update::modify(key(name), vec![Action::set_integer("value", value)])
}

/// Runs an update, which must succeed.
pub(crate) async fn done(store: &Arc<dyn KeyValue>, update: Update) -> ports::Receipt {
    let updated = store.update(update).await.expect("the update answers");
    assert!(matches!(updated.outcome, Outcome::Done(_)), "{updated:?}");
    updated.receipt
}

/// Runs an update and waits until it is durable.
pub(crate) async fn durably(store: &Arc<dyn KeyValue>, update: Update) -> ports::Receipt {
    let receipt = done(store, update).await;
    store
        .externalize(receipt.point)
        .await
        .expect("it becomes durable");
    receipt
}

/// The value set by [`put`].
pub(crate) async fn value(store: &Arc<dyn KeyValue>, name: &str) -> Option<i64> {
    store
        .get(&key(name))
        .await
        .expect("get answers")
        .value
        .and_then(|item| item.integer("value"))
}

/// Sets two items in one transaction.
pub(crate) async fn put_pair(
    store: &Arc<dyn KeyValue>,
    left: &str,
    right: &str,
    value: i64,
) -> ports::Receipt {
    match store
        .transact(vec![put(left, value), put(right, value)])
        .await
        .expect("transact answers")
    {
        Transacted::Done { receipt, .. } => receipt,
        conflict @ Transacted::Conflict { .. } => panic!("{conflict:?}"),
    }
}

/// A message without a deduplication id.
pub(crate) fn message(group: &str, body: impl Into<bytes::Bytes>) -> Message {
    Message {
        group: bytes::Bytes::copy_from_slice(group.as_bytes()),
        deduplication: None,
        body: body.into(),
    }
}

/// A queue that blocks on failure, with a long visibility timeout.
pub(crate) fn patient() -> QueueOptions {
    QueueOptions {
        visibility_timeout_ms: 60_000,
        ..QueueOptions::default()
    }
}

/// The longest wait for an effect of a background thread.
const PATIENCE: Duration = Duration::from_mins(2);

/// Waits until `holds` is true, by an effect of a background thread.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        let_others_run(what, started).await;
    }
}

/// Polls `look` until it finds an effect of a background thread.
pub(crate) async fn found<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        let_others_run(what, started).await;
    }
}

/// Yields between two polls. Fails a test that has waited too long.
async fn let_others_run(what: &str, started: Instant) {
    assert!(started.elapsed() < PATIENCE, "waited in vain: {what}");
    std::thread::yield_now();
    tokio::task::yield_now().await;
}

/// Waits until everything so far is durable.
pub(crate) async fn settle(store: &Arc<dyn KeyValue>) {
    store
        .externalize(store.point())
        .await
        .expect("everything becomes durable");
}
