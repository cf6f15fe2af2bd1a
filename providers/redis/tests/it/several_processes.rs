//! Several processes on one store, each with its own connections and pipelines.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ports::{
    DurabilityPoint, KeyValue, Update,
    key_value::{Action, Outcome},
    queue::{Message, QueueOptions},
};
use redis_provider::Config;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpStream,
};

use crate::{
    cluster,
    fixture::{block_on, count, key, namespace, open},
    server::{Persistence, Server, WAIT_MAX, shared},
};

const STORES: usize = 4;
const WRITERS: usize = 16;
const ROUNDS: usize = 8;

async fn add(store: Arc<dyn KeyValue>) -> (Vec<i64>, DurabilityPoint) {
    let (mut seen, mut last) = (Vec::new(), DurabilityPoint::DURABLE);
    for _ in 0..ROUNDS {
        let add = Update::modify(key("n"), vec![Action::Add("n".into(), 1)]);
        let updated = store.update(add).await.expect("no writer starves");
        let Outcome::Done(Some(item)) = updated.outcome else {
            panic!("it has no condition")
        };
        seen.push(item.integer("n").expect("it is a counter"));
        last = updated.receipt.point;
    }
    (seen, last)
}

async fn count_together(config: &Config) {
    let mut writers = Vec::new();
    let mut stores = Vec::new();
    for _ in 0..STORES {
        let store = open(config).await.key_value();
        writers.extend((0..WRITERS).map(|_| tokio::spawn(add(Arc::clone(&store)))));
        stores.push(store);
    }
    let started = Instant::now();
    let (mut seen, mut points) = (Vec::new(), Vec::new());
    for writer in writers {
        let (counted, last) = writer.await.expect("the writer ends");
        seen.extend(counted);
        points.push(last);
    }
    println!(
        "{} additions to one counter took {:?}",
        seen.len(),
        started.elapsed()
    );
    seen.sort_unstable();
    let total = (STORES * WRITERS * ROUNDS) as i64;
    assert_eq!(
        seen,
        (1..=total).collect::<Vec<_>>(),
        "each addition is seen by itself"
    );
    for store in &stores {
        assert_eq!(count(store, "n").await, total);
        for point in &points {
            store
                .externalize(*point)
                .await
                .expect("a point means the same to all");
        }
    }
}

/// K4, D3.
#[test]
fn writers_of_several_processes_count_exactly() {
    let server = shared();
    block_on(count_together(&Config {
        namespace: namespace(),
        ..Config::single(server.url())
    }));
}

/// K4.
#[test]
fn writers_of_several_processes_count_exactly_in_a_cluster() {
    let cluster = cluster::shared();
    let acknowledged = redis_provider::Acknowledged::Replicas(1);
    block_on(count_together(&Config {
        namespace: namespace(),
        acknowledged,
        ..Config::cluster(cluster.urls())
    }));
}

/// The commands that a server executes from now on.
async fn monitor(server: &Server) -> Lines<BufReader<TcpStream>> {
    let mut connection = TcpStream::connect(("127.0.0.1", server.port()))
        .await
        .expect("the server listens");
    connection
        .write_all(b"MONITOR\r\n")
        .await
        .expect("the server reads");
    let mut executed = BufReader::new(connection).lines();
    assert_eq!(
        executed
            .next_line()
            .await
            .expect("the server answers")
            .as_deref(),
        Some("+OK")
    );
    executed
}

/// Returns once a server has executed a script on a key in `namespace`.
async fn script(mut executed: Lines<BufReader<TcpStream>>, namespace: &str) {
    while let Some(line) = executed.next_line().await.expect("the server lives") {
        if line.contains(namespace) && line.to_ascii_uppercase().contains("\"EVALSHA\"") {
            return;
        }
    }
    panic!("the server ended the connection");
}

async fn wakes(config: &Config, servers: [&Server; 2]) {
    // Far longer than this test: only a wake-up message can wake the consumer.
    let config = Config {
        poll_interval: Duration::from_hours(1),
        ..config.clone()
    };
    let (sender, consumer) = (open(&config).await.queue(), open(&config).await.queue());
    sender
        .create("queue", QueueOptions::default())
        .await
        .expect("create answers");
    // From the second round on, the consumer is certainly subscribed.
    for _ in 0..4 {
        let [one, other] = [monitor(servers[0]).await, monitor(servers[1]).await];
        let waiting = Arc::clone(&consumer);
        let waits = tokio::spawn(async move { waiting.ready("queue").await });
        // The first poll finds nothing; the consumer then waits for the wake-up message.
        tokio::select! {
            () = script(one, &config.namespace) => {}
            () = script(other, &config.namespace) => {}
        }
        let message = Message {
            group: Bytes::from_static(b"g"),
            deduplication: None,
            body: Bytes::new(),
        };
        sender
            .send("queue", vec![message])
            .await
            .expect("send answers");
        let woken = tokio::time::timeout(WAIT_MAX, waits)
            .await
            .expect("timed out: no message woke the consumer");
        woken.expect("the consumer ends").expect("ready answers");
        let taken = consumer
            .receive("queue", 10)
            .await
            .expect("receive answers");
        let handles: Vec<_> = taken.into_iter().map(|delivery| delivery.handle).collect();
        assert_eq!(handles.len(), 1);
        consumer
            .acknowledge("queue", &handles)
            .await
            .expect("acknowledge answers");
    }
}

