//! A3, A5: what timers give, as events, and which periods they take.

use ports::{
    faults::{Fault, FaultSchedule, FaultyKeyValue},
    key_value::{self, KeyValue},
};

use super::*;
use crate::timer::Ticks;
use crate::{
    schedule::Tick,
    timer::{Became, EVENTS_WAITING_MAX},
};

/// An archive of `ticks`, which a timer starts every minute, and of `told`, which is told of what fails.
fn with_timer() -> Bytes {
    let table = "runtime = \"executable\"\ncode = \"code\"\nhandler = \"run\"\nretries = 1";
    let ticks = "on_failure = \"told\"\ntriggers = [{ every_s = 60 }]";
    format!("[functions.ticks]\n{table}\n{ticks}\n[functions.told]\n{table}").into()
}

/// A3. They were run once, and nobody was told.
#[test]
fn what_a_timer_gives_is_tried_again_and_told_as_any_event_is() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        service
            .deploy("shop", with_timer())
            .await
            .expect("deployed");
        world.clock().sleep(Duration::from_secs(150)).await;
        service.arm("ticks", None).await.expect("disarmed");
        world.clock().sleep(Duration::from_hours(1)).await;
        let mut attempts = BTreeMap::<_, usize>::new();
        for Asked { id, payload, .. } in runtime.asked_of("ticks") {
            let payload: serde_json::Value = serde_json::from_slice(&payload).expect("JSON");
            assert_eq!(
                (&payload["source"], &payload["id"]),
                (&"aws.events".into(), &id.as_str().into())
            );
            *attempts.entry(id).or_default() += 1;
        }
        assert_eq!(
            attempts.values().collect::<Vec<_>>(),
            [&2, &2],
            "two ticks, each under its id"
        );
        let told = runtime.asked_of("told").into_iter().map(|asked| {
            let payload: serde_json::Value = serde_json::from_slice(&asked.payload).expect("JSON");
            payload["requestContext"]["requestId"]
                .as_str()
                .expect("an id")
                .to_owned()
        });
        assert_eq!(
            told.collect::<BTreeSet<_>>(),
            attempts.into_keys().collect()
        );
    });
}

/// A5.
#[test]
fn a_period_that_a_manifest_may_not_have_is_refused_at_run_time_too() {
    run(async {
        let (service, _) = service(&World::new(1));
        service
            .deploy("shop", with_timer())
            .await
            .expect("deployed");
        for seconds in [0, 366 * 86_400 + 1, u64::MAX] {
            let refused = service
                .arm("ticks", Some(Duration::from_secs(seconds)))
                .await
                .expect_err("no period");
            let said = format!("every_s = {seconds} is to be 1 to 31622400");
            assert!(
                matches!(&refused, Error::Invalid(why) if *why == said),
                "{refused}"
            );
        }
        for seconds in [1, 366 * 86_400] {
            service
                .arm("ticks", Some(Duration::from_secs(seconds)))
                .await
                .expect("a period");
        }
    });
}

/// A3, A8: a tick waits for an instance as any event does, and nothing grows without bound.
#[test]
fn ticks_wait_for_an_instance_and_are_left_out_while_too_many_do() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        runtime.is_full.send_replace(true);
        service
            .deploy("shop", with_timer())
            .await
            .expect("deployed");
        let queue = service.events().event_queue(&[PREFIX, "ticks"].concat());
        let waiting = async || {
            world
                .queue_admin()
                .backlog(&queue)
                .await
                .expect("backlog answers")
                .messages
        };
        world.clock().sleep(Duration::from_secs(630)).await;
        assert_eq!(
            (waiting().await, runtime.asked()),
            (10, 0),
            "none was tried, however long it waits"
        );
        world.clock().sleep(Duration::from_hours(12)).await;
        assert_eq!((waiting().await, runtime.asked()), (EVENTS_WAITING_MAX, 0));
        runtime.is_full.send_replace(false);
        world.clock().sleep(Duration::from_hours(1)).await;
        assert!(waiting().await < 3, "they were run");
        let ids: BTreeSet<_> = runtime
            .asked_of("ticks")
            .into_iter()
            .map(|asked| asked.id)
            .collect();
        assert!(
            ids.len() as u64 > EVENTS_WAITING_MAX,
            "ticks are events again: {}",
            ids.len()
        );
    });
}

/// An archive of `ticks` alone, whose code is `code` and which a timer starts every so many seconds, if any.
fn ticking(code: &str, every_s: Option<u64>) -> Bytes {
    let triggers = every_s
        .map(|every_s| format!("triggers = [{{ every_s = {every_s} }}]"))
        .unwrap_or_default();
    let table =
        format!("runtime = \"executable\"\ncode = \"{code}\"\nhandler = \"run\"\nretries = 0");
    format!("[functions.ticks]\n{table}\n{triggers}").into()
}

