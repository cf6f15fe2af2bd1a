//! Instances that die at any moment: what they held comes back.

use std::time::Duration;

use primitives::Mutant;
use simulated::percent;

use super::{races::slow_world, window::started_with, *};
use crate::instance::Instance;

fn missing(service: &Service) -> usize {
    service.reader.residency.missing_count()
}

async fn kill(service: &Service, index: u8) -> Arc<Instance> {
    let dead = instance(service, index).await;
    dead.end();
    dead.died().await;
    dead
}

/// Section 5.5.2: a chunk is decoded from the instances that live.
#[test]
fn a_function_is_recovered_from_the_others_without_a_call_to_the_stores() {
    run(async {
        let world = World::new(1);
        let started = started(&world).await;
        let service = &started.service;
        let contents: Vec<_> = (0..9).map(|seed| content(seed, 9 * STRIPE + 17)).collect();
        for (key, content) in contents.iter().enumerate() {
            put(service, &key.to_string(), content).await;
        }
        // The rows of the fragments are written.
        world.clock().sleep(Duration::from_secs(5)).await;
        let before = world.port_calls();
        kill(service, 3).await;
        kill(service, 5).await;
        assert_eq!(missing(service), 18);
        until(&world, || async { missing(service) == 0 }).await;
        assert_eq!(world.port_calls(), before);
        // Both are needed once two others are dead.
        kill(service, 0).await;
        kill(service, 1).await;
        for (key, content) in contents.iter().enumerate() {
            let read = get(service, &key.to_string()).await;
            assert!(read.expect("it is there") == *content);
        }
    });
}

/// M7: the fragment is in the store alone, until it is read.
#[test]
fn a_fragment_whose_chunk_finds_no_space_in_recovery_is_loaded_anew() {
    run(async {
        let world = World::new(4);
        let started = start(&world);
        // Nothing is recovered before `run` is called again.
        started.run.abort();
        let service = &started.service;
        service.create_bucket("b").await.expect("made");
        let whole = content(1, 9 * STRIPE + 17);
        put(service, "k", &whole).await;
        kill(service, 3).await;
        let function = FunctionId {
            group: crate::window::GroupId(0),
            index: 3,
        };
        let restored = service.groups.restore(function, 0).await;
        restored.expect("it is active");
        let full = instance(service, 3).await;
        let name = crate::instance::ChunkName {
            segment: 1,
            fragment: 0,
            index: 3,
        };
        let _all = full.reserve(name, full.capacity_bytes()).await;
        let running = service.clone();
        tokio::spawn(async move { running.run().await });
        world.clock().sleep(Duration::from_secs(5)).await;
        assert_eq!(service.figures().fragments, 0);
        assert!(get(service, "k").await.expect("it is there") == whole);
        until(&world, || async { service.figures().fragments == 1 }).await;
        assert_eq!(missing(service), 0);
    });
}

/// M7: the chunks are decoded from others then.
#[test]
fn an_instance_that_dies_soon_after_each_start_is_replaced_more_and_more_rarely() {
    run(async {
        let world = World::new(5);
        let started = started(&world).await;
        let service = &started.service;
        let whole = content(1, 9 * STRIPE + 17);
        put(service, "k", &whole).await;
        let begun = world.clock().monotonic();
        for deaths in 1..16 {
            kill(service, 3).await;
            until(&world, || async {
                service.figures().recoveries == deaths && missing(service) == 0
            })
            .await;
        }
        let lasted = world.clock().monotonic().since(begun);
        assert!(lasted > Duration::from_mins(5), "{lasted:?}");
        kill(service, 3).await;
        world.clock().sleep(Duration::from_mins(10)).await;
        let figures = service.figures();
        assert_eq!((figures.recoveries, figures.instances), (15, 5));
        assert_eq!((figures.fragments, missing(service)), (1, 1));
        assert!(get(service, "k").await.expect("it is there") == whole);
    });
}

/// M7: more instances die than the code has parity units.
#[test]
fn fragments_that_lost_more_than_their_parity_come_back_in_place() {
    run(async {
        let world = World::new(2);
        let started = started(&world).await;
        let service = &started.service;
        let whole = content(1, 9 * STRIPE + 17);
        put(service, "k", &whole).await;
        for index in 0..5 {
            instance(service, index).await.end();
        }
        assert!(get(service, "k").await.expect("it is there") == whole);
        until(&world, || async { missing(service) == 0 }).await;
        world.clock().sleep(Duration::from_secs(5)).await;
        let before = world.port_calls();
        let opened = service.open("b", "k").await.expect("it is there");
        let to_open = world.port_calls() - before;
        assert!(read(opened, 0..whole.len() as u64).await.expect("read") == whole);
        assert_eq!(world.port_calls() - before, to_open, "memory has all");
    });
}

