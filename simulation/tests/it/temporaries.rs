//! P5: objects are removed only once their replacement is durable, and then by the next process.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use coordination::{
    Config,
    config::DataPlacement,
    model::{Lifetime, Request},
};
use futures_util::TryStreamExt as _;
use ports::{
    faults::Calm,
    objects::{ObjectPath, ObjectStore as _, ObjectStoreExt as _, PutPayload},
};
use simulated::World;

use crate::single_service::{NothingDurable, connect, create, following, result};

/// Long enough for several runs of the heartbeat, and shorter than the session's life.
const SOME_BEATS: Duration = Duration::from_secs(5);

/// P5: a store that crashes before that is durable applies the data in the object again.
#[test]
fn a_temporary_object_stays_until_its_update_is_durable() {
    simulated::run(async {
        let (world, faults) = (World::new(1), Arc::new(NothingDurable::default()));
        let config = Config {
            temporary_sweep_period: Duration::ZERO,
            ..Config::default()
        };
        let service = following(&world, faults.clone(), config).await;
        let client = connect(&service.gateway()).await.expect("a session");
        // Named by `coordination::storage::temporary`, for an earlier connection.
        let object = ObjectPath::from(format!("temporary/{:016x}-0-1", client.session().0));
        world
            .objects()
            .put(&object, PutPayload::from_static(b"data"))
            .await
            .expect("a calm world");
        let is_there = async || world.objects().head(&object).await.is_ok();
        let clock = world.clock();
        faults.0.store(true, Ordering::Relaxed);
        clock.sleep(SOME_BEATS).await;
        assert!(is_there().await, "durability is unknown");
        faults.0.store(false, Ordering::Relaxed);
        clock.sleep(SOME_BEATS).await;
        assert!(!is_there().await, "no request can need it");
    });
}

/// P5: a distributor that fails after it applied a change leaves an object that nothing names.
#[test]
fn an_object_that_a_distributor_has_left_is_removed_by_the_next_one() {
    simulated::run(async {
        let (world, faults) = (World::new(1), Arc::new(NothingDurable::default()));
        let config = Config {
            placement: DataPlacement::Objects,
            ..Config::default()
        };
        let service = following(&world, faults.clone(), config).await;
        let mut client = connect(&service.gateway()).await.expect("a session");
        let set = |data: &'static [u8]| Request::SetData {
            path: "/a".into(),
            data: Some(data.into()),
            version: -1,
        };
        let prefix = ObjectPath::from("znodes");
        let named = async || -> Vec<_> {
            let objects = world
                .objects()
                .list(Some(&prefix))
                .try_collect::<Vec<_>>()
                .await;
            objects
                .expect("a calm world")
                .into_iter()
                .map(|object| object.location)
                .collect()
        };
        result(&mut client, create("/a", Lifetime::Persistent))
            .await
            .expect("it is made");
        result(&mut client, set(b"first")).await.expect("it is set");
        let first = named().await;
        assert_eq!(first.len(), 1);
        faults.0.store(true, Ordering::Relaxed);
        client.submit(1, set(b"second"));
        client
            .pump(&mut Vec::new())
            .await
            .expect("the session lives");
        world.clock().sleep(SOME_BEATS).await;
        assert!(named().await.contains(&first[0]), "durability is unknown");
        faults.0.store(false, Ordering::Relaxed);
        world.clock().sleep(SOME_BEATS).await;
        let second = named().await;
        assert!(second.len() == 1 && second != first, "{second:?}");
    });
}

/// P5: the object of an update is removed once the update is applied, even if its session lives on.
#[test]
fn a_temporary_object_is_removed_with_its_update() {
    simulated::run(async {
        let (world, calm) = (World::new(1), Arc::new(Calm));
        let config = Config {
            message_payload_bytes_max: 100,
            ..Config::default()
        };
        let service = following(&world, calm, config).await;
        let mut client = connect(&service.gateway()).await.expect("a session");
        result(&mut client, create("/a", Lifetime::Persistent))
            .await
            .expect("it is made");
        let data = Some(vec![7; 1_000].into());
        let set = Request::SetData {
            path: "/a".into(),
            data,
            version: -1,
        };
        result(&mut client, set).await.expect("it is set");
        world.clock().sleep(Duration::from_secs(1)).await;
        let carried = |entry: &&simulated::Entry| entry.subject.starts_with("temporary/");
        assert!(
            world.trace().entries().filter(carried).count() > 0,
            "it travelled in an object"
        );
        let prefix = ObjectPath::from("temporary");
        let left = world
            .objects()
            .list(Some(&prefix))
            .try_collect::<Vec<_>>()
            .await;
        assert_eq!(left.expect("a calm world"), []);
        result(&mut client, Request::Sync { path: None })
            .await
            .expect("its session lives");
    });
}

/// P5: any number of needed objects does not hide one that is garbage.
#[test]
fn garbage_is_found_behind_many_objects_that_are_needed() {
    simulated::run(async {
        let (world, faults) = (World::new(1), Arc::new(NothingDurable::default()));
        let config = Config {
            temporary_sweep_period: Duration::ZERO,
            ..Config::default()
        };
        let service = following(&world, faults, config).await;
        let client = connect(&service.gateway()).await.expect("a session");
        let put = async |name: String| {
            let (object, data) = (ObjectPath::from(name), PutPayload::from_static(b"data"));
            world.objects().put(&object, data).await.expect("it is put");
            object
        };
        for request in 0..10_001 {
            put(format!(
                "temporary/{:016x}-1-{request:x}",
                client.session().0
            ))
            .await;
        }
        let garbage = put(format!("temporary/{:016x}-1-1", i64::MAX)).await;
        world.clock().sleep(SOME_BEATS).await;
        assert!(
            world.objects().head(&garbage).await.is_err(),
            "its session is not there"
        );
    });
}
