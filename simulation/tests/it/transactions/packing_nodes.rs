//! T2, T4, T5, T6, T9, T17, P6: values in packs of several nodes, which die anywhere, are cut off, and sleep; each with the variant that
//! drops the rule.

#![allow(clippy::disallowed_methods)] // Why: its time is virtual.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use futures_util::{TryStreamExt, future::join_all};
use ports::objects::ObjectStore;
use simulated::World;
use simulation::{
    faults::Weather,
    transactions::{
        ensemble::Ensemble,
        house::{Among, House},
        mortal::Life,
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

/// Longer than a take-over lasts: a transaction's life, a late write and the search.
const ASLEEP: Duration = Duration::from_mins(20);

/// Three nodes with small packs, and clients that move from one to the other and overwrite what others have written: so most of what
/// dies in a pack is collected by another node than its owner.
fn packed(weather: Weather) -> Scenario {
    let mut scenario = with_small_packs(two(weather));
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

fn struck(disaster: Disaster, weather: Weather) -> Scenario {
    Scenario {
        disasters: vec![disaster; 2],
        ..packed(weather)
    }
}

/// Readers that take long, so that what they read is moved while they do.
fn reading(weather: Weather) -> Scenario {
    let mut scenario = packed(weather);
    scenario.mix.reads = 3;
    scenario.habits.thinks = Duration::from_millis(100);
    scenario.config.pack_kept = Duration::from_millis(1);
    scenario
}

/// T1 to T6, T9: whoever compacts, and whoever reads meanwhile.
#[test]
fn packs_of_several_nodes_keep_the_promises() {
    for weather in [Weather::Calm, Weather::Slow, Weather::Stormy] {
        holds(&packed(weather), "packs_of_several_nodes_keep_the_promises");
    }
    holds(
        &reading(Weather::Slow),
        "packs_of_several_nodes_keep_the_promises",
    );
}

/// T4, T5, T9: wherever one dies or is cut off, another takes care of its packs.
#[test]
fn packs_of_a_node_that_is_gone_are_taken_over() {
    for weather in [Weather::Slow, Weather::Stormy] {
        for disaster in [Disaster::OneOfMany, Disaster::CutOff] {
            holds(
                &struck(disaster, weather),
                "packs_of_a_node_that_is_gone_are_taken_over",
            );
        }
    }
}

/// T2, T9, T11: in a keyspace that is sequenced.
#[test]
fn packs_of_several_nodes_are_serializable() {
    let mut scenario = struck(Disaster::OneOfMany, Weather::Slow);
    scenario.sequenced = true;
    scenario.habits.one_serializable_in = 2;
    scenario.mix.transactions = 12;
    holds(&scenario, "packs_of_several_nodes_are_serializable");
}

/// 12.2, broken: a survivor compacts what others are still moving things into.
#[test]
fn compacting_packs_of_the_living_is_caught() {
    let scenario = packed(Weather::Stormy).without(Broken::TakesPacksOfTheLiving);
    scenario.is_caught("leftover: PackId", SEEDS_UNTIL_CAUGHT);
}

/// 12.2, broken: nobody hears what has died in its packs.
#[test]
fn keeping_dead_bytes_to_oneself_is_caught() {
    let scenario = packed(Weather::Slow).without(Broken::KeepsDeadBytesToItself);
    scenario.is_caught("leftover: PackId", SEEDS_UNTIL_CAUGHT);
}

/// One seed gives one trace.
#[test]
fn one_seed_of_packs_of_several_nodes_gives_one_trace() {
    for seed in seeds().take(3) {
        let scenario = struck(Disaster::OneOfMany, Weather::Slow);
        assert_eq!(
            scenario.run(seed).trace_hash,
            scenario.run(seed).trace_hash,
            "seed {seed}"
        );
    }
}

fn house(world: &World, config: Config, places: usize) -> House {
    let network = Network::new(Rng::with_seed(1), Trouble::default());
    let ensemble = Ensemble::new(Rng::with_seed(2));
    House::among(
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

async fn put(house: &House, place: usize, number: usize, value: impl Into<Bytes>) {
    let connection = house.serving_at(place).expect("nobody dies");
    let put = connection.engine.put_now(key(number), Some(value.into()));
    connection.call(put).await.expect("a calm world");
}

async fn get(
    house: &House,
    place: usize,
    number: usize,
) -> Result<Option<Bytes>, simulation::transactions::house::Failure> {
    let connection = house.serving_at(place).expect("nobody dies");
    connection
        .shown(connection.engine.get_now(&key(number)))
        .await
}

/// What goes into a pack of its own that is merged with two more.
fn value(number: usize) -> Vec<u8> {
    vec![number as u8; 100]
}

/// Three small packs of one node are merged, which falls asleep at one of its calls, from zero, and wakes when the other node has taken
/// its packs over, which by themselves give no reason to compact two of the three. Returns whether that one shows the values of
/// the two afterwards, and whether the first slept at all.
async fn merge_asleep(at: u64, broken: Option<Broken>) -> (Vec<bool>, bool) {
    let mut config = with_small_packs(Scenario::default()).config;
    (config.broken, config.packs_merged, config.pack_bytes_max) = (broken, 3, 900);
    let house = house(&World::new(1), config, 2);
    let life = Life::default();
    assert!(house.boot_at(0, life.clone(), 0).await);
    assert!(house.boot_at(1, Life::default(), 0).await);
    // Until all know of each other.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for number in 0..3 {
        put(&house, 0, number, value(number)).await;
        if number == 2 {
            life.sleeps_after(at, ASLEEP);
        }
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    life.goes_on();
    let has_slept = life.has_slept();
    if has_slept {
        let Some(Among { network, .. }) = house.surroundings() else {
            unreachable!("there are two")
        };
        network.cut(&Among::address(0), &Among::address(1));
        let seat = house.seat_at(0).expect("a member");
        seat.cut_off();
        tokio::time::sleep(Duration::from_mins(1)).await;
        put(&house, 1, 0, "small").await;
        tokio::time::sleep(ASLEEP).await;
        network.mend();
        seat.reconnect();
        tokio::time::sleep(Duration::from_mins(2)).await;
    }
    let mut shown = Vec::new();
    for number in [1, 2] {
        shown.push(get(&house, 1, number).await == Ok(Some(Bytes::from(value(number)))));
    }
    (shown, has_slept)
}

/// T5: whoever sleeps at any step of a compaction, and wakes when its packs were taken over long ago, loses nothing.
#[test]
fn an_owner_that_wakes_loses_nothing() {
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

/// 12.2, broken.
#[test]
fn judging_what_is_half_moved_is_caught() {
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

/// Values are read at a node that falls asleep at one of its calls, from zero, while their owner moves them and deletes what they lay
/// in. Returns what was read, and whether the reader slept.
async fn read_asleep(at: u64) -> (Option<Bytes>, bool) {
    let mut config = with_small_packs(Scenario::default()).config;
    (config.packs_merged, config.pack_bytes_max) = (3, 900);
    let world = World::new(1);
    let (house, life) = (house(&world, config, 2), Life::default());
    assert!(house.boot_at(0, Life::default(), 0).await);
    assert!(house.boot_at(1, life.clone(), 0).await);
    tokio::time::sleep(Duration::from_secs(5)).await;
    for number in 0..3 {
        put(&house, 0, number, value(number)).await;
    }
    life.sleeps_after(at, Duration::from_secs(10));
    let read = get(&house, 1, 1).await.expect("it is there");
    let has_slept = life.has_slept();
    life.goes_on();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let compacted = house
        .serving_at(0)
        .expect("nobody dies")
        .engine
        .figures()
        .compacted;
    assert_eq!(compacted, 3, "they have moved");
    (read, has_slept)
}

/// T5, T6: whoever reads at another node finds a value, wherever it is moved meanwhile.
#[test]
fn a_reader_that_sleeps_finds_what_has_moved() {
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

/// T17: a bounded number of objects are put a second, by each node.
#[test]
fn each_of_several_nodes_puts_ten_objects_a_second() {
    simulated::run(async {
        let (world, seconds) = (World::new(1), 3);
        let house = house(&world, Scenario::default().config, 2);
        for place in 0..2 {
            assert!(house.boot_at(place, Life::default(), 0).await);
        }
        let began = world.clock().monotonic();
        let clients = (0..12).map(|client| {
            let (house, world) = (&house, &world);
            async move {
                while world.clock().monotonic().since(began) < Duration::from_secs(seconds) {
                    put(house, client % 2, client, vec![client as u8; 2_048]).await;
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
