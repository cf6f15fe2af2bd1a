//! The promises one by one: each scenario goes well, and does not once its rule is dropped.

use futures_util::future::join;

use super::{races::slow_world, window::started_with, *};

/// The program, and the mutant without `rule`.
fn with_and_without(rule: Broken) -> [Mutant<Broken>; 2] {
    [Mutant::NONE, Mutant::of(rule)]
}

/// Of eight uploads that expect no object, the number of those that succeed.
async fn succeeding_of_eight(seed: u64, mutant: Mutant<Broken>) -> usize {
    let world = slow_world(seed);
    let started = started_with(&world, &of(mutant, config())).await;
    let absent = Conditions {
        if_none_match: Some(ETags::Any),
        if_match: None,
    };
    let contents: Vec<_> = (0..8).map(|seed| content(seed, 3 * STRIPE)).collect();
    let puts = contents
        .iter()
        .map(|content| put_under(&started.service, "k", content, &absent));
    let outcomes = join_all(puts).await;
    let won: Vec<_> = (0..8).filter(|index| outcomes[*index].is_ok()).collect();
    let lost = |outcome: &&Result<Object>| matches!(outcome, Err(Error::ConditionFailed));
    assert_eq!(outcomes.iter().filter(lost).count(), 8 - won.len());
    let found = get(&started.service, "k").await.expect("it is there");
    assert!(won.iter().any(|index| found == contents[*index]));
    until(&world, || async { stored_objects(&world).await == 1 }).await;
    won.len()
}

/// M1: conditions are checked when the change is decided.
#[test]
fn of_racing_uploads_that_expect_no_object_one_succeeds() {
    let succeeding = |seed, mutant| run(succeeding_of_eight(seed, mutant));
    for seed in seeds(20) {
        assert_eq!(succeeding(seed, Mutant::NONE), 1, "seed {seed}");
    }
    let mutant = Mutant::of(Broken::ChecksConditionsEarly);
    assert!((0..20).any(|seed| succeeding(seed, mutant) > 1));
}

/// Whether an object whose PUT was seen and whose deletion was acknowledged is there.
async fn is_back_after_its_deletion(seed: u64, mutant: Mutant<Broken>) -> bool {
    let world = slow_world(seed);
    let started = started_with(&world, &of(mutant, config())).await;
    let (service, none) = (&started.service, Conditions::default());
    world.faults().lose_answer(percent(40));
    let small = content(seed, 100);
    let put = put_under(service, "k", &small, &none);
    let delete = async {
        for _ in 0..200 {
            if service.head("b", "k").await.is_ok() {
                return service.delete("b", "k", &none).await.is_ok();
            }
            world.clock().sleep(Duration::from_millis(1)).await;
        }
        false
    };
    let (_, is_deleted) = join(put, delete).await;
    world.faults().calm();
    is_deleted && get(service, "k").await.is_ok()
}

/// M2: a PUT whose answer was lost is repeated, and a deletion came between.
#[test]
fn a_late_retry_of_a_put_does_not_undo_a_deletion() {
    let is_back = |seed, mutant| run(is_back_after_its_deletion(seed, mutant));
    for seed in seeds(100) {
        assert!(!is_back(seed, Mutant::NONE), "seed {seed}");
    }
    let mutant = Mutant::of(Broken::ForgetsOperations);
    assert!((0..400).any(|seed| is_back(seed, mutant)));
}

/// M2, M7: every process dies after the answer.
#[test]
fn an_acknowledged_object_needs_no_function_memory() {
    for mutant in with_and_without(Broken::AcknowledgesMemoryAlone) {
        run(async {
            let world = World::new(1);
            let first = started_with(&world, &of(mutant, config())).await;
            let contents = [3 * STRIPE, 9 * STRIPE + 17].map(|bytes| content(1, bytes));
            for (key, content) in ["one", "many"].into_iter().zip(&contents) {
                put(&first.service, key, content).await;
                let read = get(&first.service, key).await.expect("it is in memory");
                assert!(read == *content);
            }
            drop(first);
            world.crash();
            let second = start(&world);
            for (key, content) in ["one", "many"].into_iter().zip(&contents) {
                let read = get(&second.service, key).await;
                assert_eq!(read.is_ok_and(|read| read == *content), !mutant.is_any());
            }
        });
    }
}

