//! T2, T4, T5, T6, T9, T17, P6: values in packs of several nodes, which die at any point, are
//! partitioned, and are suspended; each rule with the mutant that drops it.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use futures_util::{TryStreamExt, future::join_all};
use ports::objects::ObjectStore;
use simulated::World;
use simulation::{
    faults::FaultProfile,
    transactions::{
        cluster::{Among, Cluster},
        crashable::Life,
        ensemble::Ensemble,
        network::{Network, Trouble},
        scenario::{Disaster, Scenario, seeds},
        workload::{Mix, key},
    },
};
use transactions::{Config, broken::Broken};

use super::{
    SEEDS_UNTIL_CAUGHT,
    nodes::{SEEN_WITHIN_LOSSES, holds, two},
    packing::with_small_packs,
};

/// Longer than a take-over: a transaction's life, a late write and the search.
const ASLEEP: Duration = Duration::from_mins(20);

/// Three nodes with small packs. Clients move between them and overwrite each other's values, so
/// most dead values of a pack are collected by another node than its owner.
fn packed(fault_profile: FaultProfile) -> Scenario {
    let mut scenario = with_small_packs(two(fault_profile));
    scenario.nodes = 3;
    scenario.mix = Mix {
        keys: 4,
        transactions: 15,
        ..scenario.mix
    };
    scenario.habits.pause = Duration::from_millis(500);
    scenario.seen_within = Some(SEEN_WITHIN_LOSSES);
    scenario
}

fn struck(disaster: Disaster, fault_profile: FaultProfile) -> Scenario {
    Scenario {
        disasters: vec![disaster; 2],
        ..packed(fault_profile)
    }
}

/// Slow readers, so that the values that they read move meanwhile.
fn reading(fault_profile: FaultProfile) -> Scenario {
    let mut scenario = packed(fault_profile);
    scenario.mix.reads = 3;
    scenario.habits.thinks = Duration::from_millis(100);
    scenario
}

/// T1 to T6, T9: with any node compacting, and any node reading.
#[test]
fn packs_of_several_nodes_keep_the_promises() {
    for fault_profile in [FaultProfile::Calm, FaultProfile::Slow, FaultProfile::Stormy] {
        holds(
            &packed(fault_profile),
            "packs_of_several_nodes_keep_the_promises",
        );
    }
    holds(
        &reading(FaultProfile::Slow),
        "packs_of_several_nodes_keep_the_promises",
    );
}

/// T4, T5, T9: if a node dies or is partitioned at any point, another one takes its packs over.
#[test]
fn packs_of_a_node_that_is_gone_are_taken_over() {
    for fault_profile in [FaultProfile::Slow, FaultProfile::Stormy] {
        for disaster in [Disaster::OneOfMany, Disaster::CutOff] {
            holds(
                &struck(disaster, fault_profile),
                "packs_of_a_node_that_is_gone_are_taken_over",
            );
        }
    }
}

/// T2, T9, T11: in a sequenced keyspace.
#[test]
fn packs_of_several_nodes_are_serializable() {
    let mut scenario = struck(Disaster::OneOfMany, FaultProfile::Slow);
    scenario.sequenced = true;
    scenario.habits.one_serializable_in = 2;
    scenario.mix.transactions = 12;
    holds(&scenario, "packs_of_several_nodes_are_serializable");
}

/// 12.2, broken: a survivor compacts packs into which others still move values.
#[test]
fn compacting_packs_of_the_living_is_caught() {
    let scenario = packed(FaultProfile::Stormy).without(Broken::TakesPacksOfTheLiving);
    scenario.is_caught("leftover: PackId", SEEDS_UNTIL_CAUGHT);
}

/// 12.2, broken: no node reports dead values to the owner of their pack.
#[test]
fn keeping_dead_bytes_to_oneself_is_caught() {
    let scenario = packed(FaultProfile::Slow).without(Broken::KeepsDeadBytesToItself);
    scenario.is_caught("leftover: PackId", SEEDS_UNTIL_CAUGHT);
}

/// One seed gives one trace.
#[test]
fn one_seed_of_packs_of_several_nodes_gives_one_trace() {
    for seed in seeds().take(3) {
        let scenario = struck(Disaster::OneOfMany, FaultProfile::Slow);
        assert_eq!(
            scenario.run(seed).trace_hash,
            scenario.run(seed).trace_hash,
            "seed {seed}"
        );
    }
}

fn cluster(world: &World, config: Config, places: usize) -> Cluster {
    let network = Network::new(Rng::with_seed(1), Trouble::default());
    let ensemble = Ensemble::new(Rng::with_seed(2));
    Cluster::among(
        world,
        config,
        Among {
            network,
            ensemble,
            places,
        },
    )
    .packing()
}

async fn put(cluster: &Cluster, place: usize, number: usize, value: impl Into<Bytes>) {
    let connection = cluster.serving_at(place).expect("no node dies");
    let put = connection.engine.put_now(key(number), Some(value.into()));
    connection.call(put).await.expect("a calm world");
}

async fn get(
    cluster: &Cluster,
    place: usize,
    number: usize,
) -> Result<Option<Bytes>, simulation::transactions::cluster::Failure> {
    let connection = cluster.serving_at(place).expect("no node dies");
    connection
        .shown(connection.engine.get_now(&key(number)))
        .await
}

/// A value that gets its own pack, which is merged with two more.
fn value(number: usize) -> Vec<u8> {
    vec![number as u8; 100]
}

