//! D4: work that begins in one incarnation of the store and ends in the next, step by step.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use coordination::{
    Client, Config, ConnectError, Gateway, Parts, Service,
    broken::Broken,
    dependency::TrackedStore,
    model::{Lifetime, Output, Password, Request, SessionId, Watching},
    queue_names,
    storage::{session, temporary},
};
use ports::{
    Event, Handler, Key, KeyValue, Update,
    faults::{Fault, FaultSchedule, FaultyKeyValue, Script},
    functions::Failure,
    key_value::{Action, Scan},
    objects::{ObjectPath, ObjectStoreExt as _, PutPayload},
};
use simulated::{Options, World};
use simulation::cluster::{Cluster, Instances};

use crate::single_service::{
    TIMEOUT, connect, connect_to, create, follow, parts, result, set, without,
};

/// The timeout of a session whose renewals are lost: several runs of the heartbeat.
const SHORT_TIMEOUT: Duration = Duration::from_secs(12);

/// How long its client is away: a session that is not known to be silent has a quarter more, and
/// this is less.
const AWAY: Duration = Duration::from_millis(14_500);

/// Out of step with the heartbeat.
const BETWEEN_PINGS: Duration = Duration::from_millis(110);

/// How long a slow answer takes.
const ON_ITS_WAY: Duration = Duration::from_secs(3);

/// The duration of an fsync in tests that lose data before one.
const FSYNC: Duration = Duration::from_millis(200);

/// The pause of a client that was turned away.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

async fn resume(gateway: &Gateway, session: (SessionId, Password)) -> Result<Client, ConnectError> {
    connect_to(gateway, Some(session), TIMEOUT).await
}

/// Makes sessions and the heartbeat's notes durable, as a checkpoint does. Nothing else makes
/// transient data durable.
async fn make_durable(store: &dyn KeyValue) {
    for partition in [
        "heartbeat",
        "session/0",
        "session/1",
        "session/2",
        "session/3",
    ] {
        let page = store
            .scan(&Scan::partition(partition, 10))
            .await
            .expect("a calm world")
            .value;
        for (sort, _) in page.items {
            let touched = vec![Action::Add("touched".into(), 1)];
            let update = Update::modify(Key::new(partition, sort), touched);
            store.update(update).await.expect("a calm world");
        }
    }
    store
        .externalize(store.point())
        .await
        .expect("a calm world");
}

/// Whether a session survives that was used for a while, whose client returns before its timeout
/// ends, after the store has lost the `lost` of it.
async fn survives_a_loss(
    used_for: Duration,
    lost: Duration,
    instances: Instances,
    broken: Option<Broken>,
) -> bool {
    let world = World::new(1);
    let cluster = Cluster::start_on(&world, without(broken), 1, instances).await;
    let (gateway, _) = cluster.gateway(0).await;
    let connect = |resume| connect_to(&gateway, resume, SHORT_TIMEOUT);
    let mut client = connect(None).await.expect("a new session");
    let resume = Some((client.session(), client.password()));
    let (store, clock) = (world.key_value(), world.clock());
    let begun = clock.monotonic();
    while clock.monotonic() < begun + used_for {
        client.submit(1, Request::Ping);
        client
            .pump(&mut Vec::new())
            .await
            .expect("it is kept alive");
        if clock.monotonic() + lost < begun + used_for {
            make_durable(&*store).await;
        }
        clock.sleep(BETWEEN_PINGS).await;
    }
    world.fall_back();
    drop(client);
    clock.sleep(AWAY).await;
    loop {
        match connect(resume).await {
            Ok(_) => return true,
            Err(ConnectError::Expired) => return false,
            Err(_) => clock.sleep(AGAIN_AFTER).await,
        }
    }
}

/// Over all positions of the loss between two runs of the heartbeat and two renewals.
fn always_survives_a_loss(instances: Instances, broken: Option<Broken>) -> bool {
    [1_000, 4_500]
        .map(Duration::from_millis)
        .into_iter()
        .all(|lost| {
            let mut used_for =
                (0..16).map(|quarters| Duration::from_millis(20_000 + quarters * 250));
            used_for
                .all(|used_for| simulated::run(survives_a_loss(used_for, lost, instances, broken)))
        })
}

/// C6, C-6: lost renewals did take place, so each incarnation of the store counts silence anew.
#[test]
fn a_session_whose_renewals_are_lost_gets_its_whole_timeout() {
    for instances in [Instances::Warm, Instances::ColdHeartbeats] {
        assert!(always_survives_a_loss(instances, None), "{instances:?}");
    }
}