/// Flips a bit at each of `places` of the one stored object.
async fn damage(world: &World, places: &[usize]) {
    let objects = world.objects();
    let stored = objects.list(None).next().await;
    let stored = stored.expect("one object").expect("listed");
    let read = objects.get_range(&stored.location, 0..stored.size).await;
    let mut content = read.expect("read").to_vec();
    for place in places {
        content[*place] ^= 1;
    }
    let options = PutOptions::default();
    let put = objects.put_opts(&stored.location, content.into(), options);
    put.await.expect("damaged");
}

/// M4, in the object store.
#[test]
fn damaged_units_are_repaired_and_never_sent() {
    // Each place lies in another unit of the first stripe.
    for places in [&[10, 1110][..], &[10, 1110, 2210]] {
        for mutant in with_and_without(Broken::TrustsUnits) {
            run(async {
                let world = World::new(10);
                let without_memory = Config {
                    memory_bytes_max: 0,
                    ..of(mutant, config())
                };
                let started = started_with(&world, &without_memory).await;
                let whole = content(1, 9 * STRIPE);
                put(&started.service, "k", &whole).await;
                damage(&world, places).await;
                match get(&started.service, "k").await {
                    Ok(read) if mutant.is_any() => assert!(read != whole),
                    Ok(read) => assert!(places.len() == 2 && read == whole),
                    Err(Error::Damaged(_)) => assert_eq!(places.len(), 3),
                    Err(error) => panic!("{error}"),
                }
            });
        }
    }
}

/// M4, in function memory.
#[test]
fn damaged_units_in_memory_are_neither_sent_nor_decoded() {
    for (dead, damaged) in [(None, 0), (Some(0), 4)] {
        for mutant in with_and_without(Broken::TrustsUnits) {
            run(async {
                let world = World::new(10);
                let started = started_with(&world, &of(mutant, config())).await;
                let service = &started.service;
                let whole = content(1, 9 * STRIPE);
                put(service, "k", &whole).await;
                instance(service, damaged).await.damage(10);
                if let Some(dead) = dead {
                    let dead = instance(service, dead).await;
                    dead.end();
                    dead.died().await;
                }
                let read = get(service, "k").await.expect("it is read");
                assert_eq!(read == whole, !mutant.is_any());
            });
        }
    }
}

/// M6.
#[test]
fn a_read_ends_with_the_version_that_it_began_with() {
    for mutant in with_and_without(Broken::HoldsNothing) {
        run(async {
            let world = World::new(4);
            let started = started_with(&world, &of(mutant, config())).await;
            let service = &started.service;
            let (old, new) = (content(1, 30 * STRIPE), content(2, 30 * STRIPE));
            put(service, "k", &old).await;
            let opened = service.open("b", "k").await.expect("it is there");
            let bytes = opened.object().bytes;
            let mut reading = opened.read(0..bytes);
            let first = reading.next().await.expect("some").expect("it is read");
            put(service, "k", &new).await;
            let deleted = service.delete("b", "k", &Conditions::default()).await;
            deleted.expect("deleted");
            let gone = get(service, "k").await;
            assert!(matches!(gone, Err(Error::NoSuchObject)));
            world.clock().sleep(Duration::from_mins(1)).await;
            let rest: Result<Vec<Bytes>> = reading.try_collect().await;
            let is_whole = |rest: Vec<Bytes>| [vec![first], rest].concat().concat() == old;
            assert_eq!(rest.is_ok_and(is_whole), !mutant.is_any());
            until(&world, || async { stored_objects(&world).await == 0 }).await;
            assert_eq!(service.figures().fragments, 0);
        });
    }
}

/// Another start has other settings.
#[test]
fn an_object_of_another_erasure_code_is_read_and_repaired() {
    for (data_units, parity_units) in [(3, 1), (5, 3), (5, 1)] {
        run(async {
            let world = World::new(5);
            let first = started_with(&world, &config()).await;
            let whole = content(1, 9 * STRIPE);
            put(&first.service, "k", &whole).await;
            drop(first);
            damage(&world, &[10, 1110]).await;
            let other = Config {
                data_units,
                parity_units,
                ..config()
            };
            let second = start_with(&world, world.clock(), &other);
            for _ in 0..2 {
                let read = get(&second.service, "k").await.expect("it is there");
                assert!(read == whole);
                world.clock().sleep(Duration::from_secs(5)).await;
            }
            // A group with fewer functions than the fragment has chunks holds none of it.
            let dead = if data_units + parity_units < 6 { 0 } else { 2 };
            for index in 0..dead {
                instance(&second.service, index).await.end();
            }
            let read = get(&second.service, "k").await.expect("it is there");
            assert!(read == whole);
        });
    }
}
