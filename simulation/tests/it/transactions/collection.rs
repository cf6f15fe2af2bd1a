//! T6, T9: collection at any moment, with windows that pass while transactions run; each rule with
//! the mutant that drops it.

use std::time::Duration;

use simulation::{
    faults::FaultProfile,
    transactions::{
        client::Habits,
        scenario::{Disaster, Scenario},
        workload::Mix,
    },
};
use transactions::broken::Broken;

use super::{SEEDS_UNTIL_CAUGHT, replaced, small};

/// Long transactions that read several keys with pauses, so that the versions they need are
/// superseded meanwhile. Rows and slots expire a second after they are written.
fn collecting(fault_profile: FaultProfile) -> Scenario {
    let small = small(fault_profile);
    let mix = Mix {
        reads: 2,
        writes: 2,
        keys: 4,
        one_delete_in: 3,
        ..small.mix
    };
    let habits = Habits {
        thinks: Duration::from_millis(150),
        one_death_in: 20,
        ..small.habits
    };
    let mut scenario = Scenario {
        mix,
        habits,
        ..small
    };
    scenario.config.retry_window = Duration::from_secs(1);
    scenario.config.data_cache_bytes_max = 0;
    scenario
}

/// T6: no reader needs a collected version.
#[test]
fn a_running_reader_finds_its_versions() {
    for fault_profile in [
        FaultProfile::Calm,
        FaultProfile::Slow,
        FaultProfile::Stormy,
        FaultProfile::Paused,
    ] {
        collecting(fault_profile).holds("a_running_reader_finds_its_versions");
    }
}

/// T4, T6, T9: the same on nodes that die at any point, also during collection.
#[test]
fn storage_stays_bounded_on_nodes_that_die() {
    use Disaster::{Everything, Node, Store};
    for fault_profile in [FaultProfile::Slow, FaultProfile::Stormy] {
        let disasters = vec![Node, Everything, Node, Store];
        Scenario {
            disasters,
            ..collecting(fault_profile)
        }
        .holds("storage_stays_bounded_on_nodes_that_die");
    }
}

/// T6, broken.
#[test]
fn collecting_above_the_horizon_is_caught() {
    collecting(FaultProfile::Slow)
        .without(Broken::CollectsAboveHorizon)
        .is_caught("no version", SEEDS_UNTIL_CAUGHT);
}

/// T6, broken.
#[test]
fn taking_absence_for_version_zero_is_caught() {
    collecting(FaultProfile::Slow)
        .without(Broken::AbsenceIsVersionZero)
        .is_caught("no version", SEEDS_UNTIL_CAUGHT);
}

/// T9, broken.
#[test]
fn collecting_whole_transactions_is_caught() {
    collecting(FaultProfile::Slow)
        .without(Broken::CollectsWholeTransactions)
        .is_caught("leftover", SEEDS_UNTIL_CAUGHT);
}

/// T5, broken: an older write that is decided later replaces the deletion.
#[test]
fn dropping_deletions_at_once_is_caught() {
    let scenario = collecting(FaultProfile::Slow).without(Broken::DropsTombstonesAtOnce);
    scenario.is_caught("", SEEDS_UNTIL_CAUGHT);
}

/// T5, broken.
#[test]
fn dropping_rows_of_live_versions_is_caught() {
    // A node that lives on still has it in memory.
    let scenario = Scenario {
        disasters: vec![Disaster::Node; 4],
        ..collecting(FaultProfile::Slow)
    };
    scenario
        .without(Broken::DropsRowsOfLiveVersions)
        .is_caught("lost", SEEDS_UNTIL_CAUGHT);
}

/// T9, broken.
#[test]
fn sweeping_nothing_is_caught() {
    replaced()
        .without(Broken::SweepsNothing)
        .is_caught("leftover", SEEDS_UNTIL_CAUGHT);
}