/// One node merges three small packs and is suspended at one of its calls, from zero. It wakes
/// after the other node has taken its packs over, two of which give no reason for compaction by
/// themselves. Returns whether the other node then shows the values of these two, and whether the
/// first was suspended.
async fn merge_asleep(at: u64, broken: Option<Broken>) -> (Vec<bool>, bool) {
    let mut config = with_small_packs(Scenario::default()).config;
    (config.mutant, config.packs_merged, config.pack_bytes_max) = (broken.into(), 3, 899);
    let cluster = cluster(&World::new(1), config, 2);
    let life = Life::default();
    assert!(cluster.boot_at(0, life.clone(), 0).await);
    assert!(cluster.boot_at(1, Life::default(), 0).await);
    // Until all nodes know each other.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for number in 0..3 {
        put(&cluster, 0, number, value(number)).await;
        if number == 2 {
            life.sleeps_after(at, ASLEEP);
        }
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    life.goes_on();
    let has_slept = life.has_slept();
    if has_slept {
        let Some(Among { network, .. }) = cluster.surroundings() else {
            unreachable!("there are two")
        };
        network.cut(&Among::address(0), &Among::address(1));
        let seat = cluster.seat_at(0).expect("a member");
        seat.cut_off();
        tokio::time::sleep(Duration::from_mins(1)).await;
        put(&cluster, 1, 0, "small").await;
        tokio::time::sleep(ASLEEP).await;
        network.mend();
        seat.reconnect();
        tokio::time::sleep(Duration::from_mins(2)).await;
    }
    let mut shown = Vec::new();
    for number in [1, 2] {
        shown.push(get(&cluster, 1, number).await == Ok(Some(Bytes::from(value(number)))));
    }
    (shown, has_slept)
}

/// T5: a node that is suspended at any step of a compaction, and wakes long after its packs were
/// taken over, loses nothing.
#[test]
fn an_owner_that_wakes_late_loses_nothing() {
    let mut gaps = 0;
    for at in 0.. {
        let (shown, has_slept) = simulated::run(merge_asleep(at, None));
        assert_eq!(shown, [true, true], "asleep from call {at} on");
        if !has_slept {
            break;
        }
        gaps += 1;
    }
    assert!(gaps >= 17, "{gaps} gaps");
}

/// 12.2, broken: a survivor compacts a dead node's pack into which that node may still move values.
#[test]
fn compacting_half_moved_packs_is_caught() {
    let loses = |at| {
        simulated::run(merge_asleep(at, Some(Broken::JudgesHalfMoved)))
            .0
            .contains(&false)
    };
    assert!(
        (0..60).any(loses),
        "nothing was lost, wherever the owner slept"
    );
}

/// Values are read at a node that is suspended at one of its calls, from zero, while their owner
/// moves them and deletes their pack. Returns the value, and whether the reader was suspended.
async fn read_asleep(at: u64) -> (Option<Bytes>, bool) {
    let mut config = with_small_packs(Scenario::default()).config;
    (config.packs_merged, config.pack_bytes_max) = (3, 900);
    let world = World::new(1);
    let (cluster, life) = (cluster(&world, config, 2), Life::default());
    assert!(cluster.boot_at(0, Life::default(), 0).await);
    assert!(cluster.boot_at(1, life.clone(), 0).await);
    tokio::time::sleep(Duration::from_secs(5)).await;
    for number in 0..3 {
        put(&cluster, 0, number, value(number)).await;
    }
    life.sleeps_after(at, Duration::from_secs(10));
    let read = get(&cluster, 1, 1).await.expect("it is there");
    let has_slept = life.has_slept();
    life.goes_on();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let compacted = cluster
        .serving_at(0)
        .expect("no node dies")
        .engine
        .figures()
        .compacted;
    assert_eq!(compacted, 3, "they have moved");
    (read, has_slept)
}

/// T5, T6: a reader at another node finds a value, wherever it is moved meanwhile.
#[test]
fn a_suspended_reader_finds_moved_values() {
    let mut gaps = 0;
    for at in 0.. {
        let (read, has_slept) = simulated::run(read_asleep(at));
        assert_eq!(
            read,
            Some(Bytes::from(value(1))),
            "asleep from call {at} on"
        );
        if !has_slept {
            break;
        }
        gaps += 1;
    }
    // The versions of the key, the row, the item, the object.
    assert!(gaps >= 4, "{gaps} gaps");
}

/// T17: each node puts a bounded number of objects per second.
#[test]
fn each_of_several_nodes_puts_ten_objects_a_second() {
    simulated::run(async {
        let (world, seconds) = (World::new(1), 3);
        let cluster = cluster(&world, Scenario::default().config, 2);
        for place in 0..2 {
            assert!(cluster.boot_at(place, Life::default(), 0).await);
        }
        let began = world.clock().monotonic();
        let clients = (0..12).map(|client| {
            let (cluster, world) = (&cluster, &world);
            async move {
                while world.clock().monotonic().since(began) < Duration::from_secs(seconds) {
                    put(cluster, client % 2, client, vec![client as u8; 2_048]).await;
                }
            }
        });
        join_all(clients.collect::<Vec<_>>()).await;
        let mut puts: BTreeMap<String, u64> = BTreeMap::new();
        for meta in world
            .objects()
            .list(None)
            .try_collect::<Vec<_>>()
            .await
            .expect("calm objects")
        {
            let parts: Vec<_> = meta
                .location
                .parts()
                .map(|part| part.as_ref().to_owned())
                .collect();
            if let [_, _, node, _] = &parts[..] {
                *puts.entry(node.clone()).or_default() += 1;
            }
        }
        assert_eq!(puts.len(), 2, "both put some: {puts:?}");
        assert!(
            puts.values()
                .all(|puts| (seconds..=seconds * 11 + 1).contains(puts)),
            "{puts:?}"
        );
    });
}
