//! T9, T17, P6: packed values: how often objects are put and read, and which ones stay.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{TryStreamExt, future::join_all};
use ports::{
    metering::{Meter, MeteredObjects, Operation},
    objects::ObjectStore,
};
use simulated::World;
use transactions::{
    Config, Error, Parts, Service,
    broken::Broken,
    layout::{self, Buckets},
};

use crate::{
    gate::{Gate, Held},
    house::{Node, in_virtual_time, items_at_rest, key, versions_at_rest},
};

/// Longer than it takes until work begins and its pack is put.
const MOMENT: Duration = Duration::from_secs(1);

pub(crate) fn service(world: &World, objects: Arc<dyn ObjectStore>, config: Config) -> Service {
    let parts = Parts {
        key_value: world.key_value(),
        clock: world.clock(),
        entropy: world.entropy(),
    };
    Service::builder(parts).objects(objects).build(config)
}

pub(crate) async fn node(world: &World, config: Config) -> Node {
    Node::of(service(world, world.objects(), config)).await
}

/// A node, and a meter of its calls to the object store.
pub(crate) async fn metered(world: &World, config: Config) -> (Node, Arc<Meter>) {
    let meter = Arc::new(Meter::default());
    let objects = MeteredObjects::around(world.objects(), Arc::clone(&meter));
    (Node::of(service(world, objects, config)).await, meter)
}

pub(crate) fn calls(meter: &Meter, operation: Operation) -> u64 {
    meter.usage().of(operation).calls
}

/// A value that differs from all others.
pub(crate) fn value(bytes: usize, seed: u64) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut value = vec![0; bytes];
    random.fill(&mut value);
    value.into()
}

pub(crate) async fn shown(node: &Node, name: &str) -> Option<Bytes> {
    node.engine
        .get_now(&key(name))
        .await
        .expect("a get is answered")
        .value
}

/// The number of packs, and the bytes of all of them.
pub(crate) async fn packs(world: &World) -> (usize, u64) {
    let all = world
        .objects()
        .list(None)
        .try_collect::<Vec<_>>()
        .await
        .expect("calm");
    let packs = all
        .iter()
        .filter(|meta| meta.location.filename() != Some("store"));
    (packs.clone().count(), packs.map(|meta| meta.size).sum())
}

/// Values in one transaction, one key each, of 2 KiB.
pub(crate) async fn write(node: &Node, transaction: u64, keys: u64) {
    let call = node.begin().await;
    for number in 0..keys {
        let name = format!("k{transaction}-{number}");
        node.engine
            .put(&call, key(&name), value(2_048, number))
            .await
            .expect("taken");
    }
    node.commit(&call).await;
}

/// How many objects a second are put beyond one for each 8 MiB, while `clients` clients write
/// `keys` keys in each transaction.
async fn puts_a_second(world: &World, config: Config, clients: u64, keys: u64) -> f64 {
    let (node, meter) = metered(world, config).await;
    let (before, began) = (
        calls(&meter, Operation::ObjectPut),
        world.clock().monotonic(),
    );
    let mut written = 0;
    while world.clock().monotonic().since(began) < Duration::from_secs(3) {
        let all = (0..clients).map(|client| write(&node, written + client, keys));
        join_all(all.collect::<Vec<_>>()).await;
        written += clients;
    }
    let seconds = world.clock().monotonic().since(began).as_secs_f64();
    let puts = calls(&meter, Operation::ObjectPut) - before;
    assert_eq!(node.engine.figures().packed, puts);
    let (moved, all) = (node.engine.figures().packed_bytes, written * keys * 2_048);
    assert!(
        (all..all * 3).contains(&moved),
        "{moved} bytes for {all}: each value moves twice at the most"
    );
    assert_eq!(shown(&node, "k0-0").await, Some(value(2_048, 0)));
    let full = moved / (8 << 20);
    puts.saturating_sub(full) as f64 / seconds
}

