//! Nodes with different clocks: later timestamps elsewhere do not hide acknowledged commits, and a
//! clock too far ahead is refused.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use simulated::World;
use simulation::transactions::{
    cluster::{Among, Cluster, Connection, Failure},
    crashable::Life,
    ensemble::Ensemble,
    network::{Network, Trouble},
    scenario::Scenario,
    workload::key,
};
use transactions::{Error, broken::Broken, model::Begin};

/// Nodes with these clock errors that all know each other.
pub(super) async fn cluster(
    world: &World,
    skews_ms: &[i64],
    broken: Option<Broken>,
) -> (Cluster, Vec<Connection>) {
    let mut config = Scenario::default().config;
    config.mutant = broken.into();
    let network = Network::new(Rng::with_seed(1), Trouble::default());
    let ensemble = Ensemble::new(Rng::with_seed(2));
    let cluster = Cluster::among(
        world,
        config,
        Among {
            network,
            ensemble,
            places: skews_ms.len(),
        },
    );
    for (place, skew_ms) in skews_ms.iter().enumerate() {
        assert!(cluster.boot_at(place, Life::default(), *skew_ms).await);
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let nodes = (0..skews_ms.len())
        .map(|place| cluster.serving_at(place).expect("no node dies"))
        .collect();
    (cluster, nodes)
}

async fn put(node: &Connection, value: &'static [u8]) -> Result<(), Failure> {
    node.call(node.engine.put_now(key(0), Some(Bytes::from_static(value))))
        .await
        .map(drop)
}

async fn newest(node: &Connection) -> Option<Bytes> {
    node.shown(node.engine.get_now(&key(0)))
        .await
        .expect("a calm world")
}

/// The final value at all nodes after two writes at two nodes, the second of which began when the
/// first was acknowledged.
async fn one_after_the_other(broken: Option<Broken>) -> Option<Bytes> {
    let world = World::new(1);
    let (_cluster, nodes) = cluster(&world, &[50, 0], broken).await;
    put(&nodes[0], b"first").await.expect("a calm world");
    put(&nodes[1], b"second").await.expect("a calm world");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let shown = newest(&nodes[0]).await;
    assert_eq!(newest(&nodes[1]).await, shown);
    shown
}

/// T5.
#[test]
fn a_plain_write_comes_after_acknowledged_writes_of_other_nodes() {
    assert_eq!(
        simulated::run(one_after_the_other(None)),
        Some(Bytes::from_static(b"second"))
    );
}

/// T5, broken.
#[test]
fn writing_blindly_is_caught() {
    let shown = simulated::run(one_after_the_other(Some(Broken::WritesBlindly)));
    assert_eq!(
        shown,
        Some(Bytes::from_static(b"first")),
        "it is hidden for good"
    );
}

/// The answers of a node whose clock is an hour ahead of two others, to a begin and to a plain
/// write, and the transactions that it holds then.
async fn an_hour_ahead(broken: Option<Broken>) -> (bool, bool, u64) {
    let world = World::new(1);
    let (_cluster, nodes) = cluster(&world, &[0, 0, 3_600_000], broken).await;
    let is_refused = |failure: &Failure| matches!(failure, Failure::Refused(Error::Unavailable(_)));
    let ahead = &nodes[2];
    let begun = ahead.call(ahead.engine.begin(Begin::default())).await;
    let refused = (
        begun.is_err_and(|failure| is_refused(&failure)),
        put(ahead, b"hour")
            .await
            .is_err_and(|failure| is_refused(&failure)),
    );
    assert!(ahead.engine.figures().clock_ahead_ms > 3_500_000);
    put(&nodes[0], b"now").await.expect("its clock is right");
    (
        refused.0,
        refused.1,
        ahead.engine.figures().open + ahead.engine.figures().buffered_bytes,
    )
}

/// T-1, T15.
#[test]
fn a_clock_beyond_the_bound_is_refused_and_leaves_nothing() {
    assert_eq!(simulated::run(an_hour_ahead(None)), (true, true, 0));
}

/// T-1, broken.
#[test]
fn accepting_any_clock_is_caught() {
    let (begin, write, _) = simulated::run(an_hour_ahead(Some(Broken::AcceptsAnyClock)));
    assert!(!begin && !write, "everybody has to go above it now");
}
