//! C6: the index of a session's ephemerals names exactly the existing ones. They are deleted with
//! the session, even if others delete them too.

use std::{sync::Arc, time::Duration};

use coordination::{
    Config,
    broken::Broken,
    config::DataPlacement,
    dependency::TrackedStore,
    model::{Lifetime, Request},
    storage::ephemerals,
};
use ports::faults::Calm;
use simulated::World;
use simulation::{
    cluster::Instances,
    faults::FaultProfile,
    scenario::{Scenario, locks},
};

use crate::single_service::{connect, create, following, result};

/// The seeds within which a mutant must be caught.
const SEEDS_UNTIL_CAUGHT: u64 = 1_500;

/// C6: a session may live for years and create ephemerals all the time.
#[test]
fn any_deletion_of_an_ephemeral_removes_it_from_the_index() {
    simulated::run(async {
        let world = World::new(1);
        let service = following(&world, Arc::new(Calm), Config::default()).await;
        let mut owner = connect(&service.gateway()).await.expect("a calm world");
        let mut other = connect(&service.gateway()).await.expect("a calm world");
        let (index, session) = (TrackedStore::new(world.key_value()), owner.session());
        let indexed = async || {
            ephemerals::first(&mut index.clone(), session, usize::MAX)
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

/// Clients fall silent for about as long as their sessions last, while others delete their znodes.
fn locking(fault_profile: FaultProfile) -> Scenario {
    Scenario {
        mix: locks,
        fault_profile,
        clients: 4,
        requests: 7,
        one_break_in: 5,
        lingers: true,
        ..Scenario::default()
    }
}

/// C3, C6, C-3: from the zxid of its end on, no znode of a session exists.
#[test]
fn a_session_ends_after_all_deletions_of_its_ephemerals_by_others() {
    for fault_profile in [FaultProfile::Stormy, FaultProfile::Paused] {
        locking(fault_profile)
            .holds("a_session_ends_after_all_deletions_of_its_ephemerals_by_others");
    }
}

/// C3, C6, C-3: the same with cold heartbeats, crashes of everything, or a store that loses what is
/// not durable.
#[test]
fn a_session_ends_after_all_deletions_of_its_ephemerals_by_others_despite_crashes() {
    let cold = Scenario {
        instances: Instances::ColdHeartbeats,
        ..locking(FaultProfile::Stormy)
    };
    let mut dying = Scenario {
        crashes: 2,
        requests: 5,
        ..locking(FaultProfile::Stormy)
    };
    dying.config.placement = DataPlacement::Objects;
    dying.config.temporary_sweep_period = Duration::ZERO;
    let lossy = Scenario {
        fall_backs: 3,
        requests: 4,
        ..locking(FaultProfile::Slow)
    };
    for scenario in [cold, dying, lossy] {
        scenario.holds(
            "a_session_ends_after_all_deletions_of_its_ephemerals_by_others_despite_crashes",
        );
    }
}

/// C-3, broken.
#[test]
fn an_end_before_deletions_of_others_is_caught() {
    locking(FaultProfile::Paused)
        .without(Broken::EndsBeforeForeignDeletions)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C-3, broken.
#[test]
fn forgetting_existing_ephemerals_is_caught() {
    locking(FaultProfile::Paused)
        .without(Broken::DropsIndexEntriesWhenDecided)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}
