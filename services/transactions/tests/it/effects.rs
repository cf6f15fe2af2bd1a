//! T13: effects are sent after their commit, in order, under ids of their transaction; those of
//! aborted ones never are.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use in_process::{Functions, SystemClock};
use ports::{
    Clock, Event, Handler, Queue,
    faults::{Fault, FaultyQueue, Script},
    functions::{Definition, Failure, FunctionOptions},
    key_value::Scan,
    queue::QueueOptions,
};
use simulated::World;
use transactions::{
    Config, Destinations, Effect, Error, Parts,
    broken::Broken,
    effects::queue_name,
    layout::{self, Buckets},
    model::transaction_id::RANDOM_PREFIX,
    model::{Call, NodeId, Outcome},
};

use crate::house::{Node, bytes, finished, id, in_virtual_time, items_at_rest, open, parts};

/// The invocations of a function: id and payload.
type Runs = Arc<Mutex<Vec<(Option<Bytes>, Bytes)>>>;

#[derive(Debug)]
struct Notes(Runs);

#[async_trait]
impl Handler for Notes {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        let Event::Call { id, payload } = event else {
            panic!("only calls are sent, not {event:?}")
        };
        self.0.lock().expect("no panic").push((id, payload));
        Ok(Bytes::new())
    }
}

fn notes() -> (Definition, Runs) {
    let runs = Runs::default();
    let handler = Arc::new(Notes(Arc::clone(&runs)));
    (
        Definition {
            name: "notes".into(),
            options: FunctionOptions::default(),
            handler,
        },
        runs,
    )
}

fn message(queue: &str, body: &str) -> Effect {
    Effect::Message {
        queue: queue.to_owned(),
        group: bytes("group"),
        body: bytes(body),
    }
}

fn invocation(function: &str, payload: &str) -> Effect {
    Effect::Invocation {
        function: function.to_owned(),
        payload: bytes(payload),
    }
}

impl Node {
    async fn send(&self, call: &Call, effect: Effect) {
        self.engine
            .send(call, effect, None)
            .await
            .expect("an effect is taken");
    }
}

/// Takes the messages of `orders` and acknowledges them: ids and bodies.
async fn take(queue: &dyn Queue) -> Vec<(String, String)> {
    let mut taken = Vec::new();
    loop {
        let batch = queue
            .receive(&queue_name("orders"), 100)
            .await
            .expect("calm");
        if batch.is_empty() {
            return taken;
        }
        let handles: Vec<_> = batch
            .iter()
            .map(|delivery| delivery.handle.clone())
            .collect();
        queue
            .acknowledge(&queue_name("orders"), &handles)
            .await
            .expect("calm");
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).expect("text");
        taken.extend(batch.iter().map(|delivery| {
            let id = delivery
                .deduplication
                .as_ref()
                .expect("every effect has an id");
            (text(id), text(&delivery.body))
        }));
    }
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected
        .iter()
        .map(|(id, body)| ((*id).to_owned(), (*body).to_owned()))
        .collect()
}

/// Waits until the node has sent all effects.
async fn all_sent(node: &Node, clock: &dyn Clock) {
    while node.engine.figures().effects_unsent > 0 {
        clock.sleep(Duration::from_millis(1)).await;
    }
}

