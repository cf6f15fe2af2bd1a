//! C6, C-6: a session with more ephemerals than fit into one decision ends in parts, but
//! completely.

use std::{sync::Arc, time::Duration};

use coordination::{
    Client, Config, ConnectError, Ended, Gateway,
    broken::Broken,
    dependency::TrackedStore,
    model::{Lifetime, Output, Request, Response, Watching},
    storage::session,
};
use fastrand::Rng;
use simulated::{Options, World};
use simulation::{budget::Budget, cluster::Cluster, faults::FaultProfile, scenario::seeds};

use crate::{
    single_service::{self, connect_to, without},
    watches::SlowReads,
};

/// The number of ephemerals of the session; their paths take several decisions.
const EPHEMERALS: usize = 24;

/// The seeds within which the mutant must be caught.
const SEEDS_UNTIL_CAUGHT: u64 = 100;

/// The longest time after the request to end the session until another connection asks for it:
/// before the end begins, or during it.
const AGAIN_WITHIN_MS: [u64; 2] = [1, 600];

const TIMEOUT: Duration = Duration::from_secs(12);

/// How often the store falls back while a session ends, and the longest time between two times.
const FALL_BACKS: usize = 3;
const FALL_BACK_MS_MAX: u64 = 150;

/// The pause between two attempts to connect.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(50);

fn create(path: &str) -> Request {
    single_service::create(path, Lifetime::Ephemeral)
}

/// The answer to `request`, which is not refused.
async fn answer(client: &mut Client, request: Request) -> Response {
    let result = single_service::result(client, request).await;
    result.expect("it is not refused")
}

/// How many of the session's znodes exist.
async fn count(client: &mut Client) -> usize {
    let request = Request::GetChildren {
        path: "/".into(),
        watching: Watching::No,
    };
    let Response::Children { children, .. } = answer(client, request).await else {
        panic!("children were asked for")
    };
    children
        .iter()
        .filter(|name| name.starts_with("mine"))
        .count()
}

/// The state of a session that was to end.
struct Ending {
    /// The number of its ephemerals.
    count: usize,
    /// Whether it is alive.
    lives: bool,
    port_calls: u64,
}

/// A cloud with small items.
fn world(seed: u64) -> World {
    let mut cloud = Options::default();
    cloud.key_value.item_bytes_max = 4 * 1_024;
    World::with_options(seed, cloud)
}

/// A new session with all its ephemerals.
async fn owner(gateway: &Gateway) -> Client {
    let mut client = connect_to(gateway, None, TIMEOUT)
        .await
        .expect("a new session");
    for number in 0..EPHEMERALS {
        answer(
            &mut client,
            create(&format!("/mine-with-quite-a-long-name-{number:04}")),
        )
        .await;
    }
    client
}

/// The number of ephemerals after the end of the session.
async fn left(gateway: &Gateway) -> usize {
    let mut other = connect_to(gateway, None, TIMEOUT)
        .await
        .expect("a new session");
    count(&mut other).await
}

/// The outputs of `client` until its end, and the kind of its end.
async fn shown_to_the_end(client: &mut Client) -> (Vec<Output>, Ended) {
    let mut outputs = Vec::new();
    loop {
        if let Err(ended) = client.pump(&mut outputs).await {
            return (outputs, ended);
        }
        client.wait().await;
    }
}

/// A client asks for the end of its session and disconnects; another connection asks for the
/// session soon after.
async fn ends(seed: u64, broken: Option<Broken>) -> Ending {
    let world = world(seed);
    let cluster = Cluster::start(&world, without(broken), 2).await;
    let mut rng = Rng::with_seed(seed);
    let (gateway, _) = cluster.gateway(0).await;
    let mut client = owner(&gateway).await;
    FaultProfile::Slow.strike(&world);
    let resume = Some((client.session(), client.password()));
    client.submit(1, Request::Close);
    client.pump(&mut Vec::new()).await.expect("it is sent");
    drop(client);
    let (gateway, _) = cluster.gateway(1).await;
    let within_ms = AGAIN_WITHIN_MS[rng.usize(..2)];
    world
        .clock()
        .sleep(Duration::from_millis(rng.u64(..within_ms)))
        .await;
    let (count, lives) = match connect_to(&gateway, resume, TIMEOUT).await {
        Ok(mut resumed) => (count(&mut resumed).await, true),
        Err(ConnectError::Expired) => {
            // An end that has begun finishes by itself.
            world.clock().sleep(3 * TIMEOUT).await;
            (left(&gateway).await, false)
        }
        Err(error) => panic!("the world is slow and nothing else: {error}"),
    };
    Ending {
        count,
        lives,
        port_calls: world.port_calls(),
    }
}