/// T17: for any number of keys and transactions, objects are put ten times a second, once more for
/// every 8 MiB, and once for 64 that are merged.
#[test]
fn packed_values_cost_ten_puts_a_second() {
    for (clients, keys) in [(1, 1), (10, 5), (20, 40)] {
        in_virtual_time(async |world| {
            let puts = puts_a_second(&world, Config::default(), clients, keys).await;
            assert!(
                (1.0..11.2).contains(&puts),
                "{puts} a second of {clients} with {keys} each"
            );
        });
    }
    in_virtual_time(async |world| {
        let config = Config {
            pack_wait: Duration::ZERO,
            ..Config::default()
        };
        let puts = puts_a_second(&world, config, 10, 5).await;
        assert!(puts > 20.0, "{puts}: the test would notice");
    });
}

/// T2: values of every length are read back, from memory and from their packs; small ones stay in
/// their items, a large one has a pack of its own.
#[test]
fn packed_values_of_every_length_are_read_as_they_were_written() {
    in_virtual_time(async |world| {
        let config = Config {
            data_cache_bytes_max: 0,
            ..Config::default()
        };
        let first = node(&world, config.clone()).await;
        let lengths = [
            0,
            1_024,
            1_025,
            65_536,
            65_537,
            1 << 20,
            (8 << 20) + 1,
            64 << 20,
        ];
        let call = first.begin().await;
        for (seed, bytes) in (0..).zip(lengths) {
            let name = format!("k{bytes}");
            first
                .engine
                .put(&call, key(&name), value(bytes, seed))
                .await
                .expect("taken");
            let own = first
                .engine
                .get(&call, &key(&name))
                .await
                .expect("read")
                .value;
            assert!(own == Some(value(bytes, seed)), "{bytes} bytes of its own");
        }
        first.commit(&call).await;
        let again = async |node: &Node| {
            for (seed, bytes) in (0..).zip(lengths) {
                assert!(
                    shown(node, &format!("k{bytes}")).await == Some(value(bytes, seed)),
                    "{bytes} bytes"
                );
            }
        };
        again(&first).await;
        drop(first);
        again(&node(&world, config).await).await;
        let attempt = call.attempt.expect("a begin answers it");
        assert_eq!(
            items_at_rest(&*world.key_value(), layout::chunks(attempt).to_vec()).await,
            0,
            "in chunks"
        );
        assert_eq!(
            items_at_rest(&*world.key_value(), layout::PACKS.to_vec()).await,
            packs(&world).await.0
        );
    });
}

/// T9: values that are overwritten again and again take a few packs, and the objects of the others
/// are deleted.
#[test]
fn packs_stay_bounded_under_overwrites() {
    in_virtual_time(async |world| {
        let node = node(&world, Config::default()).await;
        node.engine
            .put_now(key("kept"), Some(value(2_048, 1)))
            .await
            .expect("written");
        let mut most = 0;
        for round in 0..200 {
            let all = (0..10).map(|number| {
                let (node, name) = (&node, format!("k{number}"));
                async move {
                    node.engine
                        .put_now(key(&name), Some(value(4_096, round * 10 + number)))
                        .await
                }
            });
            for written in join_all(all.collect::<Vec<_>>()).await {
                written.expect("written");
            }
            world.clock().sleep(MOMENT).await;
            most = most.max(packs(&world).await.0);
        }
        assert!(most < 5, "{most} packs");
        assert!(node.engine.figures().packed > 180);
        world.clock().sleep(Duration::from_mins(5)).await;
        let (count, bytes) = packs(&world).await;
        assert!(count <= 2 && bytes < 60_000, "{count} packs, {bytes} bytes");
        assert_eq!(
            items_at_rest(&*world.key_value(), layout::PACKS.to_vec()).await,
            count
        );
        assert_eq!(shown(&node, "kept").await, Some(value(2_048, 1)));
        assert_eq!(shown(&node, "k3").await, Some(value(4_096, 1_993)));
        assert_eq!(node.engine.figures().packs, count as u64);
        for name in ["k0", "k9", "kept"] {
            assert_eq!(versions_at_rest(&*world.key_value(), name).await, 1);
        }
    });
}

