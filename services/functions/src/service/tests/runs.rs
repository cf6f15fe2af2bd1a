//! U4: in whose code functions run. A3, A8: what counts as an attempt.

use in_process::Functions;
use ports::{Event, Handler as _, queue::Message};

use super::*;

/// The revision of `one` that is deployed, which is the one in place.
fn in_place(service: &Service, runtime: &Idle) -> String {
    let revision = service.function("one").expect("it is deployed").revision;
    assert_eq!(runtime.renewed.lock().get("one"), Some(&revision));
    revision
}

/// U4. What waited for an instance of the code before waited on, until somebody asked for one of the new.
#[test]
fn what_is_deployed_is_in_place_though_nobody_asks_for_it() {
    run(async {
        let world = World::new(1);
        let ((one, here), (other, there)) =
            (service_among(&world, true), service_among(&world, true));
        let _following = tokio::spawn(other.clone().keep_in_place());
        one.deploy("shop", archive("one")).await.expect("deployed");
        let first = in_place(&one, &here);
        one.deploy("shop", archive("one")).await.expect("deployed");
        let second = in_place(&one, &here);
        assert_ne!(first, second);
        world.clock().sleep(Duration::from_secs(3)).await;
        assert_eq!(in_place(&other, &there), second);
        let (late, started) = service_among(&world, true);
        late.start().await.expect("started");
        assert_eq!(in_place(&late, &started), second);
    });
}

/// An archive whose function `one` has one attempt, and is started by the queue `one`, too.
fn once() -> Bytes {
    let manifest = String::from_utf8(archive("one").into()).expect("text");
    format!("{manifest}\nretries = 0").into()
}

/// What waits for `one`, and what it has failed for good.
async fn backlog(world: &World, service: &Service) -> (u64, u64) {
    let queue = service.events().event_queue(&[PREFIX, "one"].concat());
    let Backlog {
        messages,
        dead_letters,
    } = world
        .queue_admin()
        .backlog(&queue)
        .await
        .expect("backlog answers");
    (messages, dead_letters)
}

/// A service that has it deployed, whose runtime refuses so many attempts and lets all others come to a good end.
async fn refusing(world: &World, times: usize) -> (Service, Arc<Idle>) {
    let (service, runtime) = service(world);
    service.deploy("shop", once()).await.expect("deployed");
    *runtime.is_fit.lock() = |_| true;
    runtime.refuses.store(times, Ordering::Relaxed);
    (service, runtime)
}

/// A3. It was a dead letter, and nobody had run it.
#[test]
fn what_could_not_be_begun_was_not_tried() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = refusing(&world, 20).await;
        service.send("one", "{}".into()).await.expect("sent");
        world.clock().sleep(Duration::from_mins(10)).await;
        assert_eq!(runtime.asked(), 21, "until it was run");
        assert_eq!(backlog(&world, &service).await, (0, 0));
    });
}

/// A8. All that waited was taken at once, and would have been given up at once.
#[test]
fn nothing_more_is_taken_while_nothing_can_be_begun() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = refusing(&world, usize::MAX).await;
        for _ in 0..3 {
            service.send("one", "{}".into()).await.expect("sent");
        }
        let ids = |runtime: &Idle| -> BTreeSet<_> {
            runtime
                .asked_of("one")
                .into_iter()
                .map(|asked| asked.id)
                .collect()
        };
        world.clock().sleep(Duration::from_mins(5)).await;
        assert_eq!(ids(&runtime).len(), 1, "one is asked for again and again");
        assert_eq!(backlog(&world, &service).await, (3, 0));
        runtime.refuses.store(0, Ordering::Relaxed);
        world.clock().sleep(Duration::from_mins(1)).await;
        assert_eq!(ids(&runtime).len(), 3);
        assert_eq!(backlog(&world, &service).await, (0, 0));
    });
}

