//! A task that calls the store in a loop lets other tasks of its thread run.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use ports::{
    Key, Update,
    key_value::Scan,
    queue::{Message, QueueOptions},
};

use crate::world::{directory, open};

/// Far more calls than a task's budget.
const CALLS_MAX: usize = 100_000;

/// Whether another task on the only thread ran before a task had made all its calls.
fn lets_others_run<F: Future<Output = ()> + Send>(call: impl Fn() -> F + Send + 'static) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(async {
        let others_ran = Arc::new(AtomicBool::default());
        let seen = Arc::clone(&others_ran);
        let busy = tokio::spawn(async move {
            for _ in 0..CALLS_MAX {
                if seen.load(Ordering::Relaxed) {
                    return true;
                }
                call().await;
            }
            false
        });
        tokio::spawn(async move { others_ran.store(true, Ordering::Relaxed) });
        busy.await.expect("it ends well")
    })
}

#[test]
fn a_loop_of_calls_that_never_wait_lets_others_run() {
    let directory = directory();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let store = runtime.block_on(open(directory.path()));
    let key_value = store.key_value();
    let key = Key::new("partition", "key");
    let reading = (key_value.clone(), key.clone());
    assert!(lets_others_run(move || {
        let (key_value, key) = reading.clone();
        async move { drop(key_value.get(&key).await.expect("it is read")) }
    }));
    let scanning = key_value.clone();
    assert!(lets_others_run(move || {
        let key_value = scanning.clone();
        async move {
            drop(
                key_value
                    .scan(&Scan::partition("partition", 1))
                    .await
                    .expect("it is read"),
            );
        }
    }));
    assert!(lets_others_run(move || {
        let (key_value, key) = (key_value.clone(), key.clone());
        async move {
            drop(
                key_value
                    .update(Update::put(key, Vec::new()))
                    .await
                    .expect("it is written"),
            );
        }
    }));
    runtime.block_on(store.close());
}

#[test]
fn a_loop_over_a_queue_lets_others_run() {
    let directory = directory();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let store = runtime.block_on(open(directory.path()));
    let queue = store.queue();
    let options = QueueOptions {
        attempts_max: u32::MAX,
        ..QueueOptions::default()
    };
    runtime
        .block_on(queue.create("queue", options))
        .expect("it is made");
    let message = Message {
        group: "group".into(),
        deduplication: None,
        body: "message".into(),
    };
    // A consumer that releases its message always has one to receive.
    runtime
        .block_on(queue.send("queue", vec![message.clone()]))
        .expect("it is sent");
    let taking = queue.clone();
    assert!(lets_others_run(move || {
        let queue = taking.clone();
        async move {
            queue.ready("queue").await.expect("there is one");
            for delivery in queue.receive("queue", 1).await.expect("it is given") {
                queue
                    .release("queue", &delivery.handle, 0, "again")
                    .await
                    .expect("it is taken back");
            }
        }
    }));
    // A worker that passes messages on both sends and acknowledges.
    let sending = queue.clone();
    assert!(lets_others_run(move || {
        let (queue, message) = (sending.clone(), message.clone());
        async move {
            queue
                .send("queue", vec![message])
                .await
                .expect("it is sent");
        }
    }));
    assert!(lets_others_run(move || {
        let queue = queue.clone();
        async move {
            queue
                .acknowledge("queue", &[])
                .await
                .expect("it is answered");
        }
    }));
    runtime.block_on(store.close());
}
