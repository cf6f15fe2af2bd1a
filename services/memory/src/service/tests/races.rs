//! Changes that meet each other, in simulated worlds with slow calls.

use std::time::Duration;

use futures_util::future::join;
use simulated::percent;

use super::*;

/// A world in which calls take different times.
pub(super) fn slow_world(seed: u64) -> World {
    let world = World::new(seed);
    let longest = Duration::from_millis(20);
    world.faults().delay(percent(60), Duration::ZERO..=longest);
    world
}

/// M2: a completion that races with another upload of its part names one of both, and never garbage.
#[test]
fn a_completed_upload_never_names_a_part_that_was_replaced_meanwhile() {
    for seed in seeds(60) {
        run(async {
            let world = slow_world(seed);
            let started = started(&world).await;
            let service = &started.service;
            let (one, other) = (content(1, 5 * STRIPE), content(2, 5 * STRIPE));
            let begun = service.begin_upload("b", "k", Attributes::default()).await;
            let upload = begun.expect("begun");
            let put_part = async |content: &Bytes| {
                let stored = store(service, content).await.expect("stored");
                let part = service.commit_part("b", "k", upload, 1, stored, BTreeMap::new());
                part.await
            };
            let etag = put_part(&one).await.expect("committed").etag;
            let named = [NamedPart { number: 1, etag }];
            let none = Conditions::default();
            let complete =
                service.complete_upload("b", "k", upload, &named, BTreeMap::new(), &none);
            let (completed, _) = join(complete, put_part(&other)).await;
            match completed {
                Ok(_) => {
                    until(&world, || async { stored_objects(&world).await == 1 }).await;
                    assert!(
                        get(service, "k").await.expect("it is there") == one,
                        "seed {seed}"
                    );
                }
                // Its part had another ETag by then.
                Err(error) => assert!(
                    matches!(error, Error::InvalidPart(1)),
                    "seed {seed}: {error}"
                ),
            }
        });
    }
}

/// A bucket is deleted, or an object is put into it.
#[test]
fn a_deleted_bucket_takes_no_acknowledged_object_with_it() {
    for seed in seeds(100) {
        run(async {
            let world = slow_world(seed);
            let started = started(&world).await;
            let service = &started.service;
            let small = content(1, 100);
            let none = Conditions::default();
            let put = put_under(service, "k", &small, &none);
            let (deleted, put) = join(service.delete_bucket("b"), put).await;
            match (deleted, put) {
                (Ok(()), Err(Error::NoSuchBucket)) => {}
                (Err(Error::BucketNotEmpty | Error::Contended), Ok(_)) => {
                    let found = get(service, "k").await.expect("it is there");
                    assert_eq!(found, small);
                }
                (deleted, put) => panic!("seed {seed}: {deleted:?}, {put:?}"),
            }
        });
    }
}

/// M2: a commit whose caller leaves takes effect as a whole or not at all.
#[test]
fn a_commit_whose_caller_leaves_never_names_collected_content() {
    for seed in seeds(60) {
        run(async {
            let world = slow_world(seed);
            let started = started(&world).await;
            let service = &started.service;
            let whole = content(1, 5 * STRIPE);
            let stored = store(service, &whole).await.expect("stored");
            let none = Conditions::default();
            let mut commit =
                Box::pin(service.commit("b", "k", stored, Attributes::default(), &none));
            let clock = world.clock();
            let patience = clock.sleep(Duration::from_millis(seed % 40));
            futures_util::future::select(&mut commit, Box::pin(patience)).await;
            drop(commit);
            world.clock().sleep(Duration::from_mins(1)).await;
            match get(service, "k").await {
                Ok(found) => assert!(found == whole, "seed {seed}"),
                Err(Error::NoSuchObject) => assert_eq!(stored_objects(&world).await, 0),
                Err(error) => panic!("seed {seed}: {error}"),
            }
        });
    }
}

/// A copy reads while it holds a buffer to write.
#[test]
fn many_copies_at_once_do_not_wait_for_each_other() {
    run(async {
        let world = World::new(1);
        let started = started(&world).await;
        let service = &started.service;
        let whole = content(1, 5 * STRIPE);
        put(service, "k", &whole).await;
        let copies = (0..2 * BUFFERS_MAX).map(|_| async {
            let opened = service.open("b", "k").await.expect("it is there");
            let bytes = opened.object().bytes;
            let read = opened.read(0..bytes).map_err(std::io::Error::other);
            service.store("b", Box::pin(read), Some(bytes)).await
        });
        assert!(join_all(copies).await.into_iter().all(|copy| copy.is_ok()));
    });
}
