//! The cache partition (`infinistore.txt`, section 5.4): what reads miss, and what makes room for
//! what.

use futures_util::TryStreamExt as _;

use super::{
    window::{MINUTE, all_are_read, by_minutes, group_of, put_large, started_with},
    *,
};
/// A service that has `keys` in the object store alone, and no instance.
async fn with_cold(world: &World, keys: Range<u64>, mutant: Mutant<Broken>) -> Started {
    let config = Config {
        mutant,
        ..by_minutes()
    };
    let started = started_with(world, &config).await;
    put_large(&started.service, keys).await;
    world.clock().sleep(10 * MINUTE).await;
    assert_eq!(started.service.figures().instances, 0);
    started
}

/// Reads a cold object, and waits until it is in memory.
async fn read_into_memory(world: &World, service: &Service, key: u64) {
    all_are_read(service, key..key + 1).await;
    let key = key.to_string();
    until(world, || async { group_of(service, &key).await.is_some() }).await;
}

async fn is_in_memory(service: &Service, key: u64) -> bool {
    group_of(service, &key.to_string()).await.is_some()
}

/// Whether two objects that fill a group share one, although a cold one was read between their
/// PUTs.
async fn a_put_takes_the_space_of_a_cold_object(mutant: Mutant<Broken>) -> bool {
    let world = World::new(1);
    let started = with_cold(&world, 0..1, mutant).await;
    let service = &started.service;
    put_large(service, 1..2).await;
    read_into_memory(&world, service, 0).await;
    assert_eq!(group_of(service, "0").await, group_of(service, "1").await);
    put_large(service, 2..3).await;
    all_are_read(service, 0..3).await;
    group_of(service, "1").await == group_of(service, "2").await
}

#[test]
fn an_object_that_a_read_missed_is_cached_and_makes_room_for_a_put() {
    let keeps = |mutant| run(a_put_takes_the_space_of_a_cold_object(mutant));
    assert!(keeps(Mutant::NONE));
    assert!(!keeps(Mutant::of(Broken::CachesAsStorage)));
}

/// Which of three cold objects are in memory after the first one was read twice, the second once,
/// and then the third. Two have space.
async fn after_an_eviction(mutant: Mutant<Broken>) -> [bool; 3] {
    let world = World::new(2);
    let started = with_cold(&world, 0..3, mutant).await;
    let service = &started.service;
    read_into_memory(&world, service, 0).await;
    read_into_memory(&world, service, 1).await;
    assert_eq!(service.figures().fragments_cached, 2);
    all_are_read(service, 0..1).await;
    read_into_memory(&world, service, 2).await;
    assert_eq!(service.figures().instances, 6);
    let mut present = [false; 3];
    for (key, is_there) in (0..).zip(&mut present) {
        *is_there = is_in_memory(service, key).await;
    }
    present
}

#[test]
fn the_least_recently_used_cached_object_makes_room_for_another() {
    let present = |mutant| run(after_an_eviction(mutant));
    assert_eq!(present(Mutant::NONE), [true, false, true]);
    let newest_first = present(Mutant::of(Broken::EvictsNewestFirst));
    assert_eq!(newest_first, [false, true, true]);
}

/// The groups that are released early while ten cold objects are read at the bound on all memory,
/// and whether the object that was put last is in memory then.
async fn released_by_cold_reads(mutant: Mutant<Broken>) -> (u64, bool) {
    let world = World::new(3);
    let config = Config {
        memory_bytes_max: 3 * 6 * by_minutes().instance_bytes,
        mutant,
        ..by_minutes()
    };
    let started = started_with(&world, &config).await;
    let service = &started.service;
    put_large(service, 0..16).await;
    let before = service.figures().groups_released;
    for key in 0..10 {
        all_are_read(service, key..key + 1).await;
        until(&world, || async { is_in_memory(service, key).await }).await;
    }
    let released = service.figures().groups_released - before;
    (released, is_in_memory(service, 15).await)
}

#[test]
fn reads_of_cold_objects_do_not_push_out_what_is_stored() {
    let released = |mutant| run(released_by_cold_reads(mutant));
    assert_eq!(released(Mutant::NONE), (1, true));
    assert_eq!(released(Mutant::of(Broken::CachesAsStorage)), (5, false));
}

/// Section 5.4: the cache is recovered too, and stays a cache.
#[test]
fn cached_objects_come_back_after_a_death_and_after_a_restart() {
    run(async {
        let world = World::new(4);
        let started = with_cold(&world, 0..1, Mutant::NONE).await;
        let service = &started.service;
        put_large(service, 1..2).await;
        read_into_memory(&world, service, 0).await;
        let group = group_of(service, "0").await.expect("it is there");
        let function = FunctionId { group, index: 2 };
        let dead = service.groups.instance(function).await.expect("it runs");
        dead.end();
        dead.died().await;
        let missing = || service.reader.residency.missing_count();
        assert_eq!(missing(), 2);
        until(&world, || async { missing() == 0 }).await;
        assert_eq!(service.figures().fragments_cached, 1);
        // The rows are written.
        world.clock().sleep(Duration::from_secs(5)).await;
        drop(started);
        let second = start_with(&world, world.clock(), &by_minutes());
        world.clock().sleep(Duration::from_secs(5)).await;
        let figures = second.service.figures();
        assert_eq!((figures.fragments, figures.fragments_cached), (2, 1));
        // It still makes room.
        put_large(&second.service, 2..3).await;
        let figures = second.service.figures();
        assert_eq!((figures.instances, figures.fragments_cached), (6, 0));
        all_are_read(&second.service, 0..3).await;
    });
}

/// M6: space is used again only after its last reader has ended.
#[test]
fn an_object_that_is_evicted_while_it_is_read_is_read_whole() {
    run(async {
        let world = World::new(5);
        let started = with_cold(&world, 0..1, Mutant::NONE).await;
        let service = &started.service;
        put_large(service, 1..2).await;
        read_into_memory(&world, service, 0).await;
        let opened = service.open("b", "0").await.expect("it is there");
        let mut reading = opened.read(0..LARGE as u64);
        let mut read = vec![reading.try_next().await.expect("read").expect("some")];
        put_large(service, 2..4).await;
        assert!(!is_in_memory(service, 0).await);
        let rest: Vec<Bytes> = reading.try_collect().await.expect("read");
        read.extend(rest);
        assert!(read.concat() == content(0, LARGE));
        all_are_read(service, 1..4).await;
    });
}

/// Section 5.3.3: only what stays in use takes storage.
#[test]
fn a_cached_object_that_is_read_again_is_stored() {
    run(async {
        let world = World::new(6);
        let started = with_cold(&world, 0..1, Mutant::NONE).await;
        let service = &started.service;
        put_large(service, 1..2).await;
        read_into_memory(&world, service, 0).await;
        world.clock().sleep(MINUTE / 2).await;
        assert_eq!(service.figures().fragments_cached, 1);
        all_are_read(service, 0..1).await;
        until(&world, || async {
            let figures = service.figures();
            (figures.fragments, figures.fragments_cached) == (2, 0)
        })
        .await;
        // The group is full now.
        put_large(service, 2..3).await;
        assert_eq!(group_of(service, "0").await, group_of(service, "1").await);
        assert_ne!(group_of(service, "0").await, group_of(service, "2").await);
        all_are_read(service, 0..3).await;
    });
}
