//! C1, P5: data in objects, with slots that are applied in parts and distributors that die between
//! them.

use std::{sync::Arc, time::Duration};

use coordination::{
    Config, Error,
    broken::Broken,
    config::DataPlacement,
    dependency::TrackedStore,
    model::{Lifetime, Output, Request, Response, Watching},
    queue_names,
    records::{Decided, Effect, Payload, UpdateId, encode},
    storage::session,
};
use ports::{Incarnation, faults::Calm, queue::Message};
use simulated::World;
use simulation::{
    faults::FaultProfile,
    scenario::{Scenario, everything, sets},
};

use crate::single_service::{connect, create, following, result, shown};

/// The seeds within which a mutant must be caught.
const SEEDS_UNTIL_CAUGHT: u64 = 1_000;

/// A store whose transactions hold the cursor and `changes` items.
fn in_parts_of(changes: usize, placement: DataPlacement) -> Scenario {
    let mut scenario = Scenario {
        mix: everything,
        clients: 4,
        window_max: 5,
        requests: 8,
        ..Scenario::default()
    };
    scenario.config.placement = placement;
    scenario.cloud.key_value.transact_items_max = changes + 1;
    scenario
}

/// One znode is set several times in a slot.
fn set_again_and_again() -> Scenario {
    let scenario = in_parts_of(1, DataPlacement::Objects);
    Scenario {
        mix: sets,
        fault_profile: FaultProfile::Stormy,
        clients: 2,
        requests: 20,
        window_max: 20,
        ..scenario
    }
}

/// C1, C3, C5: readers see slots whole although they are applied in parts.
#[test]
fn a_slot_that_is_applied_in_parts_is_seen_whole() {
    for fault_profile in [FaultProfile::Slow, FaultProfile::Stormy] {
        let scenario = Scenario {
            fault_profile,
            ..in_parts_of(1, DataPlacement::KeyValue)
        };
        scenario.holds("a_slot_that_is_applied_in_parts_is_seen_whole");
    }
}

/// P5: a distributor that continues a half-applied slot removes no object in use, and leaves none
/// behind.
#[test]
fn data_in_objects_survives_a_half_applied_slot() {
    set_again_and_again().holds("data_in_objects_survives_a_half_applied_slot");
    for changes in [1, 2, 99] {
        let scenario = Scenario {
            fault_profile: FaultProfile::Stormy,
            ..in_parts_of(changes, DataPlacement::Objects)
        };
        scenario.holds("data_in_objects_survives_a_half_applied_slot");
    }
}

/// P5, broken.
#[test]
fn collecting_objects_that_others_applied_is_caught() {
    set_again_and_again()
        .without(Broken::CollectsObjectsInUse)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C-5, broken, in parts.
#[test]
fn reading_ahead_of_the_view_is_caught_in_parts() {
    let scenario = Scenario {
        fault_profile: FaultProfile::Slow,
        ..in_parts_of(1, DataPlacement::KeyValue)
    };
    scenario
        .without(Broken::ReadsAheadOfTheView)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// Reads a znode whose data is in an object. Before that, the queue delivered a decision that was
/// lost before it was applied. It has the name of the decision that the object belongs to.
async fn read_beside_the_lost(broken: Option<Broken>) -> Option<Result<Response, Error>> {
    let world = World::new(1);
    let config = Config {
        placement: DataPlacement::Objects,
        mutant: broken.into(),
        ..Config::default()
    };
    let service = following(&world, Arc::new(Calm), config).await;
    let mut client = connect(&service.gateway()).await.expect("a calm world");
    let mut set = async |path: &str| {
        let data = Some("data".into());
        let set = Request::SetData {
            path: path.into(),
            data,
            version: -1,
        };
        result(&mut client, create(path, Lifetime::Persistent))
            .await
            .expect("it is made");
        result(&mut client, set).await.expect("it is set");
    };
    set("/other").await;
    set("/named").await;
    let row = session::get(&mut TrackedStore::new(world.key_value()), client.session()).await;
    let id = UpdateId {
        session: client.session(),
        sequence: row.expect("calm").expect("open").applied,
    };
    let lost = Decided {
        id,
        incarnation: Incarnation(world.key_value().point().incarnation.0 - 1),
        fence: 1,
        locks: id.sequence,
        attach: 1,
        request: 1,
        time_ms: 1,
        outcome: Ok(Effect::SetData {
            path: "/other".into(),
            data: Payload::Inline("lost".into()),
        }),
        touched: Vec::new(),
        foreign_ephemerals: Vec::new(),
        temporaries: Vec::new(),
    };
    let message = Message {
        group: queue_names::distributor_group(),
        deduplication: None,
        body: queue_names::packed(&[encode(&lost)], usize::MAX).remove(0),
    };
    world
        .queue()
        .send(queue_names::DISTRIBUTOR_QUEUE, vec![message])
        .await
        .expect("a calm world");
    world.clock().sleep(Duration::from_secs(1)).await;
    let read = Request::GetData {
        path: "/named".into(),
        watching: Watching::No,
    };
    let Some(Output::Reply { result, .. }) = shown(&mut client, read).await?.pop() else {
        return None;
    };
    Some(result)
}

/// D4, P5: the name of a lost decision and of its object is used again.
#[test]
fn an_object_is_not_taken_for_that_of_a_lost_decision() {
    let read = simulated::run(read_beside_the_lost(None));
    assert!(
        matches!(read, Some(Ok(Response::Data { data: Some(_), .. }))),
        "{read:?}"
    );
}

/// D4, P5, broken.
#[test]
fn searching_objects_of_lost_decisions_is_caught() {
    let read = simulated::run(read_beside_the_lost(Some(
        Broken::ChecksObjectsOfLostDecisions,
    )));
    assert!(read.is_none(), "{read:?}");
}