const HOUR: u64 = 3600;

async fn minutes(world: &World, minutes: u64) {
    world.clock().sleep(Duration::from_mins(minutes)).await;
}

/// The service goes, with what it has armed, and another starts on the same store.
async fn restarted(world: &World, before: Service) -> (Service, Arc<Idle>) {
    before
        .follow_timer("ticks", None)
        .await
        .expect("its timers go with it");
    drop(before);
    let (service, runtime) = service(world);
    service.start().await.expect("started");
    (service, runtime)
}

/// A5. It began anew at each start, so that it never went off.
#[test]
fn a_timer_of_an_hour_goes_off_under_a_server_that_is_restarted_every_half_hour() {
    run(async {
        let world = World::new(1);
        let (mut service, mut runtime) = service(&world);
        service
            .deploy("shop", ticking("code", Some(HOUR)))
            .await
            .expect("deployed");
        let mut ticks = Vec::new();
        for _ in 0..4 {
            minutes(&world, 31).await;
            ticks.push(runtime.asked());
            (service, runtime) = restarted(&world, service).await;
        }
        assert_eq!(
            ticks,
            [0, 1, 0, 1],
            "after 60 and 120 of 31, 62, 93 and 124 minutes"
        );
        assert_eq!(service.functions().len(), 1);
    });
}

/// A5: one that was away for long is told once, and goes on in step.
#[test]
fn ticks_that_nobody_was_there_for_are_one() {
    run(async {
        let world = World::new(1);
        let (service, _) = service(&world);
        service
            .deploy("shop", ticking("code", Some(HOUR)))
            .await
            .expect("deployed");
        service
            .follow_timer("ticks", None)
            .await
            .expect("its timers go with it");
        minutes(&world, 5 * 60 + 30).await;
        let (_service, runtime) = restarted(&world, service).await;
        minutes(&world, 1).await;
        assert_eq!(runtime.asked(), 1);
        minutes(&world, 28).await;
        assert_eq!(runtime.asked(), 1);
        minutes(&world, 2).await;
        assert_eq!(runtime.asked(), 2, "at the sixth hour");
    });
}

/// A5: code that is deployed anew does not put off its timer; another period, and arming it again, begin anew.
#[test]
fn a_timer_goes_on_over_deployments_and_begins_anew_with_its_arming() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        service
            .deploy("shop", ticking("code", Some(HOUR)))
            .await
            .expect("deployed");
        minutes(&world, 50).await;
        service
            .deploy("shop", ticking("other", Some(HOUR)))
            .await
            .expect("deployed");
        service
            .arm("ticks", Some(Duration::from_secs(HOUR)))
            .await
            .expect("it is armed");
        minutes(&world, 11).await;
        assert_eq!(runtime.asked(), 1, "deployed anew");
        minutes(&world, 49).await;
        service
            .deploy("shop", ticking("other", Some(HOUR / 2)))
            .await
            .expect("deployed");
        minutes(&world, 25).await;
        assert_eq!(runtime.asked(), 1, "another period begins anew");
        minutes(&world, 6).await;
        assert_eq!(runtime.asked(), 2);
        service.arm("ticks", None).await.expect("disarmed");
        minutes(&world, 29).await;
        service
            .arm("ticks", Some(Duration::from_secs(HOUR / 2)))
            .await
            .expect("armed");
        minutes(&world, 25).await;
        assert_eq!(runtime.asked(), 2, "armed again it begins anew");
        minutes(&world, 6).await;
        assert_eq!(runtime.asked(), 3);
        service
            .deploy("shop", ticking("other", None))
            .await
            .expect("deployed");
        minutes(&world, 25).await;
        service
            .deploy("shop", ticking("other", Some(HOUR / 2)))
            .await
            .expect("deployed");
        minutes(&world, 25).await;
        assert_eq!(runtime.asked(), 3, "nor is what it was before it was gone");
    });
}

