//! Rule P1: a request that fails permanently is decided as failed in its place, and later requests
//! continue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use coordination::{
    Client, Config, Error, Parts,
    broken::Broken,
    config::LockOptions,
    model::{Connect, Lifetime, Output, Request, Response, Zxid},
};
use ports::{Key, Update, key_value::Action};
use simulated::World;
use simulation::{budget::Budget, cluster::Cluster, scenario::seeds};

use crate::{
    faulty_updates::{FaultyUpdates, UpdateFault},
    single_service::{create, following_with, parts, set, without},
};

/// Far longer than all attempts take, and shorter than the life of any session.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longer than the deaths of as many writers as one request gets.
const MANY_DEATHS: Duration = Duration::from_mins(10);

/// Submits all of `requests` at once and collects their answers in order of arrival.
pub(crate) async fn answers(
    client: &mut Client,
    requests: Vec<Request>,
) -> Vec<(i32, Result<Response, Error>)> {
    let mut missing = requests.len();
    for (tag, request) in (1..).zip(requests) {
        client.submit(tag, request);
    }
    let mut answers = Vec::new();
    while missing > 0 {
        let mut outputs = Vec::new();
        client.pump(&mut outputs).await.expect("the session lives");
        for output in outputs {
            if let Output::Reply { tag, result, .. } = output {
                answers.push((tag, result));
                missing -= 1;
            }
        }
        if missing > 0 {
            // The peer is alive meanwhile.
            client.keep_alive().await.expect("the session lives");
            client.wait().await;
        }
    }
    answers
}

/// The row of the poisonous znode, in the layout of `coordination::storage::node`.
fn poison() -> Key {
    Key::new("node:/poison", [])
}

/// A session sets a znode with an unreadable row, between two intact ones.
async fn poisoned(
    world: &World,
    broken: Option<Broken>,
) -> Option<Vec<(i32, Result<Response, Error>)>> {
    let cluster = Cluster::start(world, without(broken), 1).await;
    let (gateway, _) = cluster.gateway(0).await;
    let connect = Connect {
        last_zxid_seen: Zxid(0),
        timeout: PATIENCE * 2,
        resume: None,
    };
    let mut client = gateway.connect(connect).await.expect("a new session");
    let made = answers(
        &mut client,
        vec![
            create("/poison", Lifetime::Persistent),
            create("/well", Lifetime::Persistent),
        ],
    )
    .await;
    assert!(made.iter().all(|(_, result)| result.is_ok()), "{made:?}");
    // A later build or a damaged store may leave such a row.
    let unreadable = Action::set("state", bytes::Bytes::from_static(b"\xff"));
    let update = Update::modify(poison(), vec![unreadable]);
    world
        .key_value()
        .update(update)
        .await
        .expect("the row is changed");
    let requests = vec![set("/well"), set("/poison"), set("/well")];
    let clock = world.clock();
    tokio::select! {
        answers = answers(&mut client, requests) => Some(answers),
        () = clock.sleep(PATIENCE) => None,
    }
}

/// P1.
#[test]
fn a_request_that_fails_for_good_is_decided_as_failed_in_its_place() {
    let mut budget = Budget::default();
    for seed in seeds() {
        let world = World::new(seed);
        let answers = simulated::run(poisoned(&world, None)).expect("every request is answered");
        budget.spend(seed, world.port_calls());
        let tags: Vec<i32> = answers.iter().map(|(tag, _)| *tag).collect();
        assert_eq!(tags, [1, 2, 3], "seed {seed}");
        assert!(
            answers[0].1.is_ok() && answers[2].1.is_ok(),
            "seed {seed}: {answers:?}"
        );
        assert_eq!(
            answers[1].1.as_ref().err(),
            Some(&Error::System),
            "seed {seed}"
        );
    }
}

/// P1, broken.
#[test]
fn blocking_for_ever_is_caught() {
    assert!(simulated::run(poisoned(&World::new(0), Some(Broken::BlocksForever))).is_none());
}

/// A session sets a znode whose row kills every writer that touches it, between two intact ones.
async fn deadly(broken: Option<Broken>) -> Option<Vec<(i32, Result<Response, Error>)>> {
    let (world, is_deadly) = (World::new(1), Arc::new(AtomicBool::new(false)));
    let strikes = is_deadly.clone();
    let system = FaultyUpdates::new(world.key_value(), move |update| {
        let kills = strikes.load(Ordering::Relaxed) && update.key == poison();
        if kills {
            UpdateFault::Deadly
        } else {
            UpdateFault::Made
        }
    });
    let config = Config {
        mutant: broken.into(),
        // The update that kills is the lock.
        locks: LockOptions::locking(),
        session_timeout_max: 2 * MANY_DEATHS,
        ..Config::default()
    };
    let service = following_with(
        &world,
        Parts {
            system,
            ..parts(&world)
        },
        config,
    )
    .await;
    let connect = Connect {
        last_zxid_seen: Zxid(0),
        timeout: 2 * MANY_DEATHS,
        resume: None,
    };
    let mut client = service
        .gateway()
        .connect(connect)
        .await
        .expect("a new session");
    let made = ["/poison", "/well"].map(|path| create(path, Lifetime::Persistent));
    let made = answers(&mut client, made.into()).await;
    assert!(made.iter().all(|(_, result)| result.is_ok()), "{made:?}");
    is_deadly.store(true, Ordering::Relaxed);
    let requests = vec![set("/well"), set("/poison"), set("/well")];
    let clock = world.clock();
    tokio::select! {
        biased;
        answers = answers(&mut client, requests) => Some(answers),
        () = clock.sleep(MANY_DEATHS) => None,
    }
}

/// P1: a request that kills its writers fails no call that a writer could report.
#[test]
fn a_request_that_kills_its_writers_is_decided_as_failed_in_its_place() {
    let answers = simulated::run(deadly(None)).expect("every request is answered");
    let failed: Vec<bool> = answers.iter().map(|(_, result)| result.is_err()).collect();
    assert_eq!(failed, [false, true, false], "{answers:?}");
    assert_eq!(answers[1].1.as_ref().err(), Some(&Error::System));
}

/// P1, broken.
#[test]
fn killing_writers_for_ever_is_caught() {
    assert!(simulated::run(deadly(Some(Broken::BlocksForever))).is_none());
}
