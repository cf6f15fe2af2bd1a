//! P5: temporary objects are removed only once what makes them useless is durable.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use coordination::Config;
use ports::objects::{ObjectPath, ObjectStoreExt as _, PutPayload};
use simulated::World;

use crate::alone::{NothingDurable, connect, follow, started};

/// Long enough for several runs of the heartbeat, and shorter than the session lives.
const SOME_BEATS: Duration = Duration::from_secs(5);

/// P5: a store that crashed without having made it durable would apply again what came in the object.
#[test]
fn a_temporary_object_stays_until_what_was_applied_is_durable() {
    simulated::run(async {
        let (world, faults) = (World::new(1), Arc::new(NothingDurable::default()));
        let config = Config { temporary_sweep_period: Duration::ZERO, ..Config::default() };
        let service = started(&world, faults.clone(), config).await;
        follow(&service);
        let client = connect(&service.gateway()).await.expect("a session");
        // As `coordination::temporary` names them: of a connection before this one.
        let object = ObjectPath::from(format!("temporary/{:016x}-0-1", client.session().0));
        world.objects().put(&object, PutPayload::from_static(b"data")).await.expect("a calm world");
        let is_there = async || world.objects().head(&object).await.is_ok();
        let clock = world.clock();
        faults.0.store(true, Ordering::Relaxed);
        clock.sleep(SOME_BEATS).await;
        assert!(is_there().await, "nobody can say what is durable");
        faults.0.store(false, Ordering::Relaxed);
        clock.sleep(SOME_BEATS).await;
        assert!(!is_there().await, "nobody can need it");
    });
}
