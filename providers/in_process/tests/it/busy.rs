//! A trigger that keeps its thread busy has one of its own, until it is calm again.

use std::{
    hint::spin_loop,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use in_process::Functions;
use ports::{
    Event, Functions as _, Handler, Queue,
    functions::{Definition, Failure, FunctionOptions, QueueTrigger},
    queue::{Message, QueueOptions},
};
use simulated::World;
use tokio::sync::Notify;

use crate::block_on;

const PATIENCE: Duration = Duration::from_mins(2);

/// Uses its thread for a while if it is busy, and tells which thread that was.
#[derive(Debug, Default)]
struct Worker {
    is_busy: AtomicBool,
    thread: Mutex<Option<String>>,
    worked: Notify,
}

/// Uses the caller's thread.
fn use_thread() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(2) {
        spin_loop();
    }
}

#[async_trait]
impl Handler for Worker {
    async fn handle(&self, _: Event) -> Result<Bytes, Failure> {
        if self.is_busy.load(Ordering::SeqCst) {
            use_thread();
        }
        let name = thread::current().name().map(str::to_owned);
        *self.thread.lock().expect("no panic while it is locked") = name;
        self.worked.notify_one();
        Ok(Bytes::new())
    }
}

/// Sends one message after the other until the function runs on its own thread or not. A message
/// follows another one at once if the function is busy, and after a while if it is calm.
async fn send_until(queue: &dyn Queue, worker: &Worker, is_busy: bool) {
    worker.is_busy.store(is_busy, Ordering::SeqCst);
    let begun = Instant::now();
    let is_on_its_own = || {
        let thread = worker.thread.lock().expect("no panic while it is locked");
        thread.as_deref() == Some("functions")
    };
    while is_on_its_own() != is_busy {
        assert!(begun.elapsed() < PATIENCE, "it stays where it is");
        let message = Message {
            group: "one".into(),
            deduplication: None,
            body: Bytes::new(),
        };
        queue.send("work", vec![message]).await.expect("it is sent");
        worker.worked.notified().await;
        if !is_busy {
            use_thread();
        }
    }
}

#[test]
fn a_busy_trigger_has_a_thread_until_it_is_calm() {
    block_on(async {
        let queue: Arc<dyn Queue> = World::new(1).queue();
        let created = queue.create("work", QueueOptions::default()).await;
        created.expect("the queue is made");
        let worker = Arc::<Worker>::default();
        let functions = Functions::with_busy_thread(queue.clone());
        functions.register(Definition {
            name: "works".into(),
            options: FunctionOptions::default(),
            handler: worker.clone(),
        });
        let trigger = QueueTrigger {
            queue: "work".into(),
            function: "works".into(),
            batch_messages_max: 1,
        };
        let armed = functions.arm_queue(trigger).await;
        armed.expect("the trigger is armed");
        for is_busy in [true, false, true] {
            send_until(&*queue, &worker, is_busy).await;
        }
        functions.stop();
    });
}