/// Deaths at any message, during PUTs, GETs and recoveries. The chunks that are missing in the end.
async fn missing_after_deaths(seed: u64, config: &Config) -> usize {
    let world = slow_world(seed);
    let started = started_with(&world, config).await;
    let service = &started.service;
    world.faults().kill_instances(percent(3));
    let contents: Vec<_> = (0..6).map(|seed| content(seed, 5 * STRIPE + 1)).collect();
    let puts = contents.iter().enumerate().map(async |(key, content)| {
        let key = key.to_string();
        put(service, &key, content).await;
        assert!(get(service, &key).await.expect("it is there") == *content);
    });
    join_all(puts).await;
    world.faults().calm();
    world.clock().sleep(Duration::from_mins(1)).await;
    for (key, content) in contents.iter().enumerate() {
        let read = get(service, &key.to_string()).await;
        assert!(read.expect("it is there") == *content, "seed {seed}");
    }
    missing(service)
}

/// M7: a chunk may miss the death of its instance while its fragment is stored.
#[test]
fn no_chunk_of_an_active_function_stays_lost() {
    let missing = |seed, config: Config| run(missing_after_deaths(seed, &config));
    for seed in seeds(60) {
        assert_eq!(missing(seed, config()), 0, "seed {seed}");
    }
    let mutant = || of(Mutant::of(Broken::ForgetsMissingChunks), config());
    assert!((0..400).any(|seed| missing(seed, mutant()) > 0));
}

/// Section 5.5.2: service resumption. Rows of fragments that are deleted or cold are removed.
#[test]
fn hot_fragments_are_in_memory_again_after_a_restart() {
    run(async {
        let world = World::new(3);
        let first = started(&world).await;
        let contents: Vec<_> = (0..4).map(|seed| content(seed, 3 * STRIPE)).collect();
        put(&first.service, "cold", &contents[0]).await;
        world.clock().sleep(Duration::from_mins(61)).await;
        for key in ["1", "2", "deleted"] {
            put(&first.service, key, &contents[1]).await;
        }
        world.clock().sleep(Duration::from_mins(2)).await;
        let deleted = first
            .service
            .delete("b", "deleted", &Conditions::default())
            .await;
        deleted.expect("deleted");
        until(&world, || async { stored_objects(&world).await == 3 }).await;
        // The row of the deleted one is still there.
        drop(first);
        let table = Table {
            key_value: world.key_value(),
            clock: world.clock(),
            entropy: world.entropy(),
            mutant: Mutant::NONE,
            own: None,
        };
        let rows = async || {
            let page = crate::storage::resident::page(&table, Bytes::new()).await;
            page.expect("read").0.len()
        };
        assert_eq!(rows().await, 4);
        let second = start(&world);
        world.clock().sleep(Duration::from_secs(5)).await;
        assert_eq!((second.service.figures().fragments, rows().await), (2, 2));
        for (key, content) in [("1", &contents[1]), ("cold", &contents[0])] {
            assert!(get(&second.service, key).await.expect("there") == *content);
        }
    });
}

#[test]
fn the_rows_of_many_fragments_are_written_together() {
    run(async {
        let world = World::new(6);
        let started = started(&world).await;
        for key in 0..30 {
            put(&started.service, &key.to_string(), &content(key, 9000)).await;
        }
        let before = world.port_calls();
        world.clock().sleep(Duration::from_secs(5)).await;
        let calls = world.port_calls() - before;
        assert!(calls <= 3, "{calls} calls");
    });
}

/// Section 5.5.2: the row of a deleted object may outlive it, before and after its collection.
#[test]
fn rows_of_fragments_that_no_object_has_start_no_instance() {
    for is_collected in [true, false] {
        run(async {
            let world = World::new(7);
            let first = started(&world).await;
            put(&first.service, "k", &content(1, 3 * STRIPE)).await;
            world.clock().sleep(Duration::from_secs(5)).await;
            // A reader keeps the content from being collected before the end of the process.
            let opened = first.service.open("b", "k").await;
            let opened = opened.ok().filter(|_| !is_collected);
            let none = Conditions::default();
            let deleted = first.service.delete("b", "k", &none);
            deleted.await.expect("deleted");
            if is_collected {
                until(&world, || async { stored_objects(&world).await == 0 }).await;
            }
            assert_eq!(stored_objects(&world).await, usize::from(!is_collected));
            drop(first);
            let second = start(&world);
            world.clock().sleep(Duration::from_secs(5)).await;
            assert_eq!(second.service.figures().instances, 0, "{is_collected}");
            assert_eq!(stored_objects(&world).await, 0);
            drop(opened);
        });
    }
}
