//! C5, P3, P5: how a starting process completes and reports the work of an earlier one.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use coordination::{
    Config, Parts,
    dependency::TrackedStore,
    model::{Lifetime, Request, Watching},
    storage::session,
};
use ports::faults::{Calm, Fault, FaultyQueue, Script};
use simulated::World;

use crate::single_service::{
    NothingDurable, TIMEOUT, connect, create, following, following_with, parts, result, started,
};

/// Far shorter than the life of any session, so that no end of a session causes the result.
const SOON: Duration = Duration::from_secs(1);

/// P5: no caller is given a position of the log that a crash then takes back.
#[test]
fn a_position_reported_by_a_starting_process_survives_a_crash() {
    simulated::run(async {
        let (world, faults) = (World::new(1), Arc::new(NothingDurable::default()));
        let service = following(&world, faults.clone(), Config::default()).await;
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        let before = service.gateway().applied();
        faults.0.store(true, Ordering::Relaxed);
        client.submit(1, create("/applied", Lifetime::Persistent));
        client
            .pump(&mut Vec::new())
            .await
            .expect("the session lives");
        world.clock().sleep(SOON).await;
        let other = started(&world, Arc::new(Calm), Config::default()).await;
        let durable = other.gateway().applied();
        assert!(
            durable > before,
            "the other process starts behind what is applied"
        );
        world.crash();
        let after = started(&world, Arc::new(Calm), Config::default()).await;
        assert!(after.gateway().applied() >= durable, "{durable:?} is gone");
    });
}

/// C5: no other process knows of it, and its session may be silent for long.
#[test]
fn a_decision_not_pushed_before_a_crash_is_applied_without_another_request() {
    simulated::run(async {
        let world = World::new(1);
        // The client sends its attach, and the writer pushes it; then the same for the create.
        let faults = Script::of(
            "queue.send",
            [Fault::None, Fault::None, Fault::None, Fault::Hang],
        );
        let queue = Arc::new(FaultyQueue::new(
            world.queue(),
            Arc::new(faults),
            world.clock(),
        ));
        let service = following_with(
            &world,
            Parts {
                queue,
                ..parts(&world)
            },
            Config::default(),
        )
        .await;
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        client.submit(1, create("/decided", Lifetime::Persistent));
        client
            .pump(&mut Vec::new())
            .await
            .expect("the session lives");
        world.clock().sleep(SOON).await;
        let row = session::get(&mut TrackedStore::new(world.key_value()), client.session())
            .await
            .expect("a calm world");
        assert_eq!(
            row.expect("the session lives").outbox().len(),
            1,
            "decided and not pushed"
        );
        let store = world.key_value();
        store
            .externalize(store.point())
            .await
            .expect("a calm world");
        drop(client);
        world.crash();

        let service = following(&world, Arc::new(Calm), Config::default()).await;
        let mut reader = connect(&service.gateway()).await.expect("a calm world");
        world.clock().sleep(TIMEOUT / 4).await;
        let exists = Request::Exists {
            path: "/decided".into(),
            watching: Watching::No,
        };
        let found = result(&mut reader, exists).await;
        assert!(found.is_ok(), "{found:?}");
    });
}
