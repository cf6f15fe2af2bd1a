//! Containers and znodes with a time to live: the service removes them when they are due, and never
//! before.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use coordination::{
    Client, Config, Parts, Service,
    broken::Broken,
    dependency::TrackedStore,
    model::{Connect, EventKind, Lifetime, Output, Request, Response, Watching, Zxid},
    queue_names,
    storage::expiring,
};
use ports::{
    Functions as _,
    faults::{Calm, Fault, FaultSchedule, FaultyQueue},
    functions::QueueTrigger,
};
use simulated::World;
use simulation::{
    cluster::Instances,
    faults::FaultProfile,
    scenario::{Scenario, expiring as some_expire},
};

use crate::single_service::{
    TIMEOUT, connect, create, following, following_with, parts, result, set,
};

const CHECK_PERIOD: Duration = Duration::from_secs(5);

const TTL: Lifetime = Lifetime::TimeToLive { ms: 20_000 };

fn config(mutant: Option<Broken>) -> Config {
    Config {
        container_check_period: CHECK_PERIOD,
        mutant: mutant.into(),
        ..Config::default()
    }
}

async fn service(world: &World, mutant: Option<Broken>) -> Arc<Service> {
    following(world, Arc::new(Calm), config(mutant)).await
}

fn delete(path: &str) -> Request {
    Request::Delete {
        path: path.into(),
        version: -1,
    }
}

async fn made(client: &mut Client, path: &str, lifetime: Lifetime) {
    result(client, create(path, lifetime))
        .await
        .expect("it is made");
}

async fn exists(client: &mut Client, path: &str) -> bool {
    let read = Request::Exists {
        path: path.into(),
        watching: Watching::Yes,
    };
    result(client, read).await.is_ok()
}

/// Pings for `duration`, so that the session stays alive. Returns the events.
async fn wait(world: &World, client: &mut Client, duration: Duration) -> Vec<(EventKind, String)> {
    let clock = world.clock();
    let (until, mut events) = (clock.monotonic().0 + duration, Vec::new());
    while clock.monotonic().0 < until {
        clock.sleep(Duration::from_secs(1)).await;
        let outputs = crate::single_service::shown(client, Request::Ping).await;
        for output in outputs.expect("it is alive") {
            if let Output::Event { kind, path, .. } = output {
                events.push((kind, path));
            }
        }
    }
    events
}

async fn is_index_empty(world: &World) -> bool {
    let mut store = TrackedStore::new(world.key_value());
    !expiring::any(&mut store).await.expect("a calm world")
}

/// As in ZooKeeper: a container goes some time after its last child, and not before it had one.
#[test]
fn a_container_goes_after_its_last_child() {
    simulated::run(async {
        let world = World::new(1);
        let service = service(&world, None).await;
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        made(&mut client, "/never", Lifetime::Container).await;
        made(&mut client, "/c", Lifetime::Container).await;
        made(&mut client, "/c/a", Lifetime::Persistent).await;
        made(&mut client, "/c/b", Lifetime::Persistent).await;
        result(&mut client, delete("/c/a")).await.expect("deleted");
        assert!(is_index_empty(&world).await, "nothing can expire");
        wait(&world, &mut client, CHECK_PERIOD * 2).await;
        assert!(exists(&mut client, "/c").await, "it has a child");
        result(&mut client, delete("/c/b")).await.expect("deleted");
        assert!(exists(&mut client, "/c").await, "no check has run");
        let events = wait(&world, &mut client, CHECK_PERIOD * 2).await;
        assert_eq!(events, [(EventKind::NodeDeleted, "/c".to_owned())]);
        assert!(!exists(&mut client, "/c").await);
        assert!(exists(&mut client, "/never").await);
        assert!(is_index_empty(&world).await);
    });
}

