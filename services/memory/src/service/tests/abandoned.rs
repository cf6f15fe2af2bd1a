//! Uploads in parts that their clients abandon.

use futures_util::future::join;

use super::*;

const DAY: Duration = Duration::from_hours(24);

async fn begin(service: &Service) -> UploadId {
    let begun = service.begin_upload("b", "k", Attributes::default()).await;
    begun.expect("begun")
}

async fn open_uploads(service: &Service) -> Vec<UploadId> {
    let open = service.uploads("b", "", None, 100).await.expect("listed");
    open.into_iter().map(|upload| upload.id).collect()
}

#[test]
fn an_abandoned_upload_is_collected_after_seven_days_also_across_a_restart() {
    run(async {
        let world = World::new(1);
        let first = started(&world).await;
        let old = begin(&first.service).await;
        upload_parts(&first.service, old, &[3 * STRIPE, 100]).await;
        world.clock().sleep(3 * DAY).await;
        let young = begin(&first.service).await;
        upload_parts(&first.service, young, &[3 * STRIPE]).await;
        drop(first);
        let second = start(&world);
        world.clock().sleep(3 * DAY + DAY / 24 * 23).await;
        assert_eq!(open_uploads(&second.service).await, [old, young]);
        assert_eq!(stored_objects(&world).await, 2);
        world.clock().sleep(DAY / 12).await;
        assert_eq!(open_uploads(&second.service).await, [young]);
        until(&world, || async { stored_objects(&world).await == 1 }).await;
        let part = store(&second.service, &content(1, 100)).await;
        let part = part.expect("stored");
        let late = second
            .service
            .commit_part("b", "k", old, 3, part, BTreeMap::new());
        assert!(matches!(late.await, Err(Error::NoSuchUpload)));
        world.clock().sleep(3 * DAY).await;
        assert!(open_uploads(&second.service).await.is_empty());
        until(&world, || async { stored_objects(&world).await == 0 }).await;
        let deleted = second.service.delete_bucket("b").await;
        deleted.expect("no row of an upload is left");
        // Without an open upload no call is made, and the next upload wakes the collection.
        world.clock().sleep(DAY).await;
        let calls = world.port_calls();
        world.clock().sleep(3 * DAY).await;
        assert_eq!(world.port_calls(), calls);
        second.service.create_bucket("b").await.expect("made");
        begin(&second.service).await;
        world.clock().sleep(8 * DAY).await;
        assert!(open_uploads(&second.service).await.is_empty());
    });
}

#[test]
fn an_upload_that_has_ended_leaves_no_scan() {
    run(async {
        let world = World::new(2);
        let started = started(&world).await;
        let service = &started.service;
        for is_completed in [true, false] {
            let upload = begin(service).await;
            let named = upload_parts(service, upload, &[3 * STRIPE]).await;
            world.clock().sleep(DAY).await;
            if is_completed {
                let none = Conditions::default();
                let object =
                    service.complete_upload("b", "k", upload, &named, BTreeMap::new(), &none);
                object.await.expect("completed");
            } else {
                let aborted = service.abort_upload("b", "k", upload);
                aborted.await.expect("it is open");
            }
            world.clock().sleep(DAY).await;
            let calls = world.port_calls();
            world.clock().sleep(8 * DAY).await;
            assert_eq!(world.port_calls(), calls, "completed: {is_completed}");
        }
    });
}

/// M1, M2: the upload becomes an object, or nothing is left of it.
#[test]
fn a_completion_that_races_with_the_collection_wins_or_leaves_nothing() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in seeds(60) {
        outcomes.insert(run(async {
            let world = World::new(seed);
            let longest = Duration::from_millis(20);
            world.faults().delay(percent(60), Duration::ZERO..=longest);
            let started = started(&world).await;
            let service = &started.service;
            let begun = world.clock().monotonic();
            let upload = begin(service).await;
            let named = upload_parts(service, upload, &[3 * STRIPE]).await;
            let due = begun + 7 * DAY + Duration::from_millis(seed % 60);
            let complete = async {
                let left = due.since(world.clock().monotonic());
                world.clock().sleep(left).await;
                let none = Conditions::default();
                let done =
                    service.complete_upload("b", "k", upload, &named, BTreeMap::new(), &none);
                done.await
            };
            let (completed, ()) = join(complete, world.clock().sleep(8 * DAY)).await;
            assert!(open_uploads(service).await.is_empty(), "seed {seed}");
            match completed {
                Ok(_) => {
                    let read = get(service, "k").await.expect("it is there");
                    assert!(read == content(1, 3 * STRIPE), "seed {seed}");
                    true
                }
                Err(Error::NoSuchUpload) => {
                    until(&world, || async { stored_objects(&world).await == 0 }).await;
                    false
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }));
    }
    assert!(
        outcomes.len() == 2 || seeds(60).count() == 1,
        "{outcomes:?}"
    );
}