/// C6, C-6, broken.
#[test]
fn remembering_lost_silence_is_caught() {
    for instances in [Instances::Warm, Instances::ColdHeartbeats] {
        assert!(
            !always_survives_a_loss(instances, Some(Broken::CountsLostSilence)),
            "{instances:?}"
        );
    }
}

/// Whether an object for a request of a connection survives a sweep. The sweep has seen another
/// connection in its place, which the store then lost.
async fn object_outlives_a_loss(broken: Option<Broken>) -> bool {
    let world = World::new(1);
    let store = world.key_value();
    let mut sessions = TrackedStore::new(store.clone());
    let (session, password) = (SessionId(7), Password([7; 16]));
    let created = session::create(&mut sessions, session, password, TIMEOUT)
        .await
        .expect("a calm world");
    assert!(created, "it is the first");
    store
        .externalize(sessions.point())
        .await
        .expect("a calm world");
    // Named by `coordination::storage::temporary`, for the first connection.
    let object = ObjectPath::from(format!("temporary/{:016x}-1-1", session.0));
    world
        .objects()
        .put(&object, PutPayload::from_static(b"data"))
        .await
        .expect("a calm world");
    session::attach(&mut sessions, session, password, TIMEOUT)
        .await
        .expect("a calm world");
    let faults = Arc::new(Script::of(
        "key_value.get",
        [Fault::DelayAnswer(ON_ITS_WAY)],
    ));
    let slow = Arc::new(FaultyKeyValue::new(store.clone(), faults, world.clock()));
    let swept_parts = Parts {
        system: slow,
        ..parts(&world)
    };
    let losing = async {
        world.clock().sleep(ON_ITS_WAY / 2).await;
        world.fall_back();
    };
    let (swept, ()) = tokio::join!(temporary::sweep(&swept_parts, broken.into()), losing);
    let row = session::get(&mut TrackedStore::new(store), session)
        .await
        .expect("a calm world");
    assert_eq!(
        row.expect("it is durable").attach,
        1,
        "the first connection may go on"
    );
    let is_there = world.objects().head(&object).await.is_ok();
    assert_eq!(swept.is_err(), is_there, "what it has seen is lost");
    is_there
}

/// P5, D4.
#[test]
fn a_sweep_removes_nothing_because_of_lost_state() {
    assert!(simulated::run(object_outlives_a_loss(None)));
}

/// P5, D4, broken.
#[test]
fn sweeping_by_lost_rows_is_caught() {
    assert!(!simulated::run(object_outlives_a_loss(Some(
        Broken::SweepsByLostRows
    ))));
}

/// The watch functions of two processes, which both receive every call.
#[derive(Debug)]
struct Both([Arc<dyn Handler>; 2]);

#[async_trait]
impl Handler for Both {
    async fn handle(&self, event: Event) -> Result<Bytes, Failure> {
        for handler in &self.0 {
            handler.handle(event.clone()).await?;
        }
        Ok(Bytes::new())
    }
}

/// Two processes on one world: one with `first` that runs only its watch function, and one that
/// runs all functions.
async fn two_processes(world: &World, first: Parts, config: Config) -> [Arc<Service>; 2] {
    let first = Arc::new(Service::new(first, config.clone()));
    let second = Arc::new(Service::new(parts(world), config));
    let watches = [&first, &second].map(|service| {
        let definitions = service.functions();
        definitions
            .into_iter()
            .find(|definition| definition.name == queue_names::WATCH)
            .expect("it watches")
            .handler
    });
    let both: Arc<dyn Handler> = Arc::new(Both(watches));
    for mut definition in second.functions() {
        if definition.name == queue_names::WATCH {
            definition.handler = both.clone();
        }
        world.functions().register(definition);
    }
    for service in [&first, &second] {
        service.start().await.expect("a calm start");
        follow(service);
    }
    [first, second]
}

