//! D4: the store loses what was not durable, and everybody who has seen it lives on.

use coordination::{broken::Broken, config::DataPlacement};
use simulation::{
    faults::Weather,
    scenario::{Scenario, contended, ephemerals, everything},
};

/// How many seeds a broken variant may survive.
const SEEDS_UNTIL_CAUGHT: u64 = 1_000;

fn falling_back() -> Scenario {
    Scenario {
        weather: Weather::Slow,
        fall_backs: 3,
        mix: contended,
        machines: 3,
        ..Scenario::default()
    }
}

/// D4, C1, C3: whoever rests on what is lost changes nothing.
#[test]
fn what_rests_on_a_lost_state_is_refused() {
    falling_back().holds("what_rests_on_a_lost_state_is_refused");
}

/// The same for everything that clients ask for, and while functions die as well.
#[test]
fn clients_see_one_order_while_the_store_falls_back() {
    for (weather, fall_backs) in [(Weather::Slow, 3), (Weather::Stormy, 1)] {
        let scenario = Scenario {
            weather,
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

/// C6: sessions end whole, and none of their ephemerals is left.
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

/// P5: an object that a lost decision has left is not taken for the next one's.
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

/// D4, C-3, broken: a queue takes what its writer pushed, whatever became of the decision.
#[test]
fn numbering_what_was_lost_is_caught() {
    falling_back()
        .without(Broken::NumbersLostDecisions)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}

/// D4, C-3, broken.
#[test]
fn numbering_by_the_log_alone_is_caught() {
    // Whoever takes the log over makes all durable that is before it, and with several machines somebody always does.
    let scenario = Scenario {
        machines: 1,
        ..falling_back()
    };
    scenario
        .without(Broken::NumbersByTheLogAlone)
        .is_caught(SEEDS_UNTIL_CAUGHT);
}