/// A5: whoever asks, and whatever is refused or unanswered.
#[test]
fn a_tick_is_taken_by_one_of_all_who_have_the_timer() {
    let mut taken = 0;
    for seed in 0..50 {
        taken += run(async {
            let world = World::new(seed);
            let schedules = [(); 3].map(|()| Schedule::new(world.key_value(), world.clock()));
            let period = Duration::from_mins(1);
            schedules[0]
                .begin("ticks", period, world.clock().now())
                .await
                .expect("calm");
            world.faults().refuse(percent(20));
            world.faults().lose_answer(percent(20));
            let mut taken = 0;
            for minute in 0..20 {
                minutes(&world, 1).await;
                let mut mine = 0;
                // Whoever was not answered asks again, as a timer does.
                for round in 0..5 {
                    let now = world.clock().now();
                    let ids = ["a", "b", "c"].map(|process| format!("{minute} {round} {process}"));
                    let take = |process: usize| {
                        schedules[process].take("ticks", period, now, &ids[process])
                    };
                    let came = tokio::join!(take(0), take(1), take(2));
                    let came = [came.0, came.1, came.2];
                    mine += came
                        .iter()
                        .filter(|came| matches!(came, Ok(Tick::Mine(_))))
                        .count();
                }
                assert!(mine <= 1, "seed {seed}, minute {minute}: {mine} have it");
                taken += mine;
            }
            taken
        });
    }
    assert!(
        taken > 950,
        "{taken} of 1000: a fault leaves a tick to the others"
    );
}

/// A3, A5: a tick that was taken is an event, though its store refuses or does not answer now and then. It was lost for a period.
#[test]
fn what_fails_for_a_moment_costs_no_tick() {
    for seed in 0..20 {
        run(async {
            let world = World::new(seed);
            let (service, runtime) = service(&world);
            *runtime.is_fit.lock() = |_| true;
            service
                .deploy("shop", ticking("code", Some(HOUR)))
                .await
                .expect("deployed");
            for _ in 0..10 {
                world.clock().sleep(Duration::from_secs(3510)).await;
                world.faults().refuse(percent(30));
                world.faults().lose_answer(percent(20));
                world.clock().sleep(Duration::from_secs(90)).await;
                world.faults().calm();
            }
            minutes(&world, 10).await;
            let ids: BTreeSet<_> = runtime
                .asked_of("ticks")
                .into_iter()
                .map(|asked| asked.id)
                .collect();
            assert_eq!(ids.len(), 10, "seed {seed}");
        });
    }
}

/// A store that takes what little there is to change of what is there.
#[derive(Debug)]
struct Scarce;

impl FaultSchedule for Scarce {
    fn next(&self, _: &'static str) -> Fault {
        Fault::None
    }

    fn room(&self) -> key_value::Room {
        key_value::Room::Scarce
    }
}

/// A5: the row was moved, and there was no room for the event.
#[test]
fn a_tick_whose_event_has_no_room_stays_due() {
    run(async {
        let world = World::new(1);
        let full = FaultyKeyValue::new(world.key_value(), Arc::new(Scarce), world.clock());
        let [full, free] = [Arc::new(full) as Arc<_>, world.key_value()]
            .map(|key_value| Schedule::new(key_value, world.clock()));
        let period = Duration::from_mins(1);
        free.begin("ticks", period, world.clock().now())
            .await
            .expect("begun");
        minutes(&world, 1).await;
        let now = world.clock().now();
        let refused = full
            .take("ticks", period, now, "a")
            .await
            .expect_err("it is due, and cannot be taken");
        assert_eq!(refused.kind(), ports::ErrorKind::NoRoom);
        assert!(matches!(
            free.take("ticks", period, now, "b").await,
            Ok(Tick::Mine(_))
        ));
    });
}

/// A3: it was said to be left out.
#[test]
fn a_tick_that_cannot_be_taken_yet_is_late_and_one_that_has_no_room_among_events_is_left_out() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        runtime.is_full.send_replace(true);
        service
            .deploy("shop", ticking("code", Some(HOUR)))
            .await
            .expect("deployed");
        service
            .follow_timer("ticks", None)
            .await
            .expect("nobody else takes its ticks");
        let full: Arc<dyn KeyValue> = Arc::new(FaultyKeyValue::new(
            world.key_value(),
            Arc::new(Scarce),
            world.clock(),
        ));
        let full = Service::new(Parts {
            key_value: full,
            ..service.inner.parts.clone()
        });
        for service in [&service, &full] {
            service
                .inner
                .timers
                .lock()
                .await
                .insert("ticks".to_owned(), Duration::from_secs(HOUR));
        }
        minutes(&world, 61).await;
        let due = async |service: &Service| {
            let became = Ticks::default().due(&service.inner, "ticks").await;
            service
                .events()
                .disarm_timer("functions/ticks")
                .await
                .expect("nobody else takes its ticks");
            became
        };
        assert!(
            matches!(due(&full).await, Some(Became::Late(_))),
            "on a full disk it stays due"
        );
        assert_eq!(due(&service).await, Some(Became::Event));
        assert_eq!(due(&service).await, None, "it was one");
        for _ in 1..EVENTS_WAITING_MAX {
            service.send("ticks", "{}".into()).await.expect("sent");
        }
        minutes(&world, 61).await;
        assert!(matches!(due(&service).await, Some(Became::LeftOut(_))));
        assert_eq!(due(&full).await, None, "it was taken for nothing");
    });
}