/// The number of packs after `values` values that were written one after the other, and stay; and
/// how many were put.
async fn packs_of_lone_values(world: &World, config: Config, values: u64) -> (usize, u64) {
    let (node, meter) = metered(world, config).await;
    let before = calls(&meter, Operation::ObjectPut);
    for number in 0..values {
        let written = node
            .engine
            .put_now(key(&format!("k{number}")), Some(value(2_048, number)))
            .await;
        written.expect("written");
    }
    world.clock().sleep(Duration::from_mins(5)).await;
    for number in 0..values {
        assert_eq!(
            shown(&node, &format!("k{number}")).await,
            Some(value(2_048, number))
        );
    }
    assert_eq!(
        items_at_rest(&*world.key_value(), layout::PACKS.to_vec()).await,
        packs(world).await.0
    );
    (
        packs(world).await.0,
        calls(&meter, Operation::ObjectPut) - before,
    )
}

/// T9: however slowly packs fill, and if nothing in them dies, there are few, and few extra puts.
#[test]
fn small_packs_become_larger_ones() {
    in_virtual_time(async |world| {
        let config = Config {
            data_cache_bytes_max: 0,
            ..Config::default()
        };
        let (packs, puts) = packs_of_lone_values(&world, config, 500).await;
        // Up to 63 small ones, and some of 128 KiB or more.
        assert!(packs < 63 + 8, "{packs} packs");
        assert!((500..=500 + 500 / 63).contains(&puts), "{puts} were put");
    });
    in_virtual_time(async |world| {
        let config = Config {
            packs_merged: usize::MAX,
            ..Config::default()
        };
        assert_eq!(
            packs_of_lone_values(&world, config, 40).await,
            (40, 40),
            "the test would notice"
        );
    });
}

/// T5, T6: a moving value is readable before and after its move; its old pack is deleted.
#[test]
fn a_value_that_moves_is_found_in_its_new_pack() {
    in_virtual_time(async |world| {
        let config = Config {
            data_cache_bytes_max: 0,
            ..Config::default()
        };
        let (node, meter) = metered(&world, config).await;
        write(&node, 1, 4).await;
        assert_eq!(packs(&world).await.0, 1);
        let reader = node.begin().await;
        assert_eq!(
            node.engine
                .get(&reader, &key("k1-3"))
                .await
                .expect("read")
                .value,
            Some(value(2_048, 3))
        );
        for number in 0..3 {
            node.engine
                .put_now(key(&format!("k1-{number}")), None)
                .await
                .expect("deleted");
        }
        world.clock().sleep(MOMENT).await;
        assert_eq!(
            node.engine.figures().compacted,
            0,
            "the reader may need all of it"
        );
        node.commit(&reader).await;
        world.clock().sleep(MOMENT).await;
        assert_eq!(node.engine.figures().compacted, 1);
        assert_eq!(
            (
                calls(&meter, Operation::ObjectDelete),
                packs(&world).await.0
            ),
            (1, 1)
        );
        assert_eq!(shown(&node, "k1-3").await, Some(value(2_048, 3)));
        node.engine
            .put_now(key("k1-3"), None)
            .await
            .expect("deleted");
        world.clock().sleep(Duration::from_mins(5)).await;
        assert_eq!(packs(&world).await, (0, 0));
    });
}

