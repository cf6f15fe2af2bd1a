//! C6: the index of a session's ephemerals names what there is, and nothing that is gone; and with the end of the session
//! they are gone, whoever else takes them.

use std::{sync::Arc, time::Duration};

use coordination::{
    Config,
    broken::Broken,
    config::DataPlacement,
    dependency::Dependency,
    model::{Lifetime, Request},
    storage::ephemerals::Ephemerals,
};
use ports::faults::Calm;
use simulated::World;
use simulation::{
    faults::Weather,
    house::Instances,
    scenario::{Scenario, locks},
};

use crate::alone::{connect, create, follow, result, started};

/// How many seeds a broken variant may survive.
const SEEDS_UNTIL_CAUGHT: u64 = 1_500;

/// C6: a session may live for years and make ephemerals all the time.
#[test]
fn an_ephemeral_leaves_the_index_with_its_znode_whoever_deletes_it() {
    simulated::run(async {
        let world = World::new(1);
        let service = started(&world, Arc::new(Calm), Config::default()).await;
        follow(&service);
        let mut owner = connect(&service.gateway()).await.expect("a calm world");
        let mut other = connect(&service.gateway()).await.expect("a calm world");
        let (index, session) = (Ephemerals::new(world.key_value()), owner.session());
        let indexed = async || {
            index
                .all(session, &mut Dependency::default())
                .await
                .expect("a calm world")
        };
        for path in ["/a", "/b", "/c"] {
            result(&mut owner, create(path, Lifetime::Ephemeral))
                .await
                .expect("it is made");
        }
        assert_eq!(indexed().await, ["/a", "/b", "/c"]);
        let delete = |path: &str| Request::Delete {
            path: path.into(),
            version: -1,
        };
        result(&mut owner, delete("/a"))
            .await
            .expect("it is deleted");
        assert_eq!(indexed().await, ["/b", "/c"]);
        result(&mut other, delete("/b"))
            .await
            .expect("it is deleted");
        assert_eq!(indexed().await, ["/c"]);
        result(&mut owner, Request::Close)
            .await
            .expect("it is closed");
        assert!(indexed().await.is_empty(), "the session has ended");
    });
}

/// Clients that fall silent for about as long as their sessions last, while others take what is theirs.
fn locking(weather: Weather) -> Scenario {
    Scenario {
        mix: locks,
        weather,
        clients: 4,
        requests: 7,
        one_break_in: 5,
        lingers: true,
        ..Scenario::default()
    }
}

/// C3, C6, C-3: at the zxid of its end and after it, nothing is there that a session owned.
#[test]
fn a_session_ends_behind_all_that_others_have_taken_of_it() {
    for weather in [Weather::Stormy, Weather::Paused] {
        locking(weather).holds("a_session_ends_behind_all_that_others_have_taken_of_it");
    }
}

/// C3, C6, C-3: the same where heartbeats are cold, everything dies at once, or the store loses what is not durable.
#[test]
fn a_session_ends_behind_all_that_others_have_taken_of_it_whatever_dies() {
    let cold = Scenario {
        instances: Instances::ColdHeartbeats,
        ..locking(Weather::Stormy)
    };
    let mut dying = Scenario {
        crashes: 2,
        requests: 5,
        ..locking(Weather::Stormy)
    };
    dying.config.placement = DataPlacement::Objects;
    dying.config.temporary_sweep_period = Duration::ZERO;
    let lossy = Scenario {
        fall_backs: 3,
        requests: 4,
        ..locking(Weather::Slow)
    };
    for scenario in [cold, dying, lossy] {
        scenario.holds("a_session_ends_behind_all_that_others_have_taken_of_it_whatever_dies");
    }
}

/// C-3, broken.
#[test]
fn an_end_beside_what_is_gone_is_caught() {
    locking(Weather::Paused)
        .without(Broken::EndsBeforeForeignDeletions)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C-3, broken.
#[test]
fn forgetting_what_is_still_there_is_caught() {
    locking(Weather::Paused)
        .without(Broken::DropsIndexEntriesWhenDecided)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}
