//! T20: of plain writes of one key under one condition, at two nodes, one succeeds.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use simulated::World;
use simulation::transactions::{
    cluster::{Among, Cluster, Connection},
    crashable::Life,
    ensemble::Ensemble,
    network::{Network, Trouble},
    scenario::Scenario,
    workload::key,
};
use transactions::{
    Expected,
    broken::Broken,
    model::{Key, Version},
};

/// How many keys the two nodes race for, and the replacements of each.
const KEYS: usize = 8;
const REPLACEMENTS: usize = 4;

/// The value with its version, once it is durable.
async fn present(node: &Connection, key: &Key) -> Option<(Bytes, Version)> {
    let read = node.shown(node.engine.get_version_now(key));
    read.await.expect("a calm world")
}

/// Both nodes write `key` under the same condition; returns the writes that were acknowledged.
async fn raced(nodes: &[Connection; 2], key: &Key, expected: Expected, round: usize) -> Vec<Bytes> {
    let writes = nodes.iter().enumerate().map(async |(place, node)| {
        let value = Bytes::from(format!("{round} by {place}"));
        let written = node
            .engine
            .put_now_if(key.clone(), Some(value.clone()), expected);
        let written = node.shown(written).await.expect("a calm world");
        written.map(|_| value)
    });
    let written = futures_util::future::join_all(writes).await;
    written.into_iter().flatten().collect()
}

/// The numbers of acknowledged writes of each race, after both nodes know the value of the one
/// before it.
async fn acknowledged(broken: Option<Broken>) -> Vec<usize> {
    let mut config = Scenario::default().config;
    config.mutant = broken.into();
    let among = Among {
        network: Network::new(Rng::with_seed(1), Trouble::default()),
        ensemble: Ensemble::new(Rng::with_seed(2)),
        places: 2,
    };
    let cluster = Cluster::among(&World::new(1), config, among);
    for place in 0..2 {
        assert!(cluster.boot_at(place, Life::default(), 0).await);
    }
    // Until all nodes know each other.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let nodes = [0, 1].map(|place| cluster.serving_at(place).expect("no node dies"));
    let mut counts = Vec::new();
    for number in 0..KEYS {
        let key = key(number);
        let mut expected = Expected::Absent;
        for round in 0..=REPLACEMENTS {
            let written = raced(&nodes, &key, expected, round).await;
            counts.push(written.len());
            let (value, version) = present(&nodes[0], &key).await.expect("it has a value");
            assert!(written.contains(&value), "{value:?} of {written:?}");
            expected = Expected::Version(version);
        }
    }
    counts
}

#[test]
fn one_of_two_nodes_that_write_a_key_under_one_condition_succeeds() {
    let counts = simulated::run(acknowledged(None));
    assert_eq!(counts, [1; KEYS * (1 + REPLACEMENTS)]);
}

/// Broken: the condition is checked first, and the write is committed without it.
#[test]
fn checking_the_condition_before_the_write_is_caught() {
    let counts = simulated::run(acknowledged(Some(Broken::ChecksConditionsBefore)));
    assert!(counts.iter().any(|count| *count > 1), "{counts:?}");
}
