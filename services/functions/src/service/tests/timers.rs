//! A3, A5: timer ticks as events, and the valid periods.

use ports::{
    faults::{Fault, FaultSchedule, FaultyKeyValue},
    key_value::KeyValue,
};

use super::*;
use crate::{
    events::timers::{
        EVENTS_WAITING_MAX, Outcome,
        schedule::{Schedule, Tick},
    },
    manifest::TimerRule,
};

/// An archive of `ticks`, which a timer starts every minute, and of its `on_failure` function
/// `told`.
fn with_timer() -> Bytes {
    let table = "runtime = \"executable\"\ncode = \"code\"\nhandler = \"run\"\nretries = 1";
    let ticks = "on_failure = \"told\"\ntriggers = [{ every_s = 60 }]";
    format!("[functions.ticks]\n{table}\n{ticks}\n[functions.told]\n{table}").into()
}

/// A3. They ran once, without a notice.
#[test]
fn a_tick_is_retried_and_reported_like_any_event() {
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
fn a_period_that_no_manifest_may_have_is_refused_at_run_time_too() {
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
            let said = format!("every_s = {seconds} must be 1 to 31622400");
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
fn ticks_wait_for_an_instance_and_are_skipped_while_too_many_do() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        runtime.is_full.send_replace(true);
        service
            .deploy("shop", with_timer())
            .await
            .expect("deployed");
        let queue = service.context.event_queue("ticks");
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

/// An archive of `ticks` alone, with this code folder and this timer period in seconds, if any.
fn ticking(code: &str, every_s: Option<u64>) -> Bytes {
    let triggers = every_s
        .map(|every_s| format!("triggers = [{{ every_s = {every_s} }}]"))
        .unwrap_or_default();
    let table =
        format!("runtime = \"executable\"\ncode = \"{code}\"\nhandler = \"run\"\nretries = 0");
    format!("[functions.ticks]\n{table}\n{triggers}").into()
}

pub(super) const HOUR: u64 = 3600;

fn hours(hours: u64) -> TimerRule {
    TimerRule::Every(Duration::from_secs(hours * HOUR))
}

pub(super) async fn minutes(world: &World, minutes: u64) {
    world.clock().sleep(Duration::from_mins(minutes)).await;
}

/// Drops the service with its timers, and starts another on the same store.
pub(super) async fn restarted(world: &World, before: Service) -> (Service, Arc<Idle>) {
    before
        .context
        .timers
        .follow("ticks", None)
        .await
        .expect("its timers go with it");
    drop(before);
    let (service, runtime) = service(world);
    service.start().await.expect("started");
    (service, runtime)
}

/// A5. Its period began again at each start, so that it never fired.
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

/// A5: after a long absence it fires once, and then keeps its rhythm.
#[test]
fn missed_ticks_become_one() {
    run(async {
        let world = World::new(1);
        let (service, _) = service(&world);
        service
            .deploy("shop", ticking("code", Some(HOUR)))
            .await
            .expect("deployed");
        service
            .context
            .timers
            .follow("ticks", None)
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

/// A5: a deployment of other code does not postpone its timer. Another period, or arming it again,
/// begins a new period.
#[test]
fn a_timer_goes_on_over_deployments_and_begins_again_when_it_is_armed() {
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

/// A5: under refusals and lost answers, with several callers.
#[test]
fn a_tick_is_taken_by_one_of_all_processes() {
    let mut taken = 0;
    for seed in 0..50 {
        taken += run(async {
            let world = World::new(seed);
            let schedules =
                [(); 3].map(|()| Schedule::new(world.key_value(), world.clock(), world.entropy()));
            let period = TimerRule::Every(Duration::from_mins(1));
            schedules[0]
                .begin("ticks", &period, world.clock().now())
                .await
                .expect("calm");
            world.faults().refuse(percent(20));
            world.faults().lose_answer(percent(20));
            let mut taken = 0;
            for minute in 0..20 {
                minutes(&world, 1).await;
                let mut mine = 0;
                // A caller without an answer asks again, as a timer does.
                for round in 0..5 {
                    let now = world.clock().now();
                    let ids = ["a", "b", "c"].map(|process| format!("{minute} {round} {process}"));
                    let take = |process: usize| {
                        schedules[process].take("ticks", &period, now, &ids[process])
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

/// A3, A5: a taken tick becomes an event although its store sometimes refuses or does not answer.
/// It was lost for a period.
#[test]
fn a_short_outage_costs_no_tick() {
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

/// A store that accepts small changes of existing items alone.
#[derive(Debug)]
struct Scarce;

impl FaultSchedule for Scarce {
    fn next(&self, _: &'static str) -> Fault {
        Fault::None
    }

    fn has_room(&self) -> bool {
        false
    }
}

/// A5: the row was moved, but there was no room for the event.
#[test]
fn a_tick_whose_event_has_no_room_stays_due() {
    run(async {
        let world = World::new(1);
        let full = FaultyKeyValue::new(world.key_value(), Arc::new(Scarce), world.clock());
        let [full, free] = [Arc::new(full) as Arc<_>, world.key_value()]
            .map(|key_value| Schedule::new(key_value, world.clock(), world.entropy()));
        let period = TimerRule::Every(Duration::from_mins(1));
        free.begin("ticks", &period, world.clock().now())
            .await
            .expect("begun");
        minutes(&world, 1).await;
        let now = world.clock().now();
        let refused = full
            .take("ticks", &period, now, "a")
            .await
            .expect_err("it is due, and cannot be taken");
        assert_eq!(refused.kind(), ports::ErrorKind::NoRoom);
        assert!(matches!(
            free.take("ticks", &period, now, "b").await,
            Ok(Tick::Mine(_))
        ));
    });
}

/// A3: it was reported as skipped.
#[test]
fn a_tick_that_cannot_be_taken_is_late_and_one_beyond_the_backlog_is_skipped() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        runtime.is_full.send_replace(true);
        service
            .deploy("shop", ticking("code", Some(HOUR)))
            .await
            .expect("deployed");
        service
            .context
            .timers
            .follow("ticks", None)
            .await
            .expect("no other timer takes its ticks");
        let full: Arc<dyn KeyValue> = Arc::new(FaultyKeyValue::new(
            world.key_value(),
            Arc::new(Scarce),
            world.clock(),
        ));
        let full = Service::new(Parts {
            key_value: full,
            ..service.context.parts.clone()
        });
        for service in [&service, &full] {
            service
                .context
                .timers
                .mark_armed("ticks", Duration::from_secs(HOUR))
                .await;
        }
        minutes(&world, 61).await;
        let due = async |service: &Service| {
            let became = service.context.timers.take("ticks").await;
            service
                .events()
                .disarm_timer("functions/ticks")
                .await
                .expect("no other timer takes its ticks");
            became
        };
        assert!(
            matches!(due(&full).await, Some(Outcome::Late(_))),
            "on a full disk it stays due"
        );
        assert_eq!(due(&service).await, Some(Outcome::Event));
        assert_eq!(due(&service).await, None, "it was one");
        for _ in 1..EVENTS_WAITING_MAX {
            service.send("ticks", "{}".into()).await.expect("sent");
        }
        minutes(&world, 61).await;
        assert!(matches!(due(&service).await, Some(Outcome::Skipped(_))));
        assert_eq!(due(&full).await, None, "it was taken for nothing");
    });
}

/// A5: a failing deployment does not move the next tick.
#[test]
fn a_failing_deployment_postpones_no_timer() {
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

/// A5: among processes, of which one does not know yet that the timer is armed.
#[test]
fn arming_a_timer_that_another_process_has_armed_does_not_postpone_it() {
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
            let (period, now) = (hours(1), world.clock().now());
            one.context
                .timers
                .schedule()
                .next_or_begin("ticks", &period, now)
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

/// A5: a tick of the earlier period may be taken at the moment at which another period begins.
#[test]
fn a_period_begins_even_if_a_tick_of_the_earlier_one_intervenes() {
    run(async {
        let world = World::with_options(
            1,
            Options {
                latency: Some(TRAVEL..=TRAVEL),
                ..Options::default()
            },
        );
        let schedule = Schedule::new(world.key_value(), world.clock(), world.entropy());
        let half_ms = HOUR / 2 * 1000;
        let (hour, half) = (hours(1), TimerRule::Every(Duration::from_millis(half_ms)));
        schedule
            .begin("ticks", &hour, world.clock().now())
            .await
            .expect("begun");
        minutes(&world, 61).await;
        let now = world.clock().now();
        let (taken, next) = tokio::join!(
            schedule.take("ticks", &hour, now, "a"),
            schedule.next_or_begin("ticks", &half, now)
        );
        assert!(matches!(taken, Ok(Tick::Mine(_))), "{taken:?}");
        let next = next.expect("calm");
        assert_eq!(next.ms_since(now), half_ms);
        minutes(&world, 1).await;
        let later = schedule
            .next_or_begin("ticks", &half, world.clock().now())
            .await
            .expect("calm");
        assert_eq!(later, next, "that is its time at rest");
    });
}

/// A5, U1, among processes: the instances of an application were ended in every process in which
/// its timer had not been set.
#[test]
fn setting_a_timer_changes_no_revision() {
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
                other.context.timers.armed("ticks").await,
                period.map(TimerRule::Every),
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