/// C6: a live session has all its ephemerals, and an ended one none.
#[test]
fn a_session_that_ends_in_parts_ends_whole_or_not_at_all() {
    let (mut outcomes, mut budget) = ([0, 0], Budget::default());
    for seed in seeds() {
        let Ending {
            count,
            lives,
            port_calls,
        } = simulated::run(ends(seed, None));
        budget.spend(seed, port_calls);
        assert_eq!(
            count,
            if lives { EPHEMERALS } else { 0 },
            "seed {seed}, the session lives: {lives}"
        );
        outcomes[usize::from(lives)] += 1;
    }
    budget.report("a_session_that_ends_in_parts_ends_whole_or_not_at_all");
    assert!(
        seeds().count() < 20 || outcomes.iter().all(|count| *count > 0),
        "ended, lived: {outcomes:?}"
    );
}

/// C6, broken.
#[test]
fn ending_open_sessions_in_parts_is_caught() {
    let is_caught = |seed| {
        let ending = simulated::run(ends(seed, Some(Broken::EndsOpenSessions)));
        ending.lives && ending.count < EPHEMERALS
    };
    assert!((0..SEEDS_UNTIL_CAUGHT).any(is_caught));
}

/// C1, C6: the client waits for the end, and is answered once, when the end is complete.
#[test]
fn a_client_that_waits_for_an_end_in_parts_is_answered_once() {
    let mut budget = Budget::default();
    for seed in seeds() {
        let port_calls = simulated::run(async move {
            let world = world(seed);
            let cluster = Cluster::start(&world, Config::default(), 2).await;
            let (gateway, _) = cluster.gateway(0).await;
            let mut client = owner(&gateway).await;
            FaultProfile::Slow.strike(&world);
            client.submit(1, Request::Close);
            let (outputs, ended) = shown_to_the_end(&mut client).await;
            let is_answer = |output: &Output| {
                matches!(
                    output,
                    Output::Reply {
                        tag: 1,
                        result: Ok(Response::Closed),
                        ..
                    }
                )
            };
            assert!(
                outputs.len() == 1 && is_answer(&outputs[0]),
                "seed {seed}: {outputs:?}"
            );
            assert!(matches!(ended, Ended::Closed), "seed {seed}: {ended:?}");
            assert_eq!(left(&gateway).await, 0, "seed {seed}");
            world.port_calls()
        });
        budget.spend(seed, port_calls);
    }
    budget.report("a_client_that_waits_for_an_end_in_parts_is_answered_once");
}

/// C6: an abandoned session ends in parts as well, and a client that returns to it is told so.
#[test]
fn a_client_that_returns_after_an_end_in_parts_learns_of_the_expiry() {
    /// How long a read takes; its client is silent meanwhile.
    const READ: Duration = Duration::from_mins(1);
    simulated::run(async {
        let (world, slow) = (world(1), Arc::new(SlowReads::of(READ)));
        let service = single_service::started(&world, slow.clone(), Config::default()).await;
        single_service::follow(&service);
        let mut client = owner(&service.gateway()).await;
        client.submit(
            1,
            Request::Exists {
                path: "/".into(),
                watching: Watching::No,
            },
        );
        let (outputs, ended) = slow.during(shown_to_the_end(&mut client)).await;
        assert!(
            matches!(ended, Ended::Expired),
            "{ended:?} after {outputs:?}"
        );
        assert_eq!(left(&service.gateway()).await, 0);
    });
}