/// A committed, an aborted and an open transaction; small and large effects.
async fn effects_leave(node: &Node, queue: &dyn Queue, runs: &Runs, clock: &dyn Clock) {
    let (call, aborted, open) = (
        node.begin_named("order").await,
        node.begin().await,
        node.begin_named("open").await,
    );
    for call in [&aborted, &open] {
        node.send(call, message("orders", "never")).await;
        node.send(call, invocation("notes", "never")).await;
    }
    let large = "x".repeat(100_000);
    node.put(&call, "k", "v").await;
    for effect in [
        message("orders", "1"),
        invocation("notes", "2"),
        message("orders", &large),
    ] {
        node.send(&call, effect).await;
    }
    node.engine.abort(&aborted).await.expect("it is aborted");
    assert_eq!(
        (take(queue).await, node.engine.figures().effects_unsent),
        (Vec::new(), 0)
    );
    node.commit(&call).await;
    all_sent(node, clock).await;
    assert_eq!(
        take(queue).await,
        pairs(&[("order/0", "1"), ("order/2", &large)])
    );
    while runs.lock().expect("no panic").is_empty() {
        clock.sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(
        *runs.lock().expect("no panic"),
        [(Some(Bytes::from("order/1")), Bytes::from("2"))]
    );

    // Without a write, under a generated id.
    let bare = node.begin().await;
    node.send(&bare, message("orders", "bare")).await;
    node.commit(&bare).await;
    node.commit(&bare).await;
    all_sent(node, clock).await;
    let given = format!("{}/0", bare.id.as_str().expect("a given id is text"));
    assert_eq!(take(queue).await, pairs(&[(&given, "bare")]));
    node.engine.abort(&open).await.expect("it is aborted");
    assert_eq!(
        (
            node.engine.figures().effects_sent,
            node.engine.figures().buffered_bytes
        ),
        (4, 0)
    );
}

/// T13.
#[test]
fn effects_leave_after_their_commit_and_those_of_aborted_ones_never() {
    in_virtual_time(async |world| {
        let (definition, runs) = notes();
        world.functions().register(definition);
        let node = on(&world, Config::default()).await;
        effects_leave(&node, &*world.queue(), &runs, &*world.clock()).await;
        nothing_is_left(&world).await;
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(async {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = open(directory.path()).await;
        let (definition, runs) = notes();
        let functions = Arc::new(Functions::new(store.queue()));
        functions.register(definition);
        store
            .queue()
            .create(&queue_name("orders"), QueueOptions::default())
            .await
            .expect("calm");
        let destinations = Destinations {
            queue: Some(store.queue()),
            functions: Some(Arc::clone(&functions) as Arc<_>),
        };
        let node = Node::sending(parts(&store), destinations, Config::default()).await;
        effects_leave(&node, &*store.queue(), &runs, &SystemClock).await;
        drop(node);
        functions.stop();
        store.close().await;
    });
}

/// A node on `world`'s own queues, of which one is for clients, and functions.
async fn on(world: &World, config: Config) -> Node {
    on_queue(world, world.queue(), config).await
}

async fn on_queue(world: &World, queue: Arc<dyn Queue>, config: Config) -> Node {
    world
        .queue()
        .create(&queue_name("orders"), QueueOptions::default())
        .await
        .expect("calm");
    let parts = Parts {
        key_value: world.key_value(),
        clock: world.clock(),
        entropy: world.entropy(),
    };
    let destinations = Destinations {
        queue: Some(queue),
        functions: Some(world.functions()),
    };
    Node::sending(parts, destinations, config).await
}

/// Waits until the store holds no effects any more.
async fn nothing_is_left(world: &World) {
    for _ in 0..1_000 {
        if at_rest(world).await == 0 {
            return;
        }
        world.clock().sleep(Duration::from_millis(1)).await;
    }
    panic!("{} items of effects are left", at_rest(world).await);
}

/// The number of items of effects in the store.
async fn at_rest(world: &World) -> usize {
    let mut count = 0;
    for node in 1..10 {
        count += items_at_rest(&*world.key_value(), layout::outbox(NodeId(node)).to_vec()).await;
        for sequence in 1..10 {
            let attempt = transactions::model::Attempt {
                node: NodeId(node),
                sequence,
            };
            let parts = layout::effect(attempt, 0);
            count += items_at_rest(&*world.key_value(), parts.partition().to_vec()).await;
        }
    }
    count
}

/// T15.
#[test]
fn effects_that_cannot_leave_are_refused_at_the_call() {
    in_virtual_time(async |world| {
        let (definition, _) = notes();
        world.functions().register(definition);
        world
            .queue()
            .create("internal", QueueOptions::default())
            .await
            .expect("calm");
        let config = Config {
            effects_max: 2,
            effect_bytes_max: 10,
            unsent_max: 1,
            ..Config::default()
        };
        let node = on(&world, config).await;
        let call = node.begin().await;
        let refused = async |effect| {
            node.engine
                .send(&call, effect, None)
                .await
                .expect_err("it is refused")
        };
        assert_eq!(refused(message("nowhere", "1")).await, Error::NoSuchQueue);
        assert_eq!(
            refused(message("internal", "1")).await,
            Error::NoSuchQueue,
            "it is not the clients'"
        );
        assert_eq!(
            refused(invocation("nobody", "1")).await,
            Error::NoSuchFunction
        );
        assert!(matches!(
            refused(message("orders", "eleven long")).await,
            Error::TooLarge(_)
        ));
        assert!(matches!(
            refused(invocation("notes", "eleven long")).await,
            Error::TooLarge(_)
        ));
        let group = bytes(&"g".repeat(129));
        let long_group = Effect::Message {
            queue: "orders".to_owned(),
            group,
            body: Bytes::new(),
        };
        assert!(matches!(refused(long_group).await, Error::Invalid(_)));
        assert!(matches!(refused(message("", "1")).await, Error::Invalid(_)));
        node.send(&call, message("orders", "1")).await;
        node.engine
            .send(&call, message("orders", "1"), Some(0))
            .await
            .expect("a repeat is taken for one");
        assert!(matches!(
            node.engine
                .send(&call, message("orders", "2"), Some(0))
                .await,
            Err(Error::Invalid(_))
        ));
        node.send(&call, invocation("notes", "2")).await;
        assert!(matches!(
            refused(message("orders", "3")).await,
            Error::TooLarge(_)
        ));
        node.commit(&call).await;
        assert_eq!(
            refused(message("orders", "4")).await,
            finished(Outcome::Committed)
        );
        all_sent(&node, &*world.clock()).await;
        assert_eq!(take(&*world.queue()).await.len(), 1);

        let nowhere = Node::on(&world, world.key_value(), Config::default()).await;
        let call = nowhere.begin().await;
        assert_eq!(
            nowhere
                .engine
                .send(&call, message("orders", "1"), None)
                .await,
            Err(Error::NoSuchQueue)
        );
        let sent = nowhere
            .engine
            .send(&call, invocation("notes", "1"), None)
            .await;
        assert_eq!(sent, Err(Error::NoSuchFunction));
    });
}

/// A queue that refuses its first `count` sends, not counting the check for its existence.
fn failing(world: &World, count: usize) -> Arc<dyn Queue> {
    let faults = std::iter::once(Fault::None).chain(vec![Fault::RefuseBefore; count]);
    Arc::new(FaultyQueue::new(
        world.queue(),
        Arc::new(Script::of("queue.send", faults)),
        world.clock(),
    ))
}

/// T13, P1: the outbox is authoritative.
#[test]
fn effects_wait_for_a_destination_that_fails_and_are_shown() {
    in_virtual_time(async |world| {
        let config = Config {
            unsent_max: 1,
            ..Config::default()
        };
        let node = on_queue(&world, failing(&world, 3), config).await;
        let (call, other) = (node.begin_named("order").await, node.begin().await);
        node.send(&call, message("orders", "1")).await;
        node.send(&call, message("orders", "2")).await;
        node.commit(&call).await;
        while node.engine.figures().effects_failing == 0 {
            world.clock().sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(node.engine.figures().effects_unsent, 2);
        let refused = node.engine.send(&other, message("orders", "3"), None).await;
        assert_eq!(
            refused,
            Err(Error::TooMuchBuffered),
            "as many are unsent as the node bears"
        );
        all_sent(&node, &*world.clock()).await;
        assert_eq!(
            take(&*world.queue()).await,
            pairs(&[("order/0", "1"), ("order/1", "2")])
        );
        nothing_is_left(&world).await;
        assert_eq!(node.engine.figures().effects_failing, 0);
        node.send(&other, message("orders", "3")).await;
    });
}

/// The messages that a node could not send, and its successor sent.
async fn sent_by_the_next(world: &World, variant: Option<Broken>) -> Vec<(String, String)> {
    let node = on_queue(
        world,
        failing(world, usize::from(u16::MAX)),
        Config::default(),
    )
    .await;
    let calls = [
        node.begin_named("order").await,
        node.begin_named("undone").await,
    ];
    for call in &calls {
        node.send(call, message("orders", "1")).await;
        node.send(call, message("orders", &"x".repeat(100_000)))
            .await;
    }
    node.commit(&calls[0]).await;
    drop(node);
    let next = on(
        world,
        Config {
            mutant: variant.into(),
            ..Config::default()
        },
    )
    .await;
    all_sent(&next, &*world.clock()).await;
    take(&*world.queue()).await
}

/// T13: the successor of a dead node sends its unsent effects.
#[test]
fn effects_of_a_dead_node_are_sent_by_the_next() {
    let large = "x".repeat(100_000);
    in_virtual_time(async |world| {
        assert_eq!(
            sent_by_the_next(&world, None).await,
            pairs(&[("order/0", "1"), ("order/1", &large)])
        );
        nothing_is_left(&world).await;
        let row = world
            .key_value()
            .get(&layout::node(NodeId(1)))
            .await
            .expect("calm")
            .value;
        assert_eq!(
            row.and_then(|row| row.integer("sent")),
            Some(1),
            "no row has to be scanned again"
        );
    });
    in_virtual_time(async |world| {
        assert_eq!(
            sent_by_the_next(&world, Some(Broken::ForgetsUnsent)).await,
            [],
            "the test would notice"
        );
    });
}

/// T4, T13: a client id that is begun anew has the effects of the attempt that commits.
#[test]
fn effects_are_of_the_attempt_that_commits() {
    in_virtual_time(async |world| {
        let node = on(&world, Config::default()).await;
        let first = node.begin_named("order").await;
        node.send(&first, message("orders", "first")).await;
        let second = node.begin_named("order").await;
        let late = node
            .engine
            .send(&first, message("orders", "late"), None)
            .await;
        assert_eq!(late, Err(finished(Outcome::BegunAnew)));
        node.send(&second, message("orders", "second")).await;
        node.commit(&second).await;
        all_sent(&node, &*world.clock()).await;
        assert_eq!(take(&*world.queue()).await, pairs(&[("order/0", "second")]));
        assert_eq!(
            node.engine
                .status(&id("order"))
                .await
                .expect("it is answered")
                .value,
            Outcome::Committed
        );
    });
}

/// T13, T9: the same holds for random ids, whose windows are minutes: each is noted once, however
/// often it was to be dropped.
#[test]
fn random_names_with_effects_that_wait_are_noted_once() {
    in_virtual_time(async |world| {
        let store = world.key_value();
        let node = on_queue(&world, failing(&world, 100_000), Config::default()).await;
        for number in 0..70 {
            let call = node
                .begin_named(&format!("{RANDOM_PREFIX}{number:032x}"))
                .await;
            node.send(&call, message("orders", "late")).await;
            node.commit(&call).await;
        }
        world.clock().sleep(Duration::from_hours(1)).await;
        assert_eq!(node.engine.figures().effects_unsent, 70);
        assert_eq!(node.engine.figures().kept_names, 70);
        let mut noted = 0;
        let periods = store
            .scan(&Scan::partition(layout::PERIODS, 100))
            .await
            .expect("calm")
            .value;
        for (sort, _) in periods.items {
            let end = layout::period_of(&sort).expect("a period");
            noted += items_at_rest(&*store, layout::kept_names(end).to_vec()).await;
        }
        assert_eq!(noted, 70);
    });
}

/// T13, T9: the row of a commit outlives every window while its effects are unsent, because a
/// successor learns from it that they are to be sent; then it is dropped.
#[test]
fn effects_that_wait_for_days_are_sent_by_the_next_node() {
    in_virtual_time(async |world| {
        let node = on_queue(&world, failing(&world, 100_000), Config::default()).await;
        let call = node.begin().await;
        node.send(&call, message("orders", "late")).await;
        node.commit(&call).await;
        world.clock().sleep(Duration::from_hours(24 * 9)).await;
        assert_eq!(node.engine.figures().effects_unsent, 1);
        drop(node);
        let next = on(&world, Config::default()).await;
        all_sent(&next, &*world.clock()).await;
        let id = format!("{}/0", call.id.as_str().expect("a given id is text"));
        assert_eq!(take(&*world.queue()).await, pairs(&[(&id, "late")]));
        world.clock().sleep(Duration::from_hours(24 * 9)).await;
        let row = Buckets::default().decision(&call.id);
        assert_eq!(
            items_at_rest(&*world.key_value(), row.partition().to_vec()).await,
            0
        );
    });
}