/// The last child may go with its session or in a multi, and a parent may go after its child.
#[test]
fn a_container_goes_however_its_last_child_went() {
    simulated::run(async {
        let world = World::new(1);
        let service = service(&world, None).await;
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        let mut other = connect(&service.gateway()).await.expect("a calm world");
        for path in ["/locks", "/locks/a", "/multi"] {
            made(&mut client, path, Lifetime::Container).await;
        }
        made(&mut other, "/locks/a/lock", Lifetime::Ephemeral).await;
        made(&mut other, "/multi/a", Lifetime::Persistent).await;
        let replaced = vec![delete("/multi/a"), create("/multi/b", Lifetime::Persistent)];
        result(&mut other, Request::Multi(replaced))
            .await
            .expect("it is done");
        assert!(is_index_empty(&world).await, "no container is empty");
        let multi = vec![set("/multi"), delete("/multi/b")];
        result(&mut other, Request::Multi(multi))
            .await
            .expect("it is done");
        result(&mut other, Request::Close)
            .await
            .expect("it is closed");
        wait(&world, &mut client, CHECK_PERIOD * 4).await;
        for path in ["/locks", "/locks/a", "/multi"] {
            assert!(!exists(&mut client, path).await, "{path}");
        }
        assert!(is_index_empty(&world).await);
    });
}

/// Whether a znode with a time to live survived it, although its data was set half-way through.
async fn survives(world: &World, mutant: Option<Broken>) -> bool {
    let service = service(world, mutant).await;
    let mut client = connect(&service.gateway()).await.expect("a calm world");
    made(&mut client, "/t", TTL).await;
    wait(world, &mut client, Duration::from_secs(12)).await;
    result(&mut client, set("/t")).await.expect("it is there");
    wait(world, &mut client, Duration::from_secs(16)).await;
    let survives = exists(&mut client, "/t").await;
    wait(world, &mut client, CHECK_PERIOD + Duration::from_secs(5)).await;
    assert!(!exists(&mut client, "/t").await, "its time is over");
    assert!(is_index_empty(world).await);
    survives
}

/// As in ZooKeeper: the time counts from the last update of the data.
#[test]
fn a_time_to_live_counts_from_the_last_set() {
    simulated::run(async { assert!(survives(&World::new(1), None).await) });
    for mutant in [Broken::RemovesUnchecked, Broken::CountsFromTheCreation] {
        let survives = simulated::run(async { survives(&World::new(1), Some(mutant)).await });
        assert!(!survives, "{mutant:?} is found");
    }
}

/// As in ZooKeeper: children keep it, and its time may pass meanwhile.
#[test]
fn children_keep_a_znode_with_a_time_to_live() {
    simulated::run(async {
        let world = World::new(1);
        let service = service(&world, None).await;
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        made(&mut client, "/t", TTL).await;
        made(&mut client, "/t/child", Lifetime::Persistent).await;
        wait(&world, &mut client, Duration::from_mins(1)).await;
        assert!(exists(&mut client, "/t").await);
        assert!(is_index_empty(&world).await, "its entry was dropped");
        result(&mut client, delete("/t/child"))
            .await
            .expect("deleted");
        wait(&world, &mut client, CHECK_PERIOD * 2).await;
        assert!(!exists(&mut client, "/t").await);
        assert!(is_index_empty(&world).await);
    });
}

/// A client's deletion leaves no entry that would keep the heartbeat busy.
#[test]
fn a_deletion_by_a_client_removes_the_entry() {
    simulated::run(async {
        let world = World::new(1);
        let service = service(&world, None).await;
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        made(&mut client, "/t", TTL).await;
        assert!(!is_index_empty(&world).await);
        result(&mut client, delete("/t")).await.expect("deleted");
        assert!(is_index_empty(&world).await);
        let parts = vec![create("/t", TTL), delete("/t")];
        result(&mut client, Request::Multi(parts))
            .await
            .expect("done");
        assert!(is_index_empty(&world).await);
    });
}

