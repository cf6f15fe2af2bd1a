//! C6, C-6: the heartbeat's memory, its place, and its cost.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use coordination::{
    Client, Config, ConnectError, Gateway, Parts,
    dependency::TrackedStore,
    model::{Password, Request, SessionId},
    queue_names,
    storage::session,
};
use ports::{
    Functions, Key, Update,
    decorate::FunctionsDecorator,
    faults::{Calm, Fault, FaultSchedule, FaultyKeyValue, Script},
    objects::{ObjectPath, ObjectStoreExt as _, PutPayload},
};
use simulated::{Options, World, percent};
use simulation::cluster::{Cluster, Instances};

use crate::single_service::{self, connect_to, following, following_with, parts};

/// The timeout of every session.
const TIMEOUT: Duration = Duration::from_secs(12);

/// The resulting period of the heartbeat.
const PERIOD: Duration = Duration::from_secs(3);

async fn cluster(world: &World, instances: Instances) -> Cluster {
    let config = Config {
        session_timeout_min: TIMEOUT,
        ..Config::default()
    };
    Cluster::start_on(world, config, 1, instances).await
}

async fn connect(
    cluster: &Cluster,
    resume: Option<(SessionId, Password)>,
) -> Result<Client, ConnectError> {
    let (gateway, _) = cluster.gateway(0).await;
    connect_to(&gateway, resume, TIMEOUT).await
}

/// C6: no client can renew while everything is down, and earlier silence does not count.
#[test]
fn a_restart_restarts_every_timeout() {
    simulated::run(async {
        let world = World::with_options(
            1,
            Options {
                durable_at_once: true,
                ..Options::default()
            },
        );
        let cluster = cluster(&world, Instances::ColdHeartbeats).await;
        let client = connect(&cluster, None).await.expect("a new session");
        let resume = Some((client.session(), client.password()));
        drop(client);
        let clock = world.clock();
        clock.sleep(TIMEOUT).await;
        cluster.crash().await;
        clock.sleep(TIMEOUT).await;
        assert!(
            connect(&cluster, resume).await.is_ok(),
            "no heartbeat has seen it silent for longer"
        );
        clock.sleep(TIMEOUT * 3).await;
        assert!(matches!(
            connect(&cluster, resume).await,
            Err(ConnectError::Expired)
        ));
    });
}

/// C7: a warm heartbeat reads only the sessions, and writes its notes now and then.
#[test]
fn a_warm_heartbeat_makes_hardly_a_call_beside_its_scan() {
    simulated::run(async {
        let world = World::new(1);
        let cluster = cluster(&world, Instances::Warm).await;
        let mut client = connect(&cluster, None).await.expect("a new session");
        let (clock, beats) = (world.clock(), 100);
        let kept_alive = async {
            loop {
                client.submit(1, coordination::model::Request::Ping);
                client
                    .pump(&mut Vec::new())
                    .await
                    .expect("it is kept alive");
                clock.sleep(PERIOD).await;
            }
        };
        tokio::select! {
            biased;
            () = kept_alive => unreachable!("it goes on for ever"),
            () = clock.sleep(PERIOD * beats) => {}
        }
        let trace = world.trace();
        let calls = |operation| {
            let by_heartbeat = trace
                .entries()
                .filter(|entry| entry.caller.starts_with(queue_names::HEARTBEAT));
            by_heartbeat
                .filter(|entry| entry.operation == operation)
                .count()
        };
        assert!(calls("scan") >= 4 * (beats as usize - 1), "it runs");
        // Its first run looks for what others have left, and each check of containers for a removal
        // that a lost store left.
        let check_period = coordination::Config::default().container_check_period;
        let checks = (PERIOD * beats).as_millis() / check_period.as_millis() + 1;
        assert!(
            (1..=1 + checks as usize).contains(&calls("get")),
            "{} gets",
            calls("get")
        );
        assert!(
            calls("update") <= beats as usize / 4 + 1,
            "{} updates",
            calls("update")
        );
    });
}

