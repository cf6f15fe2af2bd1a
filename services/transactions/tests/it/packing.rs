//! T9, T17, P6: packed values: how often objects are put and read, which ones stay, and how missing
//! ones are detected.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{TryStreamExt, future::join_all};
use ports::{
    metering::{Meter, MeteredObjects, Operation},
    objects::{ObjectPath, ObjectStore, ObjectStoreExt as _, PutPayload},
};
use simulated::World;
use transactions::{
    Config, Error, Parts, Service,
    broken::Broken,
    layout::{self, Buckets},
    list::Listing,
    model::{Key, PackId},
};

use crate::{
    gate::{Gate, Held},
    house::{Node, in_virtual_time, items_at_rest, key, versions_at_rest},
};

/// Longer than it takes until work begins and its pack is put.
const MOMENT: Duration = Duration::from_secs(1);

fn service(world: &World, objects: Arc<dyn ObjectStore>, config: Config) -> Service {
    let parts = Parts {
        key_value: world.key_value(),
        clock: world.clock(),
        entropy: world.entropy(),
    };
    Service::builder(parts).objects(objects).build(config)
}

async fn node(world: &World, config: Config) -> Node {
    Node::of(service(world, world.objects(), config)).await
}

/// A node, and a meter of its calls to the object store.
async fn metered(world: &World, config: Config) -> (Node, Arc<Meter>) {
    let meter = Arc::new(Meter::default());
    let objects = MeteredObjects::around(world.objects(), Arc::clone(&meter));
    (Node::of(service(world, objects, config)).await, meter)
}

fn calls(meter: &Meter, operation: Operation) -> u64 {
    meter.usage().of(operation).calls
}

/// A value that differs from all others.
fn value(bytes: usize, seed: u64) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut value = vec![0; bytes];
    random.fill(&mut value);
    value.into()
}

async fn shown(node: &Node, name: &str) -> Option<Bytes> {
    node.engine
        .get_now(&key(name))
        .await
        .expect("a get is answered")
        .value
}

