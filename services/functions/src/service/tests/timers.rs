//! A3, A5: what timers give, as events, and which periods they take.

use super::*;
use crate::timer::EVENTS_WAITING_MAX;

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
        service.deploy("shop", with_timer()).await.expect("deployed");
        world.clock().sleep(Duration::from_secs(150)).await;
        service.arm("ticks", None).await.expect("disarmed");
        world.clock().sleep(Duration::from_hours(1)).await;
        let mut attempts = BTreeMap::<_, usize>::new();
        for Asked { id, payload, .. } in runtime.asked_of("ticks") {
            let payload: serde_json::Value = serde_json::from_slice(&payload).expect("JSON");
            assert_eq!((&payload["source"], &payload["id"]), (&"aws.events".into(), &id.as_str().into()));
            *attempts.entry(id).or_default() += 1;
        }
        assert_eq!(attempts.values().collect::<Vec<_>>(), [&2, &2], "two ticks, each under its id");
        let told = runtime.asked_of("told").into_iter().map(|asked| {
            let payload: serde_json::Value = serde_json::from_slice(&asked.payload).expect("JSON");
            payload["requestContext"]["requestId"].as_str().expect("an id").to_owned()
        });
        assert_eq!(told.collect::<BTreeSet<_>>(), attempts.into_keys().collect());
    });
}

/// A5.
#[test]
fn a_period_that_a_manifest_may_not_have_is_refused_at_run_time_too() {
    run(async {
        let (service, _) = service(&World::new(1));
        service.deploy("shop", with_timer()).await.expect("deployed");
        for seconds in [0, 366 * 86_400 + 1, u64::MAX] {
            let refused =
                service.arm("ticks", Some(Duration::from_secs(seconds))).await.expect_err("no period");
            let said = format!("every_s = {seconds} is to be 1 to 31622400");
            assert!(matches!(&refused, Error::Invalid(why) if *why == said), "{refused}");
        }
        for seconds in [1, 366 * 86_400] {
            service.arm("ticks", Some(Duration::from_secs(seconds))).await.expect("a period");
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
        service.deploy("shop", with_timer()).await.expect("deployed");
        let queue = service.events().event_queue(&[PREFIX, "ticks"].concat());
        let waiting = async || world.queue().backlog(&queue).await.expect("backlog answers").messages;
        world.clock().sleep(Duration::from_secs(630)).await;
        assert_eq!((waiting().await, runtime.asked()), (10, 0), "none was tried, however long it waits");
        world.clock().sleep(Duration::from_hours(12)).await;
        assert_eq!((waiting().await, runtime.asked()), (EVENTS_WAITING_MAX, 0));
        runtime.is_full.send_replace(false);
        world.clock().sleep(Duration::from_hours(1)).await;
        assert!(waiting().await < 3, "they were run");
        let ids: BTreeSet<_> = runtime.asked_of("ticks").into_iter().map(|asked| asked.id).collect();
        assert!(ids.len() as u64 > EVENTS_WAITING_MAX, "ticks are events again: {}", ids.len());
    });
}
