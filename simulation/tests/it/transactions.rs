//! T1 to T5, T7, T8, and rules T-1, T-2 and T-5, over seeds of deaths and faults; each with the variant that drops
//! the rule.

mod clocks;
mod collection;
mod deaths;
mod effects;
mod listing;
mod nodes;
mod packing;
mod packing_nodes;
mod passed_on;
mod sequenced;
mod serializable;
mod values;

use std::time::Duration;

use simulation::{
    faults::Weather,
    transactions::{
        client::Habits,
        scenario::{Disaster, Scenario, seeds},
        workload::Mix,
    },
};
use transactions::broken::Broken;

/// How many seeds a broken variant may survive.
const SEEDS_UNTIL_CAUGHT: u64 = 400;

/// Small transactions on six keys, by functions that stall and clients that die.
fn small(weather: Weather) -> Scenario {
    let habits = Habits {
        one_named_in: 2,
        one_stall_in: 4,
        one_death_in: 12,
        one_serializable_in: 0,
        one_reader_in: 0,
        carries_after: true,
        chooses_all_names: false,
        wanders: false,
        patience: Duration::ZERO,
        pause: Duration::from_millis(10),
        thinks: Duration::ZERO,
    };
    Scenario {
        habits,
        weather,
        ..Scenario::default()
    }
}

/// The same on a node that dies anywhere.
fn dying(weather: Weather) -> Scenario {
    use Disaster::{Everything, Node};
    Scenario {
        disasters: vec![Node, Everything, Node],
        ..small(weather)
    }
}

/// T1, T2, T3, T4, T5: when nothing fails.
#[test]
fn transactions_keep_their_promises_in_calm_weather() {
    small(Weather::Calm).holds("transactions_keep_their_promises_in_calm_weather");
}

/// T1: however calls interleave, and wherever the node dies.
#[test]
fn nobody_reads_what_was_not_committed() {
    for weather in [
        Weather::Calm,
        Weather::Slow,
        Weather::Stormy,
        Weather::Paused,
    ] {
        dying(weather).holds("nobody_reads_what_was_not_committed");
    }
}

/// T1, broken.
#[test]
fn showing_a_commit_before_its_record_is_caught() {
    dying(Weather::Slow)
        .without(Broken::VisibleBeforeRecord)
        .is_caught("dirty", SEEDS_UNTIL_CAUGHT);
}

/// T4, broken.
#[test]
fn writing_the_record_before_the_data_is_caught() {
    dying(Weather::Slow)
        .without(Broken::RecordBeforeData)
        .is_caught("record", SEEDS_UNTIL_CAUGHT);
}

/// A group of commits without the slot that names them, broken.
#[test]
fn writing_a_group_before_its_slot_is_caught() {
    dying(Weather::Stormy)
        .without(Broken::GroupsBeforeSlot)
        .is_caught("leftover", SEEDS_UNTIL_CAUGHT);
}

/// A group whose answer was lost, broken.
#[test]
fn taking_an_unclear_group_for_refused_is_caught() {
    dying(Weather::Stormy)
        .without(Broken::RefusesUnclearGroups)
        .is_caught("refused", SEEDS_UNTIL_CAUGHT);
}

/// The store goes back to what was durable while its node lives on.
fn going_back() -> Scenario {
    Scenario {
        disasters: vec![Disaster::Store; 3],
        ..small(Weather::Slow)
    }
}

/// T5.
#[test]
fn what_was_acknowledged_is_seen_in_time() {
    going_back().holds("what_was_acknowledged_is_seen_in_time");
    dying(Weather::Slow).holds("what_was_acknowledged_is_seen_in_time");
}

/// T5, broken.
#[test]
fn answering_before_the_record_is_durable_is_caught() {
    going_back()
        .without(Broken::AnswersBeforeDurable)
        .is_caught("lost", SEEDS_UNTIL_CAUGHT);
}

/// Transactions that read and write several of few keys, so that most overlap.
fn overlapping(reads_together: bool) -> Scenario {
    let small = small(Weather::Slow);
    let mix = Mix {
        reads: 3,
        writes: 2,
        keys: 4,
        reads_together,
        ..small.mix
    };
    Scenario { mix, ..small }
}