/// The number of packs, and the bytes of all of them.
async fn packs(world: &World) -> (usize, u64) {
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
async fn write(node: &Node, transaction: u64, keys: u64) {
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
/// every 8 MiB, and once for sixteen that are merged.
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

/// Concurrent small reads of one pack are one request; a large value is read separately.
#[test]
fn small_reads_beside_each_other_are_joined() {
    in_virtual_time(async |world| {
        let config = Config {
            data_cache_bytes_max: 0,
            ..Config::default()
        };
        let (node, meter) = metered(&world, config).await;
        write(&node, 1, 30).await;
        let before = calls(&meter, Operation::ObjectGet);
        let names: Vec<_> = (0..30).map(|number| format!("k1-{number}")).collect();
        let reads = join_all(names.iter().map(|name| shown(&node, name))).await;
        for (number, read) in (0..).zip(reads) {
            assert_eq!(read, Some(value(2_048, number)));
        }
        let gets = calls(&meter, Operation::ObjectGet) - before;
        assert!(gets < 10, "{gets} requests for thirty values");
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
            tokio::time::sleep(MOMENT).await;
            most = most.max(packs(&world).await.0);
        }
        // A pack a second, each kept for a minute after it becomes unreferenced.
        assert!((50..80).contains(&most), "{most} packs");
        assert!(node.engine.figures().packed > 180);
        tokio::time::sleep(Duration::from_mins(5)).await;
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
    tokio::time::sleep(Duration::from_mins(5)).await;
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
        // Up to 15 of 2 KiB, as many of 32 KiB, and one of 512 KiB.
        assert!(packs < 32, "{packs} packs");
        assert!(
            (500..=500 + 500 / 16 + 500 / 256).contains(&puts),
            "{puts} were put"
        );
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

/// T5, T6: a moving value is readable before, during and after its move; its old pack stays for a
/// minute.
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
        tokio::time::sleep(MOMENT).await;
        assert_eq!(
            node.engine.figures().compacted,
            0,
            "the reader may need all of it"
        );
        node.commit(&reader).await;
        tokio::time::sleep(MOMENT).await;
        assert_eq!(
            (node.engine.figures().compacted, packs(&world).await.0),
            (1, 2)
        );
        let deleted = calls(&meter, Operation::ObjectDelete);
        assert_eq!(deleted, 0, "a reader may have read the item before");
        assert_eq!(shown(&node, "k1-3").await, Some(value(2_048, 3)));
        tokio::time::sleep(Duration::from_mins(1)).await;
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
        tokio::time::sleep(Duration::from_mins(5)).await;
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
    tokio::time::sleep(Duration::from_mins(3)).await;
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
        tokio::time::sleep(Duration::from_mins(5)).await;
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

/// A node that is configured with the wrong object store detects it at its start and does not
/// serve.
#[test]
fn a_start_without_the_objects_of_its_store_is_refused() {
    in_virtual_time(async |world| {
        drop(node(&world, Config::default()).await);
        let parts = || Parts {
            key_value: world.key_value(),
            clock: world.clock(),
            entropy: world.entropy(),
        };
        // Nothing lies there yet.
        Service::new(parts(), Config::default())
            .start()
            .await
            .expect("none are needed");
        let serving = node(&world, Config::default()).await;
        serving
            .engine
            .put_now(key("k"), Some(value(2_048, 1)))
            .await
            .expect("written");
        drop(serving);
        let refused = Service::new(parts(), Config::default())
            .start()
            .await
            .expect_err("refused");
        assert_eq!(
            refused,
            Error::WrongObjects("none was given".into()),
            "nothing is damaged"
        );
        let elsewhere = service(&world, World::new(8).objects(), Config::default());
        let refused = elsewhere.start().await.expect_err("refused");
        assert!(
            matches!(&refused, Error::WrongObjects(why) if why.contains("not this store's")),
            "{refused}"
        );
        assert_eq!(
            shown(&node(&world, Config::default()).await, "k").await,
            Some(value(2_048, 1))
        );
    });
}

/// T9: on files too, dead bytes after a crash are counted and compacted, and an object without a
/// row is deleted.
#[test]
fn packs_on_a_disk_are_counted_after_a_death() {
    in_virtual_time(async |world| {
        let directory = tempfile::tempdir().expect("a directory");
        let objects = embedded::open_objects(directory.path().to_owned())
            .await
            .expect("they open")
            .objects();
        let config = Config {
            data_cache_bytes_max: 0,
            ..Config::default()
        };
        let first = Node::of(service(&world, Arc::clone(&objects), config.clone())).await;
        write(&first, 1, 4).await;
        drop(first);
        let list = async || {
            let all = objects
                .list(None)
                .try_collect::<Vec<_>>()
                .await
                .expect("listed");
            let packs = all.into_iter().map(|meta| meta.location);
            packs
                .filter(|path| path.filename() != Some("store"))
                .collect::<Vec<_>>()
        };
        let [pack] = &list().await[..] else {
            panic!("one transaction, one pack")
        };
        let whole = objects
            .get(pack)
            .await
            .expect("there")
            .bytes()
            .await
            .expect("read");
        let orphan = ObjectPath::from(pack.as_ref().replace("/1/1", "/1/77"));
        objects
            .put(&orphan, PutPayload::from(whole))
            .await
            .expect("put");
        let second = Node::of(service(&world, Arc::clone(&objects), config)).await;
        for number in 0..3 {
            let name = format!("k1-{number}");
            second
                .engine
                .put_now(key(&name), Some(value(2_048, 50 + number)))
                .await
                .expect("written");
        }
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert!(list().await.contains(&orphan), "the dead may still write");
        assert_eq!(second.engine.figures().compacted, 0);
        tokio::time::sleep(Duration::from_mins(40)).await;
        let left = list().await;
        assert!(!left.contains(&orphan) && !left.contains(pack), "{left:?}");
        assert_eq!(
            items_at_rest(&*world.key_value(), layout::PACKS.to_vec()).await,
            left.len()
        );
        for (number, seed) in [(0, 50), (1, 51), (2, 52), (3, 3)] {
            assert_eq!(
                shown(&second, &format!("k1-{number}")).await,
                Some(value(2_048, seed))
            );
        }
    });
}

/// Two stores in one bucket do not touch each other's packs.
#[test]
fn stores_that_share_objects_keep_apart() {
    in_virtual_time(async |world| {
        let other = World::new(8);
        let shared = world.objects();
        let [first, second] =
            [&world, &other].map(|world| service(world, Arc::clone(&shared), Config::default()));
        let (first, second) = (Node::of(first).await, Node::of(second).await);
        first
            .engine
            .put_now(key("k"), Some(value(2_048, 1)))
            .await
            .expect("written");
        second
            .engine
            .put_now(key("k"), Some(value(2_048, 2)))
            .await
            .expect("written");
        assert_eq!(packs(&world).await.0, 2);
        assert_eq!(shown(&first, "k").await, Some(value(2_048, 1)));
        assert_eq!(shown(&second, "k").await, Some(value(2_048, 2)));
    });
}

/// The location of a node's packs; its store has put some.
async fn place_of_packs(world: &World, node: u32) -> ObjectPath {
    let all = world
        .objects()
        .list(None)
        .try_collect::<Vec<_>>()
        .await
        .expect("calm");
    let home = all[0].location.parts().take(2).collect::<ObjectPath>();
    home.join(node.to_string())
}

/// Writes after a store returned to its state before its second start, without its objects. Returns
/// whether the value can be read.
async fn writes_after_going_back(world: &World, broken: Option<Broken>) -> bool {
    let config = || Config {
        mutant: broken.into(),
        data_cache_bytes_max: 0,
        ..Config::default()
    };
    let first = node(world, config()).await;
    write(&first, 1, 1).await;
    drop(first);
    let lost = place_of_packs(world, 2).await;
    let objects = world.objects();
    for number in ["1", "2"] {
        let lost = lost.clone().join(number);
        objects
            .put(&lost, PutPayload::from_static(b"of a life that is gone"))
            .await
            .expect("calm");
    }
    let second = node(world, config()).await;
    second
        .engine
        .put_now(key("k"), Some(value(2_048, 1)))
        .await
        .expect("written");
    second
        .engine
        .get_now(&key("k"))
        .await
        .is_ok_and(|shown| shown.value == Some(value(2_048, 1)))
}

/// A pack never adopts an existing object: values written after a store was set back are there.
#[test]
fn a_store_that_was_set_back_writes_beside_its_later_packs() {
    in_virtual_time(async |world| {
        assert!(writes_after_going_back(&world, None).await);
    });
    in_virtual_time(async |world| {
        assert!(!writes_after_going_back(&world, Some(Broken::TakesAnyPackForItsOwn)).await);
    });
}

/// The same with a copy of the store that is at work beside it.
#[test]
fn a_pack_whose_name_somebody_takes_is_refused() {
    in_virtual_time(async |world| {
        let node = node(
            &world,
            Config {
                data_cache_bytes_max: 0,
                ..Config::default()
            },
        )
        .await;
        write(&node, 1, 1).await;
        let taken = place_of_packs(&world, 1).await.join("2");
        world
            .objects()
            .put(&taken, PutPayload::from_static(b"of a copy"))
            .await
            .expect("calm");
        let put = async |seed: u64| {
            node.engine
                .put_now(key("k"), Some(value(2_048, seed)))
                .await
        };
        assert!(matches!(put(1).await, Err(Error::Unavailable(_))));
        put(2).await.expect("under the next name");
        assert_eq!(shown(&node, "k").await, Some(value(2_048, 2)));
    });
}

/// T6: a missing pack is reported as damage, which beginning again does not help.
#[test]
fn a_missing_pack_is_refused_by_its_name() {
    in_virtual_time(async |world| {
        let node = node(
            &world,
            Config {
                data_cache_bytes_max: 0,
                ..Config::default()
            },
        )
        .await;
        write(&node, 1, 4).await;
        let all = world
            .objects()
            .list(None)
            .try_collect::<Vec<_>>()
            .await
            .expect("calm");
        for pack in &all {
            world.objects().delete(&pack.location).await.expect("calm");
        }
        let call = node.begin().await;
        for read in [
            node.engine.get_now(&key("k1-3")).await,
            node.engine.get(&call, &key("k1-3")).await,
        ] {
            let Err(Error::Corrupt(why)) = read else {
                panic!("{read:?}")
            };
            assert!(
                all.iter().any(|pack| why.contains(pack.location.as_ref())),
                "{why}"
            );
        }
    });
}

/// T18: a page with a damaged value is refused with the name of its key, and the caller can
/// continue after it.
#[test]
fn a_page_with_a_damaged_value_names_its_key() {
    in_virtual_time(async |world| {
        let node = node(
            &world,
            Config {
                data_cache_bytes_max: 0,
                ..Config::default()
            },
        )
        .await;
        node.engine
            .put_now(key("a"), Some(value(2_048, 1)))
            .await
            .expect("written");
        let damaged = Key::new(Bytes::from_static(b"b\xff%")).expect("short");
        node.engine
            .put_now(damaged.clone(), Some(value(2_048, 2)))
            .await
            .expect("written");
        let all = world
            .objects()
            .list(None)
            .try_collect::<Vec<_>>()
            .await
            .expect("calm");
        node.engine
            .put_now(key("a"), Some(value(2_048, 3)))
            .await
            .expect("written");
        node.engine
            .put_now(key("c"), Some(value(2_048, 4)))
            .await
            .expect("written");
        for pack in &all {
            world.objects().delete(&pack.location).await.expect("calm");
        }
        let whole = Listing {
            prefix: Bytes::new(),
            after: None,
            keys_max: 100,
        };
        let Err(Error::Corrupt(why)) = node.engine.list_now(&whole).await else {
            panic!("it is damaged")
        };
        assert!(why.ends_with(r#"the value of "b\xff%""#), "{why}");
        for (after, keys_max, shown) in [(None, 1, "a"), (Some(damaged), 100, "c")] {
            let listing = Listing {
                after,
                keys_max,
                ..whole.clone()
            };
            let page = node
                .engine
                .list_now(&listing)
                .await
                .expect("nothing of it is damaged")
                .value;
            assert_eq!(
                page.keys
                    .iter()
                    .map(|listed| &listed.key)
                    .collect::<Vec<_>>(),
                [&key(shown)]
            );
        }
    });
}

/// A damaged pack is refused where it is read, and stays where it is, however much of it is dead.
#[test]
fn a_damaged_pack_is_neither_read_nor_deleted() {
    in_virtual_time(async |world| {
        let config = Config {
            data_cache_bytes_max: 0,
            ..Config::default()
        };
        let node = node(&world, config).await;
        write(&node, 1, 4).await;
        let all = world
            .objects()
            .list(None)
            .try_collect::<Vec<_>>()
            .await
            .expect("calm");
        let pack = all
            .iter()
            .find(|meta| meta.location.filename() == Some("1"))
            .expect("the first pack");
        let damaged = vec![7; pack.size as usize];
        let place: &ObjectPath = &pack.location;
        world.objects().delete(place).await.expect("calm");
        world
            .objects()
            .put(place, PutPayload::from(damaged))
            .await
            .expect("calm");
        let read = node.engine.get_now(&key("k1-3")).await;
        assert!(matches!(read, Err(Error::Corrupt(_))), "{read:?}");
        for number in 0..3 {
            node.engine
                .put_now(key(&format!("k1-{number}")), Some(value(2_048, 9)))
                .await
                .expect("written");
        }
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert!(world.objects().head(place).await.is_ok());
        assert_eq!(
            shown(&node, "k1-0").await,
            Some(value(2_048, 9)),
            "others go on"
        );
        assert_eq!(PackId::from_bytes(b"what is no pack's name"), None);
    });
}