/// How `one` fails an event that is refused again and again, and after how many refusals.
async fn failed(never: Option<&str>) -> (String, usize) {
    let world = World::new(1);
    let (service, runtime) = refusing(&world, usize::MAX).await;
    *runtime.never.lock() = never.map(str::to_owned);
    service.send("one", "{}".into()).await.expect("sent");
    world.clock().sleep(Duration::from_hours(1)).await;
    let queue = service.events().event_queue(&[PREFIX, "one"].concat());
    let letters = world
        .queue_admin()
        .dead_letters(&queue, None, 10)
        .await
        .expect("dead_letters answers");
    assert_eq!(letters.len(), 1);
    (letters[0].reason.clone(), runtime.asked())
}

/// A3.
#[test]
fn what_can_never_be_begun_has_failed_and_so_has_what_cannot_be_for_long() {
    run(async {
        assert_eq!(
            failed(Some("its file is not there")).await,
            (NOT_NOW.to_owned(), 1)
        );
        let (reason, asked) = failed(None).await;
        assert_eq!(reason, NOT_NOW);
        assert!((100..200).contains(&asked), "ten minutes of them: {asked}");
    });
}

/// A3, A4. It was given back as failed, or given up: a stop was worse than a crash.
#[test]
fn a_stop_fails_nothing_that_it_ends() {
    run(async {
        let world = World::new(1);
        let functions = Arc::new(Functions::new(world.queue()));
        let (service, runtime) = service_over(&world, false, Arc::clone(&functions) as Arc<_>);
        service.deploy("shop", once()).await.expect("deployed");
        *runtime.is_fit.lock() = |_| true;
        *runtime.takes.lock() = Duration::from_mins(10);
        service.send("one", "{}".into()).await.expect("sent");
        let message = Message {
            group: "g".into(),
            deduplication: None,
            body: "m".into(),
        };
        world
            .queue()
            .send("one", vec![message])
            .await
            .expect("sent");
        world.clock().sleep(Duration::from_secs(10)).await;
        assert_eq!(runtime.asked(), 2, "they are at work");
        functions.stop();
        service.stop().await;
        world.clock().sleep(Duration::from_secs(10)).await;
        assert_eq!(runtime.ended.load(Ordering::Relaxed), 2, "they were ended");
        assert_eq!(backlog(&world, &service).await, (1, 0));
        let given_back = world
            .queue()
            .receive("one", 1)
            .await
            .expect("receive answers");
        assert!(given_back.is_empty(), "{given_back:?}");
    });
}

/// A3. What was just taken was failed, as the server stops.
#[test]
fn what_is_taken_as_a_stop_goes_on_has_no_end() {
    run(async {
        let world = World::new(1);
        let (clock, (service, _)) = (world.clock(), service(&world));
        service.deploy("shop", once()).await.expect("deployed");
        service.stop().await;
        let taken = Deployed::new("one", Arc::downgrade(&service.inner));
        tokio::select! {
            biased;
            ended = taken.handle(Event::Call { id: None, payload: "{}".into() }) => panic!("{ended:?}"),
            () = clock.sleep(Duration::from_hours(1)) => {}
        }
    });
}

/// A3. Its transactions were ended under it, before its instance was.
#[test]
fn what_fails_once_a_stop_has_begun_has_no_end_and_nothing_more_is_taken() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        service.deploy("shop", once()).await.expect("deployed");
        *runtime.takes.lock() = Duration::from_secs(10);
        service.send("one", "{}".into()).await.expect("sent");
        world.clock().sleep(Duration::from_secs(1)).await;
        service.begin_stop();
        service.send("one", "{}".into()).await.expect("sent");
        world.clock().sleep(Duration::from_mins(1)).await;
        assert_eq!(
            (runtime.ended.load(Ordering::Relaxed), runtime.asked()),
            (1, 1)
        );
        assert_eq!(backlog(&world, &service).await, (2, 0));
    });
}

/// A8. Nothing was taken beside it until it had run.
#[test]
fn who_was_refused_once_and_runs_for_long_keeps_no_other_waiting() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = refusing(&world, 1).await;
        *runtime.takes.lock() = Duration::from_mins(10);
        for _ in 0..2 {
            service.send("one", "{}".into()).await.expect("sent");
        }
        world.clock().sleep(Duration::from_mins(1)).await;
        assert_eq!(runtime.asked(), 3, "the first one twice, and the second");
    });
}