/// Delays the answers to an operation while it is switched on.
#[derive(Debug)]
struct SlowAnswers(&'static str, AtomicBool);

impl FaultSchedule for SlowAnswers {
    fn next(&self, operation: &'static str) -> Fault {
        let is_slow = operation == self.0 && self.1.load(Ordering::Relaxed);
        if is_slow {
            Fault::DelayAnswer(ON_ITS_WAY)
        } else {
            Fault::None
        }
    }
}

/// A store whose answers to `operation` can be slow, and the switch.
fn slow_store(world: &World, operation: &'static str) -> (Arc<dyn KeyValue>, Arc<SlowAnswers>) {
    let slow = Arc::new(SlowAnswers(operation, AtomicBool::new(false)));
    (
        Arc::new(FaultyKeyValue::new(
            world.key_value(),
            slow.clone(),
            world.clock(),
        )),
        slow,
    )
}

/// A connection takes a session over, and the store loses this before the connection gets its
/// answer. Another one then takes the session over under the same number. Returns which of them are
/// admitted.
async fn let_in(broken: Option<Broken>) -> [bool; 2] {
    let world = World::new(1);
    let (system, slow) = slow_store(&world, "key_value.update");
    let config = without(broken);
    let [first, second] = two_processes(
        &world,
        Parts {
            system,
            ..parts(&world)
        },
        config,
    )
    .await;
    let (gateways, clock) = ([first.gateway(), second.gateway()], world.clock());
    let client = connect(&gateways[1]).await.expect("a new session");
    let session = (client.session(), client.password());
    drop(client);
    slow.1.store(true, Ordering::Relaxed);
    let others = async {
        clock.sleep(ON_ITS_WAY / 2).await;
        world.fall_back();
        // The notification about this one tells both processes that the store has lost data.
        assert!(
            connect(&gateways[1]).await.is_err(),
            "everybody is sent away"
        );
        clock.sleep(ON_ITS_WAY).await;
        resume(&gateways[1], session).await.is_ok()
    };
    let (slowly, again) = tokio::join!(resume(&gateways[0], session), others);
    [slowly.is_ok(), again]
}

/// C6, C-6, D4: only the latest connection owns a session, and no two have the same number.
#[test]
fn no_client_is_admitted_by_a_lost_attach() {
    assert_eq!(simulated::run(let_in(None)), [false, true]);
}

/// C6, C-6, D4, broken.
#[test]
fn letting_in_by_lost_attaches_is_caught() {
    assert_eq!(
        simulated::run(let_in(Some(Broken::AcceptsLostAttaches))),
        [true, true]
    );
}

/// Whether a client receives the event of a change that the store has lost. The event was handed
/// out while an fsync of earlier changes was in progress, whose answer arrives after the log has
/// continued without the change.
async fn receives_a_lost_change(broken: Option<Broken>) -> bool {
    let world = World::with_options(
        1,
        Options {
            fsync: FSYNC..=FSYNC,
            ..Options::default()
        },
    );
    let (items, slow) = slow_store(&world, "key_value.externalize");
    let config = without(broken);
    let [first, second] = two_processes(
        &world,
        Parts {
            items,
            ..parts(&world)
        },
        config,
    )
    .await;
    let (gateway, clock) = (second.gateway(), world.clock());
    let mut watcher = connect(&first.gateway()).await.expect("a calm world");
    let mut other = connect(&gateway).await.expect("a calm world");
    result(&mut other, create("/a", Lifetime::Persistent))
        .await
        .expect("it is made");
    let watch = Request::Exists {
        path: "/a".into(),
        watching: Watching::Yes,
    };
    result(&mut watcher, watch).await.expect("it is there");
    slow.1.store(true, Ordering::Relaxed);
    result(&mut other, create("/kept", Lifetime::Persistent))
        .await
        .expect("it is made");
    other.submit(1, set("/a"));
    other
        .pump(&mut Vec::new())
        .await
        .expect("the session lives");
    clock.sleep(FSYNC / 2).await;
    world.fall_back();
    let mut next = loop {
        match connect(&gateway).await {
            Ok(client) => break client,
            Err(_) => clock.sleep(AGAIN_AFTER).await,
        }
    };
    result(&mut next, create("/next", Lifetime::Persistent))
        .await
        .expect("it is made");
    slow.1.store(false, Ordering::Relaxed);
    clock.sleep(ON_ITS_WAY).await;
    let mut outputs = Vec::new();
    let lives = watcher.pump(&mut outputs).await.is_ok();
    assert_eq!(lives, !outputs.is_empty(), "{outputs:?}");
    outputs
        .iter()
        .any(|output| matches!(output, Output::Event { .. }))
}

/// C3, C5, D4.
#[test]
fn no_client_receives_a_lost_change() {
    assert!(!simulated::run(receives_a_lost_change(None)));
}

/// C3, C5, D4, broken.
#[test]
fn following_a_lost_log_is_caught() {
    assert!(simulated::run(receives_a_lost_change(Some(
        Broken::FollowsALostLog
    ))));
}
