//! T6, T9, T17, T18: the object store of packs: a wrong, shared or restored one, and missing or
//! damaged packs.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::TryStreamExt;
use ports::objects::{ObjectPath, ObjectStore, ObjectStoreExt as _, PutPayload};
use simulated::World;
use transactions::{
    Config, Error, Parts, Service,
    broken::Broken,
    layout,
    list::Listing,
    model::{Key, PackId},
};

use crate::{
    house::{Node, in_virtual_time, items_at_rest, key},
    packing::{node, packs, service, shown, value, write},
};

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
        let both_go = async {
            loop {
                let left = list().await;
                if !left.contains(&orphan) && !left.contains(pack) {
                    return left;
                }
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        };
        let left = tokio::time::timeout(Duration::from_hours(1), both_go);
        let left = left.await.expect("the dead no longer write");
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

/// Whether a pack from after a backup is there after the restored store has swept for dead nodes.
async fn a_later_pack_stays(world: &World, keeps_unknown_packs: bool) -> bool {
    let config = || Config {
        keeps_unknown_packs,
        ..Config::default()
    };
    let first = node(world, config()).await;
    write(&first, 1, 1).await;
    drop(first);
    let (objects, place) = (world.objects(), place_of_packs(world, 1).await);
    let known = objects.get(&place.clone().join("1")).await.expect("calm");
    let content = known.bytes().await.expect("calm");
    let later = place.join("77");
    objects.put(&later, content.into()).await.expect("calm");
    let _second = node(world, config()).await;
    tokio::time::sleep(Duration::from_mins(45)).await;
    objects.head(&later).await.is_ok()
}

/// A restored store leaves the packs alone that the bucket has from after the backup.
#[test]
fn packs_from_after_a_backup_are_kept_on_request() {
    for keeps in [true, false] {
        in_virtual_time(async |world| {
            assert_eq!(a_later_pack_stays(&world, keeps).await, keeps);
        });
    }
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