/// T2, Algorithm 1.
#[test]
fn reads_of_one_transaction_are_never_fractured() {
    for reads_together in [false, true] {
        overlapping(reads_together).holds("reads_of_one_transaction_are_never_fractured");
        let dying = Scenario {
            disasters: vec![Disaster::Node; 2],
            ..overlapping(reads_together)
        };
        dying.holds("reads_of_one_transaction_are_never_fractured");
    }
}

/// Algorithm 1, case 2, broken.
#[test]
fn ignoring_what_a_candidate_was_written_with_is_caught() {
    let scenario = overlapping(false).without(Broken::SkipsCowrittenOfCandidate);
    scenario.is_caught("fractured", SEEDS_UNTIL_CAUGHT);
}

/// The same with reads at the same time, and nothing kept in memory: every read is a load, and takes a while.
fn forgetful() -> Scenario {
    let mut scenario = overlapping(true);
    scenario.mix.transactions = 24;
    scenario.config.index_bytes_max = 0;
    scenario.config.data_cache_bytes_max = 0;
    scenario.config.recent_bytes_max = 0;
    scenario
}

/// T2: also by parallel reads that are each answered from the store.
#[test]
fn parallel_reads_are_never_fractured() {
    forgetful().holds("parallel_reads_are_never_fractured");
}

/// Reads at the same time, broken.
#[test]
fn choosing_before_recording_is_caught() {
    forgetful()
        .without(Broken::ChoosesBeforeRecording)
        .is_caught("fractured", SEEDS_UNTIL_CAUGHT);
}

/// Absences, broken.
#[test]
fn forgetting_absences_is_caught() {
    overlapping(false)
        .without(Broken::ForgetsAbsence)
        .is_caught("fractured", SEEDS_UNTIL_CAUGHT);
}

/// T3.
#[test]
fn own_writes_are_read_and_reads_repeat() {
    let small = small(Weather::Stormy);
    let mix = Mix {
        functions: 4,
        keys: 3,
        ..small.mix
    };
    Scenario { mix, ..small }.holds("own_writes_are_read_and_reads_repeat");
}

/// Functions that stall, and are retried under their names.
fn retried() -> Scenario {
    let small = small(Weather::Slow);
    let habits = Habits {
        one_named_in: 1,
        one_stall_in: 2,
        ..small.habits
    };
    Scenario { habits, ..small }
}

/// T4, T-5.
#[test]
fn an_id_takes_effect_at_most_once() {
    retried().holds("an_id_takes_effect_at_most_once");
    let disasters = vec![Disaster::Node, Disaster::Store, Disaster::Everything];
    for weather in [Weather::Stormy, Weather::Paused] {
        let scenario = Scenario {
            disasters: disasters.clone(),
            weather,
            ..retried()
        };
        scenario.holds("an_id_takes_effect_at_most_once");
    }
}

/// T8.
#[test]
fn an_earlier_attempt_is_refused() {
    retried().holds("an_earlier_attempt_is_refused");
}

/// T-5, broken.
#[test]
fn keeping_the_earlier_buffer_is_caught() {
    retried()
        .without(Broken::KeepsEarlierBuffer)
        .is_caught("mixed", SEEDS_UNTIL_CAUGHT);
}

/// T-5, broken.
#[test]
fn committing_any_attempt_is_caught() {
    retried()
        .without(Broken::CommitsAnyAttempt)
        .is_caught("doubled", SEEDS_UNTIL_CAUGHT);
}

/// Each start has a clock that is ten seconds behind the one before.
fn set_back() -> Scenario {
    let clock_set_back = Duration::from_secs(10);
    Scenario {
        clock_set_back,
        ..dying(Weather::Slow)
    }
}

/// T5, T-1.
#[test]
fn a_clock_set_back_hides_nothing() {
    set_back().holds("a_clock_set_back_hides_nothing");
}

