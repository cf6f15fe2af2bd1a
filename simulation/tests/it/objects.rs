//! C1, P5: data in objects, where slots are applied in parts and distributors die between them.

use coordination::{broken::Broken, user_store::DataPlacement};
use simulation::{
    faults::Weather,
    scenario::{Scenario, everything, sets},
};

/// How many seeds a broken variant may survive.
const SEEDS_UNTIL_CAUGHT: u64 = 1_000;

/// A store whose transactions hold the cursor and `changes` besides.
fn in_parts_of(changes: usize, placement: DataPlacement) -> Scenario {
    let mut scenario =
        Scenario { mix: everything, clients: 4, window_max: 5, requests: 8, ..Scenario::default() };
    scenario.config.placement = placement;
    scenario.cloud.key_value.transact_items_max = changes + 1;
    scenario
}

/// One znode is set several times in a slot.
fn set_again_and_again() -> Scenario {
    let scenario = in_parts_of(1, DataPlacement::Objects);
    Scenario { mix: sets, weather: Weather::Stormy, clients: 2, requests: 20, window_max: 20, ..scenario }
}

/// C1, C3, C5: readers see slots whole although they are applied in parts.
#[test]
fn a_slot_that_is_applied_in_parts_is_seen_whole() {
    for weather in [Weather::Slow, Weather::Stormy] {
        let scenario = Scenario { weather, ..in_parts_of(1, DataPlacement::KeyValue) };
        scenario.holds("a_slot_that_is_applied_in_parts_is_seen_whole");
    }
}

/// P5: whoever goes on with a slot that another has half applied removes nothing that is in use, and leaves nothing.
#[test]
fn data_in_objects_outlives_whoever_applied_half_a_slot() {
    set_again_and_again().holds("data_in_objects_outlives_whoever_applied_half_a_slot");
    for changes in [1, 2, 99] {
        let scenario = Scenario { weather: Weather::Stormy, ..in_parts_of(changes, DataPlacement::Objects) };
        scenario.holds("data_in_objects_outlives_whoever_applied_half_a_slot");
    }
}

/// P5, broken.
#[test]
fn collecting_what_others_have_applied_is_caught() {
    set_again_and_again().without(Broken::CollectsWhatOthersHaveApplied).is_caught(SEEDS_UNTIL_CAUGHT);
}

/// C-5, broken, in parts.
#[test]
fn reading_ahead_of_the_view_is_caught_in_parts() {
    let scenario = Scenario { weather: Weather::Slow, ..in_parts_of(1, DataPlacement::KeyValue) };
    scenario.without(Broken::ReadsAheadOfTheView).is_caught(SEEDS_UNTIL_CAUGHT);
}
