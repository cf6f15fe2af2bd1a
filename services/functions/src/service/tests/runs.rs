//! U4: the revision that runs. A3, A8: what counts as an attempt.

use in_process::Functions;
use ports::{Event, Handler as _, queue::Message};

use super::*;

/// The deployed revision of `one`, which is the current one of the runtime.
fn in_place(service: &Service, runtime: &Idle) -> String {
    let revision = service.function("one").expect("it is deployed").revision;
    assert_eq!(runtime.renewed.lock().get("one"), Some(&revision));
    revision
}

/// Keys to objects derive from it: they end with the function, and not with a version of it.
#[test]
fn a_function_deployed_after_a_removal_has_another_incarnation() {
    run(async {
        let (service, _) = service(&World::new(1));
        let incarnation = || service.for_runtime("one").map(|one| one.incarnation);
        service
            .deploy("shop", archive("one"))
            .await
            .expect("deployed");
        let first = incarnation();
        service
            .deploy("shop", archive("one"))
            .await
            .expect("deployed");
        assert_eq!(incarnation(), first);
        service.remove("shop").await.expect("removed");
        assert_eq!(incarnation(), None);
        service
            .deploy("shop", archive("one"))
            .await
            .expect("deployed");
        assert!(first.is_some() && incarnation().is_some() && incarnation() != first);
    });
}

/// U4. Invocations that waited for an instance of the earlier code waited until a caller asked for
/// the new code.
#[test]
fn a_deployed_revision_is_current_before_any_call() {
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

/// An archive whose function `one` has one attempt, and is also started by the queue `one`.
fn once() -> Bytes {
    let manifest = String::from_utf8(archive("one").into()).expect("text");
    format!("{manifest}\nretries = 0").into()
}

/// The waiting events of `one`, and its dead letters.
async fn backlog(world: &World, service: &Service) -> (u64, u64) {
    let queue = service.context.event_queue("one");
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

/// A service with this deployment. Its runtime refuses the first attempts, and all others succeed.
async fn refusing(world: &World, times: usize) -> (Service, Arc<Idle>) {
    let (service, runtime) = service(world);
    service.deploy("shop", once()).await.expect("deployed");
    *runtime.is_fit.lock() = |_| true;
    runtime.refuses.store(times, Ordering::Relaxed);
    (service, runtime)
}

/// A3. It was a dead letter, although it never ran.
#[test]
fn a_refused_run_is_not_an_attempt() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = refusing(&world, 20).await;
        service.send("one", "{}".into()).await.expect("sent");
        world.clock().sleep(Duration::from_mins(10)).await;
        assert_eq!(runtime.asked(), 21, "until it was run");
        assert_eq!(backlog(&world, &service).await, (0, 0));
    });
}

/// A8. All waiting events were taken at once, and would have been given up at once.
#[test]
fn no_further_event_is_taken_while_runs_are_refused() {
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

/// How an event of `one` fails that is always refused, and after how many refusals.
async fn failed(never: Option<&str>) -> (String, usize) {
    let world = World::new(1);
    let (service, runtime) = refusing(&world, usize::MAX).await;
    *runtime.never.lock() = never.map(str::to_owned);
    service.send("one", "{}".into()).await.expect("sent");
    world.clock().sleep(Duration::from_hours(1)).await;
    let queue = service.context.event_queue("one");
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
fn a_run_that_is_impossible_or_refused_for_long_has_failed() {
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

/// A3, A4. It was returned as failed, or given up: a stop was worse than a crash.
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
        service.idle().await;
        assert_eq!(backlog(&world, &service).await, (1, 0));
        let given_back = world
            .queue()
            .receive("one", 1)
            .await
            .expect("receive answers");
        assert!(given_back.is_empty(), "{given_back:?}");
    });
}

/// A3. An event that was just taken failed because the server stopped.
#[test]
fn an_event_taken_during_a_stop_has_no_outcome() {
    run(async {
        let world = World::new(1);
        let (clock, (service, _)) = (world.clock(), service(&world));
        service.deploy("shop", once()).await.expect("deployed");
        service.stop().await;
        let taken = DeployedHandler::new("one", Arc::downgrade(&service.context));
        tokio::select! {
            biased;
            ended = taken.handle(Event::Call { id: None, payload: "{}".into() }) => panic!("{ended:?}"),
            () = clock.sleep(Duration::from_hours(1)) => {}
        }
    });
}

/// A3. Its transactions were ended before its instance was.
#[test]
fn a_failure_after_a_stop_began_has_no_outcome_and_nothing_more_is_taken() {
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

/// A2. The caller of a function that the stop ended was told that the function had failed.
#[test]
fn a_stop_waits_for_calls_and_says_which_it_ended() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        service.deploy("shop", once()).await.expect("deployed");
        *runtime.is_fit.lock() = |_| true;
        *runtime.takes.lock() = Duration::from_secs(10);
        service.idle().await;
        let called = || {
            let service = service.clone();
            let invocation = Invocation::new("a".to_owned(), "{}".into(), false);
            tokio::spawn(async move { service.invoke("one", invocation).await })
        };
        let waited_for = called();
        world.clock().sleep(Duration::from_secs(1)).await;
        service.begin_stop();
        service.idle().await;
        assert!(
            waited_for
                .await
                .expect("no panic")
                .expect("it ran")
                .result
                .is_ok()
        );
        let ended = called();
        world.clock().sleep(Duration::from_secs(1)).await;
        service.interrupt();
        let ended = ended.await.expect("no panic");
        assert!(matches!(ended, Err(Error::Stopped)), "{ended:?}");
        service.idle().await;
    });
}

/// A8. No other event was taken until it had run.
#[test]
fn a_long_run_that_was_refused_once_holds_up_no_other() {
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