/// C7: without sessions, only the checks run, and only as long as there is something to remove.
#[test]
fn znodes_expire_without_sessions_and_then_nothing_runs() {
    simulated::run(async {
        let world = World::new(1);
        let service = service(&world, None).await;
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        made(&mut client, "/t", Lifetime::TimeToLive { ms: 600_000 }).await;
        result(&mut client, Request::Close)
            .await
            .expect("it is closed");
        let clock = world.clock();
        clock.sleep(Duration::from_mins(1)).await;
        let calls_before = world.port_calls();
        clock.sleep(CHECK_PERIOD * 60).await;
        let per_check = (world.port_calls() - calls_before) / 60;
        assert!(per_check < 30, "{per_check} calls per check");
        clock.sleep(Duration::from_mins(10)).await;
        assert!(is_index_empty(&world).await);
        let calls_before = world.port_calls();
        clock.sleep(Duration::from_hours(1)).await;
        assert_eq!(world.port_calls(), calls_before, "it is idle");
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        assert!(!exists(&mut client, "/t").await);
    });
}

/// A session that opens while only the checks run is watched at its own pace again.
#[test]
fn sessions_expire_while_znodes_wait_to_expire() {
    simulated::run(async {
        let world = World::new(1);
        let mut config = config(None);
        config.container_check_period = Duration::from_mins(30);
        let service = following(&world, Arc::new(Calm), config).await;
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        made(&mut client, "/t", Lifetime::TimeToLive { ms: 36_000_000 }).await;
        result(&mut client, Request::Close)
            .await
            .expect("it is closed");
        world.clock().sleep(Duration::from_mins(1)).await;
        let mut silent = connect(&service.gateway()).await.expect("a calm world");
        made(&mut silent, "/e", Lifetime::Ephemeral).await;
        drop(silent);
        world.clock().sleep(TIMEOUT * 2).await;
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        assert!(!exists(&mut client, "/e").await);
    });
}

/// A restart arms the heartbeat for what is left.
#[test]
fn znodes_expire_after_a_restart() {
    simulated::run(async {
        let world = World::new(1);
        let cluster = simulation::cluster::Cluster::start(&world, config(None), 1).await;
        let (gateway, _) = cluster.gateway(0).await;
        let asked = Connect {
            last_zxid_seen: Zxid(0),
            timeout: TIMEOUT,
            resume: None,
        };
        let mut client = gateway.connect(asked).await.expect("a calm world");
        made(&mut client, "/c", Lifetime::Container).await;
        made(&mut client, "/c/a", Lifetime::Persistent).await;
        result(&mut client, delete("/c/a")).await.expect("deleted");
        result(&mut client, Request::Close)
            .await
            .expect("it is closed");
        let store = world.key_value();
        store
            .externalize(store.point())
            .await
            .expect("a calm world");
        cluster.crash().await;
        world.clock().sleep(CHECK_PERIOD * 3).await;
        let (gateway, _) = cluster.gateway(0).await;
        let mut client = gateway.connect(asked).await.expect("a calm world");
        let read = Request::GetChildren {
            path: "/".into(),
            watching: Watching::No,
        };
        let children = result(&mut client, read).await.expect("it is there");
        let Response::Children { children, .. } = children else {
            panic!("{children:?}")
        };
        assert_eq!(children, ["zookeeper"]);
    });
}

/// The requests to remove ten znodes and a marker that wait for a stopped writer after so many checks. The znodes
/// go once the writer runs again.
async fn requests_behind_a_stopped_writer(checks: u32, mutant: Option<Broken>) -> usize {
    let world = World::new(1);
    let service = service(&world, mutant).await;
    let mut client = connect(&service.gateway()).await.expect("a calm world");
    for number in 0..10 {
        made(&mut client, &format!("/t{number}"), TTL).await;
    }
    let functions = world.functions();
    let disarmed = functions.disarm_queue(queue_names::REQUEST_QUEUE).await;
    disarmed.expect("a calm world");
    wait(&world, &mut client, Duration::from_secs(20)).await;
    wait(&world, &mut client, CHECK_PERIOD * checks).await;
    let queue = world.queue_admin();
    let waiting = queue.waiting(queue_names::REQUEST_QUEUE, 1_000).await;
    let trigger = QueueTrigger {
        queue: queue_names::REQUEST_QUEUE.into(),
        function: queue_names::WRITER.into(),
        batch_messages_max: 10,
        groups_max: 1,
    };
    functions.arm_queue(trigger).await.expect("a calm world");
    wait(&world, &mut client, CHECK_PERIOD).await;
    assert!(is_index_empty(&world).await);
    let messages = waiting.expect("a calm world");
    let requests = messages
        .iter()
        .flat_map(|message| queue_names::unpacked(&message.body));
    requests.count()
}