/// A value shares its pack with a larger one of an aborted transaction, and its item is written
/// minutes later.
async fn read_after_its_item_was_late(
    world: &World,
    config: Config,
) -> Result<Option<Bytes>, Error> {
    let config = Config {
        data_cache_bytes_max: 0,
        attempt_buffer_bytes_max: 4_000,
        ..config
    };
    let gate = Gate::new(world.key_value());
    let parts = Parts {
        key_value: gate.clone(),
        clock: world.clock(),
        entropy: world.entropy(),
    };
    let node = Node::of(
        Service::builder(parts)
            .objects(world.objects())
            .build(config),
    )
    .await;
    let (late, aborted) = (node.begin().await, node.begin().await);
    node.engine
        .put(&late, key("k"), value(2_048, 1))
        .await
        .expect("taken");
    let place =
        |name| Buckets::default().version(&key(name), late.attempt.expect("a begin answers it"));
    assert_ne!(place("k").partition(), place("l").partition());
    gate.close(Held::Updates, place("k").partition());
    let (engine, committing) = (node.engine.clone(), late.clone());
    let commit = tokio::spawn(async move { engine.commit(&committing).await });
    node.engine
        .put(&aborted, key("l"), value(9_000, 2))
        .await
        .expect("spilled");
    gate.holds().await;
    assert_eq!(packs(world).await.0, 1, "both are in it");
    node.engine.abort(&aborted).await.expect("aborted");
    assert_eq!(commit.await.expect("no panic"), Err(Error::OutcomeUnknown));
    world.clock().sleep(Duration::from_mins(3)).await;
    gate.open();
    node.engine.commit(&late).await.expect("it goes on");
    Ok(node.engine.get_now(&key("k")).await?.value)
}

/// T5: compaction waits for tasks that may still write an item that names a pack, however much of
/// it is dead.
#[test]
fn a_pack_is_not_compacted_under_a_writer() {
    in_virtual_time(async |world| {
        let read = read_after_its_item_was_late(&world, Config::default()).await;
        assert_eq!(read, Ok(Some(value(2_048, 1))));
    });
    in_virtual_time(async |world| {
        let config = Config {
            mutant: Broken::CompactsHeldPacks.into(),
            ..Config::default()
        };
        let read = read_after_its_item_was_late(&world, config).await;
        assert!(
            matches!(read, Err(Error::Corrupt(_))),
            "the test would notice: {read:?}"
        );
    });
}

/// T7: the packed values of an ended transaction are deleted.
#[test]
fn what_an_aborted_transaction_packed_goes() {
    in_virtual_time(async |world| {
        let config = Config {
            attempt_buffer_bytes_max: 4_000,
            ..Config::default()
        };
        let node = node(&world, config).await;
        let call = node.begin().await;
        for number in 0..5 {
            node.engine
                .put(&call, key("k"), value(3_000, number))
                .await
                .expect("taken");
            node.engine
                .put(&call, key("l"), value(3_000, number))
                .await
                .expect("taken");
        }
        assert!(node.engine.figures().packed > 0, "some values were spilled");
        node.engine.abort(&call).await.expect("aborted");
        world.clock().sleep(Duration::from_mins(5)).await;
        assert_eq!(packs(&world).await, (0, 0));
        assert_eq!(versions_at_rest(&*world.key_value(), "k").await, 0);
    });
}

/// P6: without space for objects no commit succeeds that needs it, and those that need none do.
#[test]
fn a_pack_that_does_not_fit_commits_nothing() {
    in_virtual_time(async |world| {
        let node = node(&world, Config::default()).await;
        world.fill_disk_of_objects();
        assert_eq!(
            node.engine.put_now(key("k"), Some(value(2_048, 1))).await,
            Err(Error::NoRoom)
        );
        node.write(&[("k", "small")]).await;
        world.empty_disk_of_objects();
        assert_eq!(node.now("k").await.as_deref(), Some("small"));
        node.engine
            .put_now(key("k"), Some(value(2_048, 2)))
            .await
            .expect("there is room again");
        assert_eq!(shown(&node, "k").await, Some(value(2_048, 2)));
    });
}
