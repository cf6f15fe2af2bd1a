//! D4: the store loses what was not durable, while the processes that have seen it live on.

use coordination::{broken::Broken, config::DataPlacement};
use simulation::{
    faults::FaultProfile,
    scenario::{Scenario, contended, ephemerals, everything},
};

/// The seeds within which a mutant must be caught.
const SEEDS_UNTIL_CAUGHT: u64 = 1_000;

fn falling_back() -> Scenario {
    Scenario {
        fault_profile: FaultProfile::Slow,
        fall_backs: 3,
        mix: contended,
        machines: 3,
        ..Scenario::default()
    }
}

/// D4, C1, C3: an update that depends on lost state changes nothing.
#[test]
fn updates_that_depend_on_lost_state_are_refused() {
    falling_back().holds("updates_that_depend_on_lost_state_are_refused");
}

/// The same for all kinds of requests, and with dying functions.
#[test]
fn clients_see_one_order_while_the_store_falls_back() {
    for (fault_profile, fall_backs) in [(FaultProfile::Slow, 3), (FaultProfile::Stormy, 1)] {
        let scenario = Scenario {
            fault_profile,
            fall_backs,
            mix: everything,
            clients: 2,
            machines: 2,
            requests: 5,
            one_break_in: 6,
            ..falling_back()
        };
        scenario.holds("clients_see_one_order_while_the_store_falls_back");
    }
}

/// C6: sessions end completely, and none of their ephemerals remains.
#[test]
fn sessions_end_whole_while_the_store_falls_back() {
    let scenario = Scenario {
        mix: ephemerals,
        one_break_in: 4,
        ..falling_back()
    };
    scenario.holds("sessions_end_whole_while_the_store_falls_back");
}

fn falling_back_in_objects() -> Scenario {
    let mut scenario = falling_back();
    scenario.config.placement = DataPlacement::Objects;
    scenario
}

/// P5: an object of a lost decision is not taken for that of the next one.
#[test]
fn data_in_objects_is_that_of_its_decision_while_the_store_falls_back() {
    falling_back_in_objects()
        .holds("data_in_objects_is_that_of_its_decision_while_the_store_falls_back");
}

/// D4, broken.
#[test]
fn deciding_by_lost_locks_is_caught() {
    falling_back()
        .without(Broken::DecidesUnderLostLocks)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// D4, C-3, broken: a queue keeps what its writer pushed, even if the decision is lost.
#[test]
fn numbering_lost_decisions_is_caught() {
    falling_back()
        .without(Broken::NumbersLostDecisions)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}
