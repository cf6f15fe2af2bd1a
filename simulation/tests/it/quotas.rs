//! The statistics of a quota count every change below it once, whatever fails.

use coordination::broken::Broken;
use simulation::{
    faults::FaultProfile,
    scenario::{Scenario, quotas},
};

/// The seeds within which a mutant must be caught.
const SEEDS_UNTIL_CAUGHT: u64 = 1_500;

/// All clients change a subtree with a quota. Slots are applied in parts, and distributors die.
fn counting(fault_profile: FaultProfile) -> Scenario {
    let mut scenario = Scenario {
        mix: quotas,
        fault_profile,
        clients: 4,
        one_break_in: 6,
        ..Scenario::default()
    };
    scenario.cloud.key_value.transact_items_max = 3;
    scenario
}

#[test]
fn every_change_is_counted_once() {
    for fault_profile in [FaultProfile::Slow, FaultProfile::Stormy] {
        counting(fault_profile).holds("every_change_is_counted_once");
    }
}

/// The same with crashes of everything, or a store that loses what is not durable.
#[test]
fn every_change_is_counted_once_despite_crashes() {
    let dying = Scenario {
        crashes: 2,
        ..counting(FaultProfile::Stormy)
    };
    let lossy = Scenario {
        fall_backs: 3,
        ..counting(FaultProfile::Slow)
    };
    for scenario in [dying, lossy] {
        scenario.holds("every_change_is_counted_once_despite_crashes");
    }
}

/// C-4, broken.
#[test]
fn counting_again_is_caught() {
    counting(FaultProfile::Stormy)
        .without(Broken::CountsAgain)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}
