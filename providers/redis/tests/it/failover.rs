//! Replicas: an acknowledged write survives a failover, and an open store follows it.

use std::{sync::Arc, time::Duration};

use ports::{
    ErrorKind, Key, KeyValue, Update,
    key_value::{Action, Scan},
};
use redis_provider::{Acknowledged, Config};

use crate::{
    cluster::Cluster,
    fixture::{block_on, count, key, open, value},
    server::{Persistence, Server, WAIT_MAX, eventually},
};

/// Where no replica confirms.
const IN_VAIN: Duration = Duration::from_secs(2);

fn replicated(config: Config, durability_timeout: Duration) -> Config {
    Config {
        acknowledged: Acknowledged::Replicas(1),
        durability_timeout,
        ..config
    }
}

fn set(place: Key, n: i64) -> Update {
    Update::modify(place, vec![Action::set_integer("n", n)])
}

/// D1: one server with a replica.
#[test]
fn a_write_that_a_replica_confirmed_survives_its_promotion() {
    let (master, replica) = (
        Server::start(Persistence::Memory),
        Server::start(Persistence::Memory),
    );
    replica.tell::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    eventually("the replica is up to date", || {
        let reply: String = master.tell(&["INFO", "replication"]);
        reply.contains("state=online")
    });
    block_on(async {
        let store = open(&replicated(Config::single(master.url()), WAIT_MAX))
            .await
            .key_value();
        let mut points = Vec::new();
        for n in 0..50 {
            points.push(
                store
                    .update(set(key(&n.to_string()), n))
                    .await
                    .expect("update answers")
                    .receipt
                    .point,
            );
        }
        assert!(
            !store.is_durable(points[49]),
            "an answer alone is no confirmation"
        );
        store
            .externalize(points[49])
            .await
            .expect("the replica confirms");
        assert!(points.iter().all(|point| store.is_durable(*point)));
        master.kill();
        replica.tell::<()>(&["REPLICAOF", "NO", "ONE"]);
        let config = Config {
            acknowledged: Acknowledged::InMemory,
            ..Config::single(replica.url())
        };
        let store = open(&config).await.key_value();
        for (n, point) in points.into_iter().enumerate() {
            assert_eq!(value(&store, &n.to_string()).await, Some(n as i64));
            store.externalize(point).await.expect("it knows the point");
        }
    });
}

/// D1: without the replica no write is acknowledged, and none is reported as lost either.
#[test]
fn a_write_that_no_replica_confirms_is_not_acknowledged() {
    let (master, replica) = (
        Server::start(Persistence::Memory),
        Server::start(Persistence::Memory),
    );
    replica.tell::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    eventually("the replica is up to date", || {
        let reply: String = master.tell(&["INFO", "replication"]);
        reply.contains("state=online")
    });
    block_on(async {
        let store = open(&replicated(Config::single(master.url()), IN_VAIN))
            .await
            .key_value();
        replica.kill();
        let point = store
            .update(set(key("n"), 1))
            .await
            .expect("update answers")
            .receipt
            .point;
        let late = store
            .externalize(point)
            .await
            .expect_err("no replica confirms");
        assert!(
            matches!(late.kind(), ErrorKind::Unavailable { .. }),
            "{late}"
        );
        assert!(!store.is_durable(point));
        replica.restart();
        replica.tell::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
        while store.externalize(point).await.is_err() {}
        assert!(store.is_durable(point));
    });
}

/// The item of the `n`th partition. The partitions are spread over both masters.
fn partition(n: usize) -> Key {
    Key::new(format!("partition {n}"), "item")
}

async fn write_all(store: &Arc<dyn KeyValue>, count: usize, n: i64) -> usize {
    let mut unknown = 0;
    for place in 0..count {
        match store.update(set(partition(place), n)).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => unknown += 1,
            Err(error) => panic!("{error}"),
        }
    }
    unknown
}