/// A client closes its session and returns to it until it has ended, while the store falls back.
/// Returns how often it returned, and the port calls.
async fn ends_while_the_store_falls_back(seed: u64) -> (usize, u64) {
    let world = world(seed);
    let cluster = Cluster::start(&world, Config::default(), 2).await;
    let mut rng = Rng::with_seed(seed);
    let (gateway, _) = cluster.gateway(0).await;
    let mut client = owner(&gateway).await;
    let resume = Some((client.session(), client.password()));
    FaultProfile::Slow.strike(&world);
    let mut came_back = 0;
    let ending = async {
        loop {
            client.submit(1, Request::Close);
            if let (_, Ended::Closed | Ended::Expired) = shown_to_the_end(&mut client).await {
                return came_back;
            }
            client = loop {
                match connect_to(&gateway, resume, TIMEOUT).await {
                    Ok(client) => break client,
                    Err(ConnectError::Expired) => return came_back,
                    Err(_) => world.clock().sleep(CONNECT_AGAIN_AFTER).await,
                }
            };
            came_back += 1;
            assert_eq!(
                count(&mut client).await,
                EPHEMERALS,
                "seed {seed}: the session lives"
            );
        }
    };
    let falling_back = async {
        for _ in 0..FALL_BACKS {
            world
                .clock()
                .sleep(Duration::from_millis(rng.u64(..FALL_BACK_MS_MAX)))
                .await;
            world.fall_back_keeping_some();
        }
        std::future::pending::<()>().await;
    };
    let came_back = tokio::select! {
        biased;
        came_back = ending => came_back,
        () = falling_back => unreachable!("it never ends by itself"),
    };
    world.faults().calm();
    // Another connection may have been told of an end that is not complete yet.
    world.clock().sleep(3 * TIMEOUT).await;
    assert_eq!(left(&gateway).await, 0, "seed {seed}");
    (came_back, world.port_calls())
}

/// C6, C-6, D4: the client's message or the heartbeat ends it, and the store loses any part of this.
#[test]
fn a_session_that_ends_in_parts_ends_whole_while_the_store_falls_back() {
    let (mut came_back, mut budget) = (0, Budget::default());
    for seed in seeds() {
        let (times, port_calls) = simulated::run(ends_while_the_store_falls_back(seed));
        budget.spend(seed, port_calls);
        came_back += times;
    }
    budget.report("a_session_that_ends_in_parts_ends_whole_while_the_store_falls_back");
    assert!(seeds().count() < 20 || came_back > 0, "no end was lost");
}

/// C-6: the most parts of a large end that wait to be applied at once, with the decisions of others
/// since.
fn parts_waiting(seed: u64, broken: Option<Broken>) -> (usize, u64) {
    simulated::run(async move {
        let world = world(seed);
        let cluster = Cluster::start(&world, without(broken), 2).await;
        let (gateway, _) = cluster.gateway(0).await;
        let mut client = owner(&gateway).await;
        for number in 0..EPHEMERALS {
            answer(
                &mut client,
                create(&format!("/mine-with-another-long-name-{number:04}")),
            )
            .await;
        }
        FaultProfile::Slow.strike(&world);
        client.submit(1, Request::Close);
        let (rows, session) = (TrackedStore::new(world.key_value()), client.session());
        let row = async || {
            session::get(&mut rows.clone(), session)
                .await
                .expect("it reads")
        };
        let ended = shown_to_the_end(&mut client);
        let watched = async {
            let mut most = 0;
            while let Some(row) = row().await {
                most = most.max(row.outbox().len());
            }
            most
        };
        let (_, most) = tokio::join!(ended, watched);
        (most, world.port_calls())
    })
}

/// C6: a session with many ephemerals does not delay others.
#[test]
fn the_next_part_of_an_end_waits_until_the_previous_one_is_applied() {
    let mut budget = Budget::default();
    for seed in seeds() {
        let (waiting, port_calls) = parts_waiting(seed, None);
        assert_eq!(waiting, 1, "seed {seed}");
        budget.spend(seed, port_calls);
    }
    budget.report("the_next_part_of_an_end_waits_until_the_previous_one_is_applied");
}

/// C6, broken.
#[test]
fn an_end_in_one_step_is_caught() {
    assert!(
        (0..SEEDS_UNTIL_CAUGHT).any(|seed| parts_waiting(seed, Some(Broken::EndsInOneGo)).0 > 1)
    );
}
