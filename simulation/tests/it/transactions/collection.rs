//! T6, T9: collection at any moment, with windows so short that they pass while transactions run; each with the variant
//! that drops the rule.

use std::time::Duration;

use simulation::{
    faults::Weather,
    transactions::{
        client::Habits,
        scenario::{Disaster, Scenario},
        workload::Mix,
    },
};
use transactions::broken::Broken;

use super::{SEEDS_UNTIL_CAUGHT, replaced, small};

/// Long transactions that read several keys with pauses between, so that what they need is superseded meanwhile; rows and
/// slots go a second after they are written.
fn collecting(weather: Weather) -> Scenario {
    let small = small(weather);
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

/// T6: whatever is collected, nobody misses it.
#[test]
fn a_running_reader_finds_its_versions() {
    for weather in [
        Weather::Calm,
        Weather::Slow,
        Weather::Stormy,
        Weather::Paused,
    ] {
        collecting(weather).holds("a_running_reader_finds_its_versions");
    }
}

/// T4, T6, T9: the same on nodes that die anywhere, in the middle of collecting too.
#[test]
fn storage_stays_bounded_on_nodes_that_die() {
    use Disaster::{Everything, Node, Store};
    for weather in [Weather::Slow, Weather::Stormy] {
        let disasters = vec![Node, Everything, Node, Store];
        Scenario {
            disasters,
            ..collecting(weather)
        }
        .holds("storage_stays_bounded_on_nodes_that_die");
    }
}

/// T6, broken.
#[test]
fn collecting_above_the_horizon_is_caught() {
    collecting(Weather::Slow)
        .without(Broken::CollectsAboveHorizon)
        .is_caught("no version", SEEDS_UNTIL_CAUGHT);
}

/// T6, broken.
#[test]
fn taking_absence_for_version_zero_is_caught() {
    collecting(Weather::Slow)
        .without(Broken::AbsenceIsVersionZero)
        .is_caught("no version", SEEDS_UNTIL_CAUGHT);
}

/// T9, broken.
#[test]
fn collecting_whole_transactions_is_caught() {
    collecting(Weather::Slow)
        .without(Broken::CollectsWholeTransactions)
        .is_caught("leftover", SEEDS_UNTIL_CAUGHT);
}

/// T5, broken: an older write, decided later, comes back behind the deletion.
#[test]
fn dropping_deletions_at_once_is_caught() {
    let scenario = collecting(Weather::Slow).without(Broken::DropsTombstonesAtOnce);
    scenario.is_caught("", SEEDS_UNTIL_CAUGHT);
}

/// T5, broken.
#[test]
fn dropping_rows_of_live_versions_is_caught() {
    // Whoever lives on still has it in memory.
    let scenario = Scenario {
        disasters: vec![Disaster::Node; 4],
        ..collecting(Weather::Slow)
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
