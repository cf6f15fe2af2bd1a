//! N3 with several processes on one queue: a running process keeps its messages, a dead one loses
//! them. In virtual time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use in_process::{Functions, SystemEntropy};
use ports::{
    Event, Functions as _, Handler, Queue,
    functions::{Definition, Failure, FunctionOptions, Permit, QueueTrigger},
    queue::{Message, OnFailure, QueueOptions},
};
use simulated::{Options, World};
use tokio::sync::{Notify, Semaphore};

/// The visibility timeout after a process's last extension.
const HIDDEN: Duration = Duration::from_secs(5);

/// Counts its runs, which end when the test allows it.
#[derive(Debug, Default)]
struct Work {
    begun: AtomicUsize,
    begins: Notify,
    may_end: Notify,
}

#[derive(Debug)]
struct Worker(Arc<Work>);

#[async_trait]
impl Handler for Worker {
    async fn handle(&self, _: Event) -> Result<Bytes, Failure> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        self.0.begins.notify_one();
        self.0.may_end.notified().await;
        Ok(Bytes::new())
    }
}

/// The same with a bounded capacity that others share.
#[derive(Debug)]
struct Placed(Worker, Arc<Semaphore>);

#[async_trait]
impl Handler for Placed {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        self.0.handle(event).await
    }

    async fn permit(&self) -> Permit {
        let place = Arc::clone(&self.1).acquire_owned().await;
        Permit::holding(place.expect("it is not closed"))
    }
}

/// A process that receives from the queue, and its handler.
async fn process(queue: &Arc<dyn Queue>) -> (Functions, Arc<Work>) {
    let work = Arc::<Work>::default();
    (
        process_of(queue, Arc::new(Worker(Arc::clone(&work)))).await,
        work,
    )
}

async fn process_of(queue: &Arc<dyn Queue>, handler: Arc<dyn Handler>) -> Functions {
    let functions =
        Functions::over_shared_queue(Arc::clone(queue), HIDDEN, &SystemEntropy::default());
    // Longer than every test here, so that only the visibility timeout matters.
    let options = FunctionOptions {
        timeout: Duration::from_hours(1),
        ..FunctionOptions::default()
    };
    functions.register(Definition {
        name: "works".into(),
        options,
        handler,
    });
    functions
        .arm_queue(trigger())
        .await
        .expect("the trigger is armed");
    functions
}

fn trigger() -> QueueTrigger {
    QueueTrigger {
        queue: "work".into(),
        function: "works".into(),
        batch_messages_max: 1,
        groups_max: 1,
    }
}

async fn one_message(queue: &Arc<dyn Queue>) {
    let options = QueueOptions {
        on_failure: OnFailure::Block,
        ..QueueOptions::default()
    };
    queue
        .create("work", options)
        .await
        .expect("the queue is made");
    let message = Message {
        group: "group".into(),
        deduplication: None,
        body: Bytes::new(),
    };
    queue
        .send("work", vec![message])
        .await
        .expect("send answers");
}

fn begun(work: &Work) -> usize {
    work.begun.load(Ordering::SeqCst)
}

/// N3.
#[test]
fn a_message_stays_hidden_while_its_function_runs() {
    simulated::run(async {
        let world = World::new(1);
        let queue: Arc<dyn Queue> = world.queue();
        let (_one, first) = process_with_a_message(&queue).await;
        let (_other, second) = process(&queue).await;
        world.clock().sleep(HIDDEN * 10).await;
        assert_eq!(
            (begun(&first), begun(&second)),
            (1, 0),
            "it runs once, for as long as it takes"
        );
        first.may_end.notify_one();
        world.clock().sleep(HIDDEN * 2).await;
        assert_eq!(
            (begun(&first), begun(&second)),
            (1, 0),
            "the message is done"
        );
    });
}

async fn process_with_a_message(queue: &Arc<dyn Queue>) -> (Functions, Arc<Work>) {
    let (functions, work) = process_with_a_message_on_its_way(queue).await;
    work.begins.notified().await;
    (functions, work)
}

/// N3, Q3.
#[test]
fn another_process_receives_the_message_of_a_dead_one() {
    simulated::run(async {
        let world = World::new(2);
        let queue: Arc<dyn Queue> = world.queue();
        one_message(&queue).await;
        // A process that dies with a message: it received the message as triggers do.
        let hidden_ms = HIDDEN.as_millis() as u64;
        let taken = queue
            .receive_hidden("work", 1, Some(hidden_ms))
            .await
            .expect("receive answers");
        assert_eq!(taken.len(), 1);
        let (_functions, work) = process(&queue).await;
        world.clock().sleep(HIDDEN * 4 / 5).await;
        assert_eq!(begun(&work), 0, "the process may still live");
        world.clock().sleep(HIDDEN * 2 / 5).await;
        assert_eq!(begun(&work), 1);
    });
}

/// N3: a trigger is disarmed while its message is at any step towards the function.
#[test]
fn a_disarmed_trigger_leaves_no_message_hidden() {
    const LATENCY: Duration = Duration::from_millis(5);
    for after_ms in 0..50 {
        simulated::run(async {
            let world = World::with_options(
                1,
                Options {
                    latency: Some(LATENCY..=LATENCY),
                    ..Options::default()
                },
            );
            let queue: Arc<dyn Queue> = world.queue();
            let (functions, work) = process_with_a_message_on_its_way(&queue).await;
            work.may_end.notify_one();
            world.clock().sleep(Duration::from_millis(after_ms)).await;
            functions
                .disarm_queue("work")
                .await
                .expect("disarm_queue answers");
            world.clock().sleep(HIDDEN / 10).await;
            functions
                .arm_queue(trigger())
                .await
                .expect("the trigger is armed");
            world.clock().sleep(HIDDEN / 10).await;
            assert_eq!(
                begun(&work),
                1,
                "disarmed after {after_ms} ms: the message is delivered"
            );
        });
    }
}

/// N7: a wait for capacity that is not polled any more must not block later ones.
#[test]
fn a_disarmed_trigger_stops_waiting_for_capacity_while_its_invocations_run() {
    simulated::run(async {
        let world = World::new(3);
        let queue: Arc<dyn Queue> = world.queue();
        one_message(&queue).await;
        let places = Arc::new(Semaphore::new(2));
        let taken = Arc::clone(&places)
            .acquire_owned()
            .await
            .expect("it is not closed");
        let work = Arc::<Work>::default();
        let handler = Placed(Worker(Arc::clone(&work)), Arc::clone(&places));
        let functions = process_of(&queue, Arc::new(handler)).await;
        world.clock().sleep(HIDDEN / 10).await;
        assert_eq!(
            (begun(&work), places.available_permits()),
            (1, 0),
            "one runs, and there is no capacity for the next"
        );
        functions
            .disarm_queue("work")
            .await
            .expect("disarm_queue answers");
        world.clock().sleep(HIDDEN / 10).await;
        drop(taken);
        let next = places.acquire().now_or_never();
        assert!(next.is_some(), "the next waiter gets the permit");
        drop(next);
        work.may_end.notify_one();
        world.clock().sleep(HIDDEN / 10).await;
        assert_eq!(places.available_permits(), 2, "its invocation has ended");
    });
}

async fn process_with_a_message_on_its_way(queue: &Arc<dyn Queue>) -> (Functions, Arc<Work>) {
    one_message(queue).await;
    process(queue).await
}