/// Q3.
#[test]
fn a_message_from_another_process_wakes_a_consumer() {
    let server = shared();
    let config = Config {
        namespace: namespace(),
        ..Config::single(server.url())
    };
    block_on(wakes(&config, [&server, &server]));
}

/// Q3.
#[test]
fn a_message_from_another_process_wakes_a_consumer_in_a_cluster() {
    let cluster = cluster::shared();
    let acknowledged = redis_provider::Acknowledged::Replicas(1);
    let config = Config {
        namespace: namespace(),
        acknowledged,
        ..Config::cluster(cluster.urls())
    };
    let [one, other] = cluster.masters();
    block_on(wakes(&config, [one, other]));
}

/// K2, K9: a version alone would not distinguish the new item from the old one.
#[test]
fn an_item_that_another_process_recreated_is_not_taken_for_the_old_one() {
    let server = shared();
    block_on(async {
        let config = Config {
            namespace: namespace(),
            ..Config::single(server.url())
        };
        let (store, other) = (
            open(&config).await.key_value(),
            open(&config).await.key_value(),
        );
        let add = |amount| Update::modify(key("n"), vec![Action::Add("n".into(), amount)]);
        store.update(add(1)).await.expect("update answers");
        other
            .update(Update::delete(key("n")))
            .await
            .expect("update answers");
        other.update(add(100)).await.expect("update answers");
        store.update(add(1)).await.expect("update answers");
        assert_eq!(count(&other, "n").await, 101);
    });
}

/// P3: a process that opens later disturbs no other, unless the server restarted.
#[test]
fn a_process_that_opens_beside_others_joins_their_incarnation() {
    let server = Server::start(Persistence::Always);
    block_on(async {
        let config = Config::single(server.url());
        let (one, other) = (
            open(&config).await.key_value(),
            open(&config).await.key_value(),
        );
        assert_eq!(one.point().incarnation, other.point().incarnation);
        let receipt = one
            .update(Update::put(key("n"), vec![]))
            .await
            .expect("update answers")
            .receipt;
        assert_eq!(receipt.point.incarnation, other.point().incarnation);
        other
            .externalize(receipt.point)
            .await
            .expect("the other knows it too");
        server.kill();
        server.restart();
        let third = open(&config).await.key_value();
        assert!(third.point().incarnation > receipt.point.incarnation);
        third.externalize(receipt.point).await.expect("it survived");
    });
}

/// P3: a process that notices a restart late joins the incarnation that another process has begun,
/// and does not disturb it.
#[test]
fn a_process_that_notices_a_restart_late_joins_the_new_incarnation() {
    let server = Server::start(Persistence::Always);
    block_on(async {
        let config = Config::single(server.url());
        let (one, late) = (
            open(&config).await.key_value(),
            open(&config).await.key_value(),
        );
        let write = async |store: &Arc<dyn KeyValue>, name| {
            let updated = store
                .update(Update::put(key(name), vec![]))
                .await
                .expect("update answers");
            updated.receipt.point
        };
        let before = write(&late, "before").await;
        for store in [&one, &late] {
            store
                .externalize(before)
                .await
                .expect("the server keeps it");
        }
        server.kill();
        server.restart();
        // The first call after a restart finds the broken connection. A read does so without side
        // effects.
        for store in [&one, &late] {
            store
                .get(&key("nothing"))
                .await
                .expect("a read connects again");
        }
        let first = write(&one, "first").await;
        assert!(
            first.incarnation > before.incarnation,
            "{before:?} {first:?}"
        );
        let second = write(&late, "second").await;
        assert_eq!(
            second.incarnation, first.incarnation,
            "{first:?} {second:?}"
        );
        let third = write(&one, "third").await;
        assert_eq!(third.incarnation, first.incarnation, "{first:?} {third:?}");
        for (store, point) in [
            (&one, second),
            (&late, first),
            (&late, before),
            (&one, third),
        ] {
            store.externalize(point).await.expect("nothing was lost");
        }
    });
}