/// Whether a session survives whose client returns soon after the store was `away`. The session had
/// been used for a while.
async fn survives(away: Duration, used_for: Duration, timeout: Duration) -> bool {
    const BACK_AFTER: Duration = Duration::from_millis(1_500);
    let world = World::new(1);
    let cluster = Cluster::start(&world, Config::default(), 1).await;
    let (gateway, _) = cluster.gateway(0).await;
    let connect = |resume| connect_to(&gateway, resume, timeout);
    let mut client = connect(None).await.expect("a new session");
    let resume = Some((client.session(), client.password()));
    let (clock, begun) = (world.clock(), world.clock().monotonic());
    while clock.monotonic() < begun + used_for {
        client.submit(1, Request::Ping);
        client
            .pump(&mut Vec::new())
            .await
            .expect("it is kept alive");
        clock.sleep(Duration::from_millis(100)).await;
    }
    world.faults().refuse(percent(100));
    drop(client);
    clock.sleep(away).await;
    world.faults().calm();
    clock.sleep(BACK_AFTER).await;
    connect(resume).await.is_ok()
}

/// C6, C-6: while the store is away no client can renew, so an outage of any length is not silence.
#[test]
fn sessions_get_their_whole_timeout_after_a_stall_of_any_length() {
    for away in [3, 60, 3_600].map(Duration::from_secs) {
        for timeout in [4, 5, 8].map(Duration::from_secs) {
            for used_for in (0..20).map(|quarters| Duration::from_millis(10_000 + quarters * 250)) {
                let survives = simulated::run(survives(away, used_for, timeout));
                assert!(
                    survives,
                    "away {away:?}, timeout {timeout:?}, used for {used_for:?}"
                );
            }
        }
    }
}

/// C7: a failed run has seen nothing, and keeps the knowledge of the previous one.
#[test]
fn a_failed_run_keeps_the_knowledge_of_its_instance() {
    simulated::run(async {
        let world = World::new(1);
        let faults = Arc::new(Script::of(
            "key_value.scan",
            [Fault::None; 40].into_iter().chain([Fault::RefuseBefore]),
        ));
        let system = Arc::new(FaultyKeyValue::new(
            world.key_value(),
            faults,
            world.clock(),
        ));
        let service = following_with(
            &world,
            Parts {
                system,
                ..parts(&world)
            },
            Config::default(),
        )
        .await;
        let client = single_service::connect(&service.gateway())
            .await
            .expect("a calm world");
        world.clock().sleep(single_service::TIMEOUT / 2).await;
        drop(client);
        let trace = world.trace();
        let by_heartbeat =
            |entry: &&simulated::Entry| entry.caller.starts_with(queue_names::HEARTBEAT);
        let count = |operation| {
            trace
                .entries()
                .filter(by_heartbeat)
                .filter(|entry| entry.operation == operation)
                .count()
        };
        assert!(
            count("scan") > 60,
            "a run has failed, and others came after it: {}",
            count("scan")
        );
        assert_eq!(
            count("get"),
            1,
            "only its first run looks for what others have left"
        );
    });
}

/// Whether the row of `session` is gone.
async fn has_ended(world: &World, session: SessionId) -> bool {
    let sessions = TrackedStore::new(world.key_value());
    session::get(&mut sessions.clone(), session)
        .await
        .expect("it can be read")
        .is_none()
}

