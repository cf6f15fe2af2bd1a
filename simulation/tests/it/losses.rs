//! C5, C6: data that a store loses when it falls back to its durable state, while all processes
//! live on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use coordination::{
    Client, Config, Gateway, Parts,
    broken::Broken,
    config::DataPlacement,
    dependency::TrackedStore,
    model::{Lifetime, Request, Response, Watching},
    storage::session::{self, Row, State},
};
use ports::faults::{Calm, Fault, FaultSchedule, FaultyKeyValue};
use simulated::{Options, World};
use simulation::{
    cluster::Instances,
    faults::FaultProfile,
    scenario::{Scenario, configuration, ephemerals, everything, watched},
};

use crate::single_service::{
    TIMEOUT, connect, connect_to, create, following, following_with, parts, result, set, without,
};

/// The duration of an fsync that is to fail.
const FSYNC: Duration = Duration::from_secs(1);

/// Long enough for everything that needs no fsync.
const SOON: Duration = Duration::from_millis(100);

/// Longer than any client should wait that can be served.
const PATIENCE: Duration = Duration::from_secs(20);

/// Reconnects `client`'s session, as often as it is turned away; none if it gets no answer.
async fn again(world: &World, gateway: &Gateway, client: Client) -> Option<Client> {
    let (clock, resume) = (world.clock(), Some((client.session(), client.password())));
    drop(client);
    let connected = async {
        loop {
            match connect_to(gateway, resume, TIMEOUT).await {
                Ok(client) => return client,
                Err(_) => clock.sleep(SOON).await,
            }
        }
    };
    tokio::select! {
        biased;
        client = connected => Some(client),
        () = clock.sleep(PATIENCE) => None,
    }
}

/// C5, C-3: the numbers of lost updates are used again, and an earlier distributor knows them as
/// applied.
#[test]
fn a_session_whose_updates_were_lost_continues_at_once() {
    simulated::run(async {
        let world = World::with_options(
            1,
            Options {
                fsync: FSYNC..=FSYNC,
                ..Options::default()
            },
        );
        let service = following(&world, Arc::new(Calm), Config::default()).await;
        let (gateway, clock) = (service.gateway(), world.clock());
        let mut client = connect(&gateway).await.expect("a calm world");
        result(&mut client, create("/a", Lifetime::Persistent))
            .await
            .expect("it is made");
        // More attempts to connect than needed; each is decided under the next number.
        for lost in [1, 10, 30] {
            (0..lost).for_each(|tag| client.submit(tag, set("/a")));
            client
                .pump(&mut Vec::new())
                .await
                .expect("the session lives");
            clock.sleep(SOON).await;
            world.fall_back();
            client = again(&world, &gateway, client)
                .await
                .unwrap_or_else(|| panic!("{lost} lost, nothing heard"));
            result(&mut client, set("/a")).await.expect("it is set");
        }
    });
}

/// More attempts to connect than needed; each is decided under the next number.
const LOST: i32 = 30;

/// A session's updates are lost before their data can be recognised as theirs, and its next
/// requests get the same numbers. Returns the final data of its znode, which was set to `kept`.
async fn data_behind_losses(broken: Option<Broken>) -> Option<Bytes> {
    let world = World::with_options(
        1,
        Options {
            fsync: FSYNC..=FSYNC,
            ..Options::default()
        },
    );
    let config = Config {
        placement: DataPlacement::Objects,
        mutant: broken.into(),
        ..Config::default()
    };
    let service = following(&world, Arc::new(Calm), config).await;
    let (gateway, clock) = (service.gateway(), world.clock());
    let mut client = connect(&gateway).await.expect("a calm world");
    result(&mut client, create("/a", Lifetime::Persistent))
        .await
        .expect("it is made");
    // Other znodes than the checked one: a replacement of data waits for the disk to remove the old
    // data.
    for tag in 0..LOST {
        let mut lost = create(&format!("/lost-{tag}"), Lifetime::Persistent);
        if let Request::Create { data, .. } = &mut lost {
            *data = Some("lost".into());
        }
        client.submit(tag, lost);
    }
    client
        .pump(&mut Vec::new())
        .await
        .expect("the session lives");
    clock.sleep(SOON).await;
    world.fall_back();
    let mut client = again(&world, &gateway, client)
        .await
        .expect("the session lives");
    let set = Request::SetData {
        path: "/a".into(),
        data: Some("kept".into()),
        version: -1,
    };
    result(&mut client, set).await.expect("it is set");
    let get = Request::GetData {
        path: "/a".into(),
        watching: Watching::No,
    };
    match result(&mut client, get).await {
        Ok(Response::Data { data, .. }) => data,
        other => panic!("{other:?}"),
    }
}