/// Requests do not pile up behind a slow writer, and requests that may be lost are repeated.
#[test]
fn a_check_requests_nothing_while_earlier_requests_wait() {
    simulated::run(async {
        assert_eq!(requests_behind_a_stopped_writer(8, None).await, 11);
        // The second time, the first marker is due too.
        assert_eq!(requests_behind_a_stopped_writer(14, None).await, 11 + 12);
        let mutant = Some(Broken::RepeatsWaitingRemovals);
        assert!(requests_behind_a_stopped_writer(8, mutant).await >= 70);
    });
}

/// Refuses the next message once it is told to.
#[derive(Debug, Default)]
struct RefusesNext(AtomicBool);

impl FaultSchedule for RefusesNext {
    fn next(&self, operation: &'static str) -> Fault {
        if operation == "queue.send" && self.0.swap(false, Ordering::Relaxed) {
            return Fault::RefuseBefore;
        }
        Fault::None
    }
}

/// Requests that could not be sent are not waited for: the next check repeats them.
#[test]
fn the_next_check_repeats_requests_that_were_not_sent() {
    simulated::run(async {
        let world = World::new(1);
        let refuses = Arc::<RefusesNext>::default();
        let faults = Arc::<RefusesNext>::clone(&refuses);
        let parts = Parts {
            queue: Arc::new(FaultyQueue::new(world.queue(), faults, world.clock())),
            ..parts(&world)
        };
        let service = following_with(&world, parts, config(None)).await;
        let mut client = connect(&service.gateway()).await.expect("a calm world");
        made(&mut client, "/t", TTL).await;
        refuses.0.store(true, Ordering::Relaxed);
        wait(&world, &mut client, Duration::from_secs(20)).await;
        wait(&world, &mut client, CHECK_PERIOD * 3).await;
        assert!(!refuses.0.load(Ordering::Relaxed), "a check has failed");
        assert!(!exists(&mut client, "/t").await);
    });
}

/// All clients make and delete znodes that expire, at the same few paths.
fn expiring_znodes(fault_profile: FaultProfile) -> Scenario {
    let mut scenario = Scenario {
        mix: some_expire,
        fault_profile,
        clients: 4,
        one_break_in: 6,
        lingers: true,
        ..Scenario::default()
    };
    scenario.config.container_check_period = Duration::from_secs(3);
    scenario
}

/// The service removes exactly the znodes that are due.
#[test]
fn due_znodes_go_and_others_stay() {
    for fault_profile in [
        FaultProfile::Slow,
        FaultProfile::Stormy,
        FaultProfile::Paused,
    ] {
        expiring_znodes(fault_profile).holds("due_znodes_go_and_others_stay");
    }
}

/// The same with cold heartbeats, crashes of everything, or a store that loses what is not durable.
#[test]
fn due_znodes_go_and_others_stay_despite_crashes() {
    let cold = Scenario {
        instances: Instances::ColdHeartbeats,
        ..expiring_znodes(FaultProfile::Stormy)
    };
    let dying = Scenario {
        crashes: 2,
        ..expiring_znodes(FaultProfile::Stormy)
    };
    let lossy = Scenario {
        fall_backs: 3,
        ..expiring_znodes(FaultProfile::Slow)
    };
    for scenario in [cold, dying, lossy] {
        scenario.holds("due_znodes_go_and_others_stay_despite_crashes");
    }
}