/// D1, K3: in a cluster a reply means that the replica has the write; without a replica there is no
/// reply.
#[test]
fn a_write_that_a_cluster_acknowledged_survives_a_failover() {
    const PARTITIONS: usize = 40;
    let cluster = Cluster::replicated(Persistence::Memory);
    block_on(async {
        let opened = async |durability_timeout| {
            let config = replicated(Config::cluster(cluster.urls()), durability_timeout);
            open(&config).await.key_value()
        };
        let (patient, store) = (opened(WAIT_MAX).await, opened(IN_VAIN).await);
        assert_eq!(write_all(&patient, PARTITIONS, 1).await, 0);
        cluster.fail_over();
        let orphaned = (0..PARTITIONS)
            .map(partition)
            .find(|place| cluster.is_in_first_half(place));
        let orphaned = orphaned.expect("every other partition is");
        for _ in 0..2 {
            let unconfirmed = store
                .update(set(orphaned.clone(), 1))
                .await
                .expect_err("no replica confirms");
            assert_eq!(
                unconfirmed.kind(),
                ErrorKind::OutcomeUnknown,
                "{unconfirmed}"
            );
        }
        let in_memory = Config {
            acknowledged: Acknowledged::InMemory,
            ..Config::cluster(cluster.urls())
        };
        let store = open(&in_memory).await.key_value();
        for place in 0..PARTITIONS {
            let found = store
                .get(&partition(place))
                .await
                .expect("get answers")
                .value;
            assert_eq!(
                found.and_then(|item| item.integer("n")),
                Some(1),
                "partition {place}"
            );
        }
        assert_eq!(write_all(&store, PARTITIONS, 2).await, 0);
    });
}

/// K1, K3: an open store keeps working through a failover without any action of the caller.
#[test]
fn an_open_store_follows_a_failover() {
    const PARTITIONS: usize = 40;
    let cluster = Cluster::replicated(Persistence::Memory);
    block_on(async {
        let in_memory = Config {
            acknowledged: Acknowledged::InMemory,
            ..Config::cluster(cluster.urls())
        };
        let store = open(&in_memory).await.key_value();
        assert_eq!(write_all(&store, PARTITIONS, 1).await, 0);
        cluster.fail_over();
        let unknown = write_all(&store, PARTITIONS, 2).await;
        assert!(
            unknown <= 1,
            "only what was sent on the broken connection is unknown: {unknown}"
        );
        assert_eq!(write_all(&store, PARTITIONS, 3).await, 0);
    });
}

/// The slot of a test's partition.
fn slot_of(cluster: &Cluster, partition: &str) -> u16 {
    cluster.masters()[0].tell(&["CLUSTER", "KEYSLOT", &format!("landfast{{p{partition}}}s")])
}

async fn write_items(store: &Arc<dyn KeyValue>, partition: &str, n: i64) {
    for item in 0..20 {
        store
            .update(set(Key::new(partition, item.to_string()), n))
            .await
            .expect("update answers");
    }
}

async fn assert_items(store: &Arc<dyn KeyValue>, partition: &'static str, n: i64) {
    let page = store
        .scan(&Scan::partition(partition, 100))
        .await
        .expect("scan answers")
        .value;
    assert_eq!(page.items.len(), 20);
    assert!(
        page.items
            .iter()
            .all(|(_, item)| item.integer("n") == Some(n)),
        "{page:?}"
    );
}

/// K1, K6: a slot moves with its items, and the store follows each step (`ASK`, then `MOVED`).
#[test]
fn an_open_store_follows_a_slot_that_moves() {
    let cluster = Cluster::bare(Persistence::Memory);
    block_on(async {
        let in_memory = Config {
            acknowledged: Acknowledged::InMemory,
            ..Config::cluster(cluster.urls())
        };
        let store = open(&in_memory).await.key_value();
        write_items(&store, "test", 1).await;
        let slot = slot_of(&cluster, "test");
        cluster.begin_moving(slot);
        assert_eq!(count(&store, "7").await, 1);
        cluster.move_keys(slot);
        write_items(&store, "test", 2).await;
        assert_eq!(count(&store, "7").await, 2);
        cluster.finish_moving(slot);
        write_items(&store, "test", 3).await;
        assert_items(&store, "test", 3).await;
    });
}

/// K1, K3: the same with continuous writers during the move (`TRYAGAIN`).
#[test]
fn writers_continue_while_their_slot_moves() {
    let cluster = Arc::new(Cluster::bare(Persistence::Memory));
    block_on(async {
        let in_memory = Config {
            acknowledged: Acknowledged::InMemory,
            ..Config::cluster(cluster.urls())
        };
        let store = open(&in_memory).await.key_value();
        write_items(&store, "test", 1).await;
        let slot = slot_of(&cluster, "test");
        cluster.begin_moving(slot);
        let moving = Arc::clone(&cluster);
        let moving = tokio::task::spawn_blocking(move || moving.finish_moving(slot));
        write_items(&store, "test", 2).await;
        moving.await.expect("the slot moves");
        assert_items(&store, "test", 2).await;
    });
}