/// P5: an object stays after the decision that named it is lost, and the next decision has the same
/// name.
#[test]
fn no_object_is_written_for_a_decision_that_may_be_lost() {
    assert_eq!(
        simulated::run(data_behind_losses(None)).as_deref(),
        Some(b"kept".as_slice())
    );
}

/// P5, broken.
#[test]
fn placing_data_of_decisions_that_may_be_lost_is_caught() {
    let found = simulated::run(data_behind_losses(Some(
        Broken::PutsObjectsOfUndurableDecisions,
    )));
    assert_eq!(found.as_deref(), Some(b"lost".as_slice()));
}

/// Refuses every call while it is switched on.
#[derive(Debug, Default)]
struct Away(AtomicBool);

impl FaultSchedule for Away {
    fn next(&self, _: &'static str) -> Fault {
        if self.0.load(Ordering::Relaxed) {
            Fault::RefuseBefore
        } else {
            Fault::None
        }
    }
}

/// A session has closed, and the store loses the closing message before it is applied. Returns its
/// row long afterwards.
async fn end_that_was_lost(broken: Option<Broken>) -> Option<Row> {
    let (world, away) = (World::new(1), Arc::new(Away::default()));
    let config = without(broken);
    let items = Arc::new(FaultyKeyValue::new(
        world.key_value(),
        away.clone(),
        world.clock(),
    ));
    let service = following_with(
        &world,
        Parts {
            items,
            ..parts(&world)
        },
        config,
    )
    .await;
    let (store, clock) = (world.key_value(), world.clock());
    let mut client = connect(&service.gateway()).await.expect("a calm world");
    result(&mut client, create("/e", Lifetime::Ephemeral))
        .await
        .expect("it is made");
    away.0.store(true, Ordering::Relaxed);
    client.submit(1, Request::Close);
    client
        .pump(&mut Vec::new())
        .await
        .expect("the session lives");
    clock.sleep(SOON).await;
    let (sessions, session) = (TrackedStore::new(store.clone()), client.session());
    let row = async || {
        session::get(&mut sessions.clone(), session)
            .await
            .expect("the world is healed")
    };
    let decided = row().await.expect("its end is not applied");
    assert_eq!((decided.state, decided.outbox().len()), (State::Closed, 1));
    store
        .externalize(store.point())
        .await
        .expect("a calm world");
    world.fall_back();
    away.0.store(false, Ordering::Relaxed);
    drop(client);
    clock.sleep(TIMEOUT * 2).await;
    row().await
}

/// C6, C-3: no later request of that session exists that could reveal the loss.
#[test]
fn an_end_whose_message_was_lost_is_applied_all_the_same() {
    assert!(simulated::run(end_that_was_lost(None)).is_none());
}

/// C6, C-3, broken.
#[test]
fn pushing_the_end_of_a_session_once_is_caught() {
    assert!(simulated::run(end_that_was_lost(Some(Broken::PushesEndsOnce))).is_some());
}

fn falling_back() -> Scenario {
    Scenario {
        fault_profile: FaultProfile::Slow,
        fall_backs: 3,
        requests: 8,
        machines: 3,
        ..Scenario::default()
    }
}

/// C4, C-5: notifications and watches; any follower may have seen the lost changes.
#[test]
fn watches_fire_once_and_in_order_while_the_store_falls_back() {
    for mix in [configuration, watched] {
        let scenario = Scenario {
            mix,
            one_break_in: 4,
            ..falling_back()
        };
        scenario.holds("watches_fire_once_and_in_order_while_the_store_falls_back");
    }
}

/// C6, C-6: each incarnation of the store counts silence anew, also for a heartbeat that reads its
/// notes in the store.
#[test]
fn silent_sessions_end_while_the_store_falls_back() {
    let slow = Scenario {
        mix: ephemerals,
        one_break_in: 2,
        ..falling_back()
    };
    let stormy = Scenario {
        fault_profile: FaultProfile::Stormy,
        fall_backs: 1,
        requests: 4,
        clients: 2,
        ..slow.clone()
    };
    for instances in [Instances::Warm, Instances::ColdHeartbeats] {
        for scenario in [slow.clone(), stormy.clone()] {
            let scenario = Scenario {
                instances,
                ..scenario
            };
            scenario.holds("silent_sessions_end_while_the_store_falls_back");
        }
    }
}

/// C1, C3, P5: objects are in a store that loses nothing and knows nothing of the other one's
/// losses.
#[test]
fn data_in_objects_is_neither_lost_nor_mixed_up_while_the_store_falls_back() {
    let mut scenario = Scenario {
        mix: everything,
        one_break_in: 4,
        ..falling_back()
    };
    scenario.config.placement = DataPlacement::Objects;
    scenario.config.message_payload_bytes_max = 2;
    scenario.config.temporary_sweep_period = Duration::ZERO;
    scenario.holds("data_in_objects_is_neither_lost_nor_mixed_up_while_the_store_falls_back");
}