/// A5: what goes off next is moved by no deployment that comes to nothing.
#[test]
fn a_deployment_that_fails_puts_no_timer_off() {
    run(async {
        let world = World::new(1);
        let ((service, runtime), (other, others)) = (service(&world), service(&world));
        service
            .deploy("shop", ticking("code", Some(HOUR)))
            .await
            .expect("deployed");
        other.start().await.expect("started");
        service
            .deploy("shop", ticking("other", Some(HOUR)))
            .await
            .expect("deployed");
        minutes(&world, 50).await;
        let refused = other.deploy("shop", ticking("code", Some(HOUR / 2))).await;
        assert!(
            matches!(refused, Err(Error::Conflict(_))),
            "it was changed meanwhile: {refused:?}"
        );
        minutes(&world, 11).await;
        assert_eq!(
            runtime.asked() + others.asked(),
            1,
            "a whole period after it was armed"
        );
    });
}

/// A5: among processes, one that does not know yet that it is armed.
#[test]
fn arming_a_timer_that_another_process_has_armed_puts_it_off_no_more() {
    run(async {
        let world = World::new(1);
        let ((one, _), (other, _)) = (service_among(&world, true), service_among(&world, true));
        one.deploy("shop", ticking("code", None))
            .await
            .expect("deployed");
        other.start().await.expect("started");
        one.arm("ticks", Some(Duration::from_secs(HOUR)))
            .await
            .expect("armed");
        let next = async || {
            let (period, now) = (Duration::from_secs(HOUR), world.clock().now());
            one.inner
                .schedule
                .next_or_begin("ticks", period, now)
                .await
                .expect("there is one")
        };
        let before = next().await;
        minutes(&world, 10).await;
        other
            .arm("ticks", Some(Duration::from_secs(HOUR)))
            .await
            .expect("armed");
        assert_eq!(next().await, before);
    });
}

/// A5: a tick of the period before may be taken in the moment in which another period begins.
#[test]
fn a_period_begins_also_where_a_tick_of_the_one_before_comes_in_between() {
    run(async {
        let world = World::with_options(
            1,
            Options {
                latency: Some(TRAVEL..=TRAVEL),
                ..Options::default()
            },
        );
        let schedule = Schedule::new(world.key_value(), world.clock());
        let (hour, half) = (Duration::from_secs(HOUR), Duration::from_secs(HOUR / 2));
        schedule
            .begin("ticks", hour, world.clock().now())
            .await
            .expect("begun");
        minutes(&world, 61).await;
        let now = world.clock().now();
        let (taken, next) = tokio::join!(
            schedule.take("ticks", hour, now, "a"),
            schedule.next_or_begin("ticks", half, now)
        );
        assert!(matches!(taken, Ok(Tick::Mine(_))), "{taken:?}");
        let next = next.expect("calm");
        assert_eq!(next.ms_since(now), half.as_millis() as u64);
        minutes(&world, 1).await;
        let later = schedule
            .next_or_begin("ticks", half, world.clock().now())
            .await
            .expect("calm");
        assert_eq!(later, next, "that is its time at rest");
    });
}

/// A5, U1, among processes: the instances of an application were ended wherever its timer had not been set.
#[test]
fn a_timer_that_is_set_is_no_other_revision_anywhere() {
    run(async {
        let world = World::new(1);
        let ((one, _), (other, _)) = (service_among(&world, true), service_among(&world, true));
        let following = tokio::spawn(other.clone().keep_in_place());
        one.deploy("shop", with_timer()).await.expect("deployed");
        let followed = async || {
            world.clock().sleep(Duration::from_secs(3)).await;
            other.function("ticks").expect("it is there").revision
        };
        let first = followed().await;
        for period in [
            Some(Duration::from_mins(2)),
            Some(Duration::from_mins(2)),
            None,
        ] {
            one.arm("ticks", period).await.expect("set");
            assert_eq!(followed().await, first);
            assert_eq!(
                other.inner.timers.lock().await.get("ticks").copied(),
                period,
                "it is followed"
            );
        }
        let (late, _) = service_among(&world, true);
        late.start().await.expect("started");
        assert_eq!(late.function("ticks").expect("it is there").revision, first);
        one.deploy("shop", with_timer()).await.expect("deployed");
        assert_ne!(followed().await, first, "another deployment");
        following.abort();
    });
}