/// C6: an unreadable row keeps neither other sessions nor the heartbeat alive.
#[test]
fn sessions_end_beside_one_that_cannot_be_read() {
    simulated::run(async {
        let world = World::new(1);
        let service = following(&world, Arc::new(Calm), Config::default()).await;
        // In the layout of `coordination::storage::session`. A later build or a damaged store may leave such
        // a row.
        for shard in 0..4u8 {
            let key = Key::new(format!("session/{shard:x}"), i64::from(shard).to_be_bytes());
            world
                .key_value()
                .update(Update::put(key, vec![]))
                .await
                .expect("a calm world");
        }
        let client = single_service::connect(&service.gateway())
            .await
            .expect("a calm world");
        let session = client.session();
        drop(client);
        world.clock().sleep(single_service::TIMEOUT * 2).await;
        assert!(has_ended(&world, session).await);
        let calls = world.port_calls();
        world.clock().sleep(single_service::TIMEOUT).await;
        assert_eq!(world.port_calls(), calls, "no session remains");
    });
}

/// Never answers a call that waits for durability while it is switched on.
#[derive(Debug, Default)]
struct NeverDurable(AtomicBool);

impl FaultSchedule for NeverDurable {
    fn next(&self, operation: &'static str) -> Fault {
        match operation {
            "key_value.externalize" if self.0.load(Ordering::Relaxed) => Fault::Hang,
            _ => Fault::None,
        }
    }
}

/// C6, P5: a sweep of objects that hangs does not delay the end of sessions.
#[test]
fn sessions_end_while_a_sweep_hangs() {
    simulated::run(async {
        let (world, faults) = (World::new(1), Arc::new(NeverDurable::default()));
        let config = Config {
            temporary_sweep_period: Duration::ZERO,
            ..Config::default()
        };
        let service = following(&world, faults.clone(), config).await;
        let client = single_service::connect(&service.gateway())
            .await
            .expect("a calm world");
        let session = client.session();
        drop(client);
        let object = ObjectPath::from("temporary/0b7e34c2bf79cfbb-1-1");
        world
            .objects()
            .put(&object, PutPayload::from_static(b"of an ended session"))
            .await
            .expect("it is put");
        faults.0.store(true, Ordering::Relaxed);
        world.clock().sleep(single_service::TIMEOUT * 2).await;
        assert!(has_ended(&world, session).await);
    });
}

/// Functions that open a session when the timer is about to be disarmed, and then end the caller.
#[derive(Debug)]
struct DiesDisarming {
    functions: Arc<dyn Functions>,
    gateway: Mutex<Option<Gateway>>,
    opened: Mutex<Option<SessionId>>,
}

impl FunctionsDecorator for DiesDisarming {
    fn inner(&self) -> &dyn Functions {
        &*self.functions
    }

    async fn disarm_timer(&self, function: &str) -> ports::Result<()> {
        let gateway = self.gateway.lock().expect("one at a time").take();
        let Some(gateway) = gateway else {
            return self.functions.disarm_timer(function).await;
        };
        let client = single_service::connect(&gateway)
            .await
            .expect("a calm world");
        *self.opened.lock().expect("one at a time") = Some(client.session());
        drop(client);
        self.functions.disarm_timer(function).await?;
        std::future::pending().await
    }
}

/// C6, C-6: a session arms the timer. A heartbeat that had found no session disarms it afterwards,
/// and dies before it checks again.
#[test]
fn a_session_opened_while_a_heartbeat_retires_and_dies_ends_in_time() {
    simulated::run(async {
        let world = World::new(1);
        let (gateway, opened) = (Mutex::default(), Mutex::default());
        let functions = Arc::new(DiesDisarming {
            functions: world.functions(),
            gateway,
            opened,
        });
        let parts = Parts {
            functions: functions.clone(),
            ..parts(&world)
        };
        let service = following_with(&world, parts, Config::default()).await;
        let mut client = single_service::connect(&service.gateway())
            .await
            .expect("a calm world");
        *functions.gateway.lock().expect("one at a time") = Some(service.gateway());
        assert!(single_service::is_answered(&mut client, Request::Close).await);
        world.clock().sleep(single_service::TIMEOUT * 3).await;
        let opened = functions
            .opened
            .lock()
            .expect("one at a time")
            .expect("the heartbeat has found no session");
        assert!(has_ended(&world, opened).await);
    });
}