/// T-1, broken.
#[test]
fn forgetting_the_clock_is_caught() {
    set_back()
        .without(Broken::ForgetsItsClock)
        .is_caught("not seen", SEEDS_UNTIL_CAUGHT);
}

/// A node is taken for dead while it writes, and a new one takes over. A write that was under way may land behind the
/// clean-up of its log, or without an entry in it: nobody reads it, and the sweep removes it.
fn replaced() -> Scenario {
    let small = small(Weather::Slow);
    let habits = Habits {
        one_named_in: 4,
        one_stall_in: 2,
        ..small.habits
    };
    let mix = Mix {
        clients: 6,
        transactions: 48,
        ..small.mix
    };
    Scenario {
        mix,
        habits,
        disasters: vec![Disaster::Replacement; 3],
        ..small
    }
}

/// T4, T-2.
#[test]
fn a_node_that_was_taken_for_dead_changes_nothing() {
    replaced().holds("a_node_that_was_taken_for_dead_changes_nothing");
}

/// T-2, broken.
#[test]
fn resolving_without_a_seal_is_caught() {
    replaced()
        .without(Broken::ResolvesWithoutSeal)
        .is_caught("not seen", SEEDS_UNTIL_CAUGHT);
}

/// Algorithm 1, case 1, broken.
#[test]
fn ignoring_the_lower_bound_is_caught() {
    let mut scenario = forgetful().without(Broken::SkipsLowerBound);
    // One load has to end in the same instant as another that began before the commit they differ by.
    scenario.mix = Mix {
        clients: 6,
        transactions: 36,
        keys: 3,
        ..scenario.mix
    };
    scenario.weather = Weather::Calm;
    scenario.cloud.latency = Some(Duration::ZERO..=Duration::from_millis(2));
    scenario.is_caught("fractured", SEEDS_UNTIL_CAUGHT);
}

/// T1 to T5: with every limit so low that it is met, on a store of short pages that are no snapshots.
#[test]
fn promises_hold_at_the_limits() {
    let mut scenario = dying(Weather::Slow);
    scenario.mix.writes = 3;
    scenario.mix.transactions = 6;
    scenario.cloud.key_value.page_items_max = 2;
    scenario.cloud.key_value.page_is_snapshot = false;
    scenario.config.write_set_inline_bytes_max = 30;
    scenario.config.slot_bytes_max = 100;
    scenario.config.slots_unpublished_max = 2;
    scenario.config.ended_lately_max = 2;
    scenario.config.index_bytes_max = 2_000;
    scenario.config.data_cache_bytes_max = 200;
    scenario.config.recent_bytes_max = 2_000;
    scenario.holds("promises_hold_at_the_limits");
}

/// T1 to T5: on a store whose answers are durable already.
#[test]
fn promises_hold_on_a_store_that_forgets_nothing() {
    let mut scenario = dying(Weather::Stormy);
    scenario.cloud.durable_at_once = true;
    scenario.holds("promises_hold_on_a_store_that_forgets_nothing");
}

/// T7: clients die, functions stall for longer than they may.
#[test]
fn abandoned_transactions_leave_nothing() {
    let habits = Habits {
        one_death_in: 2,
        one_named_in: 2,
        ..Habits::default()
    };
    for weather in [Weather::Slow, Weather::Stormy] {
        let scenario = Scenario {
            habits,
            ..dying(weather)
        };
        scenario.holds("abandoned_transactions_leave_nothing");
    }
}

/// One seed gives one trace.
#[test]
fn one_seed_of_transactions_gives_one_trace() {
    for seed in seeds().take(10) {
        let scenario = dying(Weather::Stormy);
        assert_eq!(
            scenario.run(seed).trace_hash,
            scenario.run(seed).trace_hash,
            "seed {seed}"
        );
    }
}

/// With no transaction open, an hour passes without one call to any port.
#[test]
fn an_hour_without_transactions_costs_nothing() {
    for seed in seeds().take(20) {
        let outcome = dying(Weather::Slow).run(seed);
        assert_eq!(outcome.idle_port_calls, 0, "seed {seed}");
    }
}
