//! N3 where several processes take from one queue: who runs has the messages, who died gives them up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use in_process::Functions;
use ports::{
    Event, Functions as _, Handler,
    functions::{Definition, Failure, FunctionOptions, QueueTrigger},
    queue::{Message, OnFailure, QueueOptions, SharedQueue},
};
use redis_provider::{Config, Redis};
use tokio::sync::Notify;

use crate::{block_on, server};

/// How long messages stay hidden: short, since the tests wait for its end.
const HIDDEN: Duration = Duration::from_millis(300);
/// No test comes near this.
const PATIENCE: Duration = Duration::from_secs(30);

/// Says when it begins, and ends when it is told to.
#[derive(Debug, Default)]
struct Worker {
    begun: AtomicUsize,
    begins: Notify,
    may_end: Notify,
}

#[derive(Debug)]
struct Shared(Arc<Worker>);

#[async_trait]
impl Handler for Shared {
    async fn handle(&self, _: Event) -> Result<Bytes, Failure> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        self.0.begins.notify_one();
        self.0.may_end.notified().await;
        Ok(Bytes::new())
    }
}

/// A process that takes from the queue.
async fn process(queue: &SharedQueue, worker: &Arc<Worker>) -> Functions {
    let functions = Functions::beside_others(Arc::clone(queue), HIDDEN);
    let options = FunctionOptions::default();
    functions.register(Definition { name: "works", options, handler: Arc::new(Shared(Arc::clone(worker))) });
    let trigger = QueueTrigger { queue: "work".into(), function: "works".into(), batch_messages_max: 1 };
    functions.arm_queue(trigger).await.expect("the trigger is armed");
    functions
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

async fn open(namespace: &str, url: String) -> Redis {
    let config = Config { namespace: namespace.to_owned(), ..Config::single(url) };
    let store = Redis::open(&config).await.expect("the store opens");
    let options = QueueOptions { on_failure: OnFailure::Block, ..QueueOptions::default() };
    store.queue().create("work", options).await.expect("the queue is made");
    store
}

async fn send(queue: &SharedQueue, group: &'static str) {
    let message = Message { group: group.into(), deduplication: None, body: Bytes::new() };
    queue.send("work", vec![message]).await.expect("send answers");
}

/// Takes the next message, which has to be the forgotten one, for as long as functions do, and forgets it.
async fn forget_one(queue: &SharedQueue) {
    loop {
        let hidden_ms = HIDDEN.as_millis() as u64;
        let taken = queue.receive_hidden("work", 1, Some(hidden_ms)).await.expect("receive answers");
        if let Some(delivery) = taken.first() {
            assert_eq!(delivery.handle.group, "forgotten", "nothing else may be given");
            return;
        }
        queue.ready("work").await.expect("ready answers");
    }
}

/// N3.
#[test]
fn a_message_is_nobody_elses_while_its_function_runs() {
    let server = server::shared();
    block_on(async {
        let store = open("hiding-live", server.url()).await;
        let queue = store.queue();
        let (one, other) = (Arc::new(Worker::default()), Arc::new(Worker::default()));
        let first = process(&queue, &one).await;
        send(&queue, "slow").await;
        in_time("the first process to begin", one.begins.notified()).await;
        first.disarm_queue("work").await.expect("disarm answers");
        // A message that somebody took right after it and forgot comes back when its time is over: three times
        // in a row, and the slow one, were it hidden once only, would have come back too.
        send(&queue, "forgotten").await;
        for _ in 0..4 {
            in_time("the forgotten message", forget_one(&queue)).await;
        }
        let second = process(&queue, &other).await;
        in_time("the forgotten message", other.begins.notified()).await;
        assert_eq!(one.begun.load(Ordering::SeqCst) + other.begun.load(Ordering::SeqCst), 2);
        other.may_end.notify_one();
        one.may_end.notify_one();
        second.stop();
    });
}

/// N3, Q3.
#[test]
fn a_message_of_a_process_that_died_is_given_to_another() {
    let server = server::shared();
    let (one, other) = (Arc::new(Worker::default()), Arc::new(Worker::default()));
    let dying = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let dying = dying.expect("a runtime starts");
    dying.block_on(async {
        let store = open("hiding-dead", server.url()).await;
        let functions = process(&store.queue(), &one).await;
        send(&store.queue(), "group").await;
        in_time("the first process to begin", one.begins.notified()).await;
        std::mem::forget(functions);
    });
    dying.shutdown_background();
    block_on(async {
        let store = open("hiding-dead", server.url()).await;
        let functions = process(&store.queue(), &other).await;
        in_time("the second process to begin", other.begins.notified()).await;
        other.may_end.notify_one();
        functions.stop();
    });
}
