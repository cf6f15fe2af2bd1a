//! A5: timers with cron expressions.

use super::{
    timers::{HOUR, minutes, restarted},
    *,
};

/// An archive of `ticks` alone, with this cron expression in Vienna.
fn at_local_times(cron: &str) -> Bytes {
    let table = "runtime = \"executable\"\ncode = \"code\"\nhandler = \"run\"\nretries = 0";
    let trigger = format!("{{ cron = \"{cron}\", timezone = \"Europe/Vienna\" }}");
    format!("[functions.ticks]\n{table}\ntriggers = [{trigger}]").into()
}

/// A service whose clock showed midnight UTC on 28 March 2026 when the world began. Clocks in
/// Vienna skip from 2:00 to 3:00 on the 29th.
fn service_in_spring(world: &World) -> (Service, Arc<Idle>) {
    /// From 1 January 2025, where a world begins.
    const AHEAD_MS: i64 = 451 * 24 * 3_600_000;
    let (service, runtime) = service(world);
    let parts = Parts {
        clock: world.clock_off_by(AHEAD_MS),
        ..service.context.parts.clone()
    };
    (Service::new(parts), runtime)
}

/// Sleeps until so many hours and seconds after the world began.
async fn until(world: &World, hours: u64, seconds: u64) {
    let time = Duration::from_secs(hours * HOUR + seconds);
    let left = time.saturating_sub(world.clock().monotonic().0);
    world.clock().sleep(left).await;
}

/// A5: a cron expression fires at its local times, over a change of the clocks, a restart and a
/// deployment of other code.
#[test]
fn a_cron_expression_fires_at_its_local_times() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service_in_spring(&world);
        let daily = || at_local_times("30 2 * * *");
        service.deploy("shop", daily()).await.expect("deployed");
        // 2:30 in Vienna on the 28th is 1:30 UTC.
        until(&world, 1, 0).await;
        assert_eq!(runtime.asked(), 0);
        until(&world, 2, 0).await;
        assert_eq!(runtime.asked(), 1);
        // The skipped time fires at 3:00 of summer time, which is 1:00 UTC on the 29th.
        until(&world, 24, 3590).await;
        assert_eq!(runtime.asked(), 1);
        let timers = &service.context.timers;
        timers.follow("ticks", None).await.expect("they go with it");
        drop(service);
        let (service, runtime) = service_in_spring(&world);
        service.start().await.expect("started");
        until(&world, 25, 10).await;
        assert_eq!(runtime.asked(), 1, "in the next process");
        service.deploy("shop", daily()).await.expect("deployed");
        // From the 30th on 2:30 is 0:30 UTC.
        until(&world, 48, 0).await;
        assert_eq!(runtime.asked(), 1);
        until(&world, 49, 0).await;
        assert_eq!(runtime.asked(), 2);
    });
}

/// A5: as with a period, times that came due while no process ran become one.
#[test]
fn missed_times_of_a_cron_expression_become_one() {
    run(async {
        let world = World::new(1);
        let (service, _) = service(&world);
        service
            .deploy("shop", at_local_times("0 * * * *"))
            .await
            .expect("deployed");
        let timers = &service.context.timers;
        timers.follow("ticks", None).await.expect("they go with it");
        minutes(&world, 5 * 60 + 30).await;
        let (_service, runtime) = restarted(&world, service).await;
        minutes(&world, 1).await;
        assert_eq!(runtime.asked(), 1);
        minutes(&world, 60).await;
        assert_eq!(runtime.asked(), 2);
    });
}

/// A5: another expression begins anew, and a period at run time takes its place.
#[test]
fn a_cron_expression_gives_way_to_another_rule() {
    run(async {
        let world = World::new(1);
        let (service, runtime) = service(&world);
        service
            .deploy("shop", at_local_times("0 0 29 2 *"))
            .await
            .expect("deployed");
        minutes(&world, 60).await;
        assert_eq!(runtime.asked(), 0, "a leap day is years away");
        service
            .deploy("shop", at_local_times("* * * * *"))
            .await
            .expect("deployed");
        minutes(&world, 3).await;
        assert_eq!(runtime.asked(), 3);
        service.arm("ticks", None).await.expect("disarmed");
        minutes(&world, 3).await;
        assert_eq!(runtime.asked(), 3);
        let hour = Duration::from_secs(HOUR);
        service.arm("ticks", Some(hour)).await.expect("armed");
        minutes(&world, 61).await;
        assert_eq!(runtime.asked(), 4);
    });
}
