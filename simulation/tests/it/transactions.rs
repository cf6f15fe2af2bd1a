//! T1 to T5, T7, T8, and rules T-1, T-2 and T-5, over seeds of deaths and faults; each rule with
//! the mutant that drops it.

mod clocks;
mod collection;
mod conditional;
mod deaths;
mod effects;
mod forwarding;
mod listing;
mod nodes;
mod packing;
mod packing_nodes;
mod sequenced;
mod serializable;
mod unknown_outcomes;
mod values;
mod volumes;

use std::time::Duration;

use simulation::{
    faults::FaultProfile,
    transactions::{
        client::Habits,
        scenario::{Disaster, Scenario, seeds},
        workload::Mix,
    },
};
use transactions::broken::Broken;

/// The seeds within which a mutant must be caught.
const SEEDS_UNTIL_CAUGHT: u64 = 400;

/// Small transactions on six keys, by functions that stall and clients that die.
fn small(fault_profile: FaultProfile) -> Scenario {
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
        fault_profile,
        ..Scenario::default()
    }
}

/// The same on a node that dies at any point.
fn dying(fault_profile: FaultProfile) -> Scenario {
    use Disaster::{Everything, Node};
    Scenario {
        disasters: vec![Node, Everything, Node],
        ..small(fault_profile)
    }
}

/// T1, T2, T3, T4, T5: without faults.
#[test]
fn transactions_keep_their_promises_without_faults() {
    small(FaultProfile::Calm).holds("transactions_keep_their_promises_without_faults");
}

/// T1: with any interleaving of calls and any death of the node.
#[test]
fn no_transaction_reads_uncommitted_values() {
    for fault_profile in [
        FaultProfile::Calm,
        FaultProfile::Slow,
        FaultProfile::Stormy,
        FaultProfile::Paused,
    ] {
        dying(fault_profile).holds("no_transaction_reads_uncommitted_values");
    }
}

/// T1, broken.
#[test]
fn showing_a_commit_before_its_record_is_caught() {
    dying(FaultProfile::Slow)
        .without(Broken::VisibleBeforeRecord)
        .is_caught("dirty", SEEDS_UNTIL_CAUGHT);
}

/// T4, broken.
#[test]
fn writing_the_record_before_the_data_is_caught() {
    dying(FaultProfile::Slow)
        .without(Broken::RecordBeforeData)
        .is_caught("record", SEEDS_UNTIL_CAUGHT);
}

/// Broken: a group of commits is written before the slot that names it.
#[test]
fn writing_a_group_before_its_slot_is_caught() {
    dying(FaultProfile::Stormy)
        .without(Broken::GroupsBeforeSlot)
        .is_caught("leftover", SEEDS_UNTIL_CAUGHT);
}

/// Broken: a group whose answer was lost counts as refused.
#[test]
fn taking_an_unclear_group_for_refused_is_caught() {
    dying(FaultProfile::Stormy)
        .without(Broken::RefusesUnclearGroups)
        .is_caught("refused", SEEDS_UNTIL_CAUGHT);
}

/// The store falls back to its durable state while its node lives on.
fn going_back() -> Scenario {
    Scenario {
        disasters: vec![Disaster::Store; 3],
        ..small(FaultProfile::Slow)
    }
}

/// T5.
#[test]
fn acknowledged_commits_are_seen_in_time() {
    going_back().holds("acknowledged_commits_are_seen_in_time");
    dying(FaultProfile::Slow).holds("acknowledged_commits_are_seen_in_time");
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
    let small = small(FaultProfile::Slow);
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
fn ignoring_the_write_set_of_a_candidate_is_caught() {
    let scenario = overlapping(false).without(Broken::SkipsCowrittenOfCandidate);
    scenario.is_caught("fractured", SEEDS_UNTIL_CAUGHT);
}

/// The same with parallel reads and no cache: every read goes to the store.
fn forgetful() -> Scenario {
    let mut scenario = overlapping(true);
    scenario.mix.transactions = 24;
    scenario.config.index_bytes_max = 0;
    scenario.config.data_cache_bytes_max = 0;
    scenario.config.recent_bytes_max = 0;
    scenario
}

/// T2: also with parallel reads that the store answers.
#[test]
fn parallel_reads_are_never_fractured() {
    forgetful().holds("parallel_reads_are_never_fractured");
}

/// Parallel reads, broken.
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
    let small = small(FaultProfile::Stormy);
    let mix = Mix {
        functions: 4,
        keys: 3,
        ..small.mix
    };
    Scenario { mix, ..small }.holds("own_writes_are_read_and_reads_repeat");
}

/// Functions that stall, and are retried under their ids.
fn retried() -> Scenario {
    let small = small(FaultProfile::Slow);
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
    for fault_profile in [FaultProfile::Stormy, FaultProfile::Paused] {
        let scenario = Scenario {
            disasters: disasters.clone(),
            fault_profile,
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

/// The clock of each start is ten seconds behind the previous one.
fn set_back() -> Scenario {
    let clock_set_back = Duration::from_secs(10);
    Scenario {
        clock_set_back,
        ..dying(FaultProfile::Slow)
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

/// A node is considered dead while it writes, and a new one takes over. A write in progress may
/// arrive after the clean-up of its log, or without an entry in it. No transaction reads it, and
/// the sweep removes it.
fn replaced() -> Scenario {
    let small = small(FaultProfile::Slow);
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
    // One load must end in the same instant as another that began before the commit in which they
    // differ.
    scenario.mix = Mix {
        clients: 6,
        transactions: 36,
        keys: 3,
        ..scenario.mix
    };
    scenario.fault_profile = FaultProfile::Calm;
    scenario.cloud.latency = Some(Duration::ZERO..=Duration::from_millis(2));
    scenario.is_caught("fractured", SEEDS_UNTIL_CAUGHT);
}

/// T1 to T5: with every limit so low that it is reached, on a store of short pages that are no
/// snapshots.
#[test]
fn promises_hold_at_the_limits() {
    let mut scenario = dying(FaultProfile::Slow);
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

/// T1 to T5: on a store whose answers are already durable.
#[test]
fn promises_hold_on_a_store_that_loses_nothing() {
    let mut scenario = dying(FaultProfile::Stormy);
    scenario.cloud.durable_at_once = true;
    scenario.holds("promises_hold_on_a_store_that_loses_nothing");
}

/// T7: clients die, and functions stall beyond their time limit.
#[test]
fn abandoned_transactions_leave_nothing() {
    let habits = Habits {
        one_death_in: 2,
        one_named_in: 2,
        ..Habits::default()
    };
    for fault_profile in [FaultProfile::Slow, FaultProfile::Stormy] {
        let scenario = Scenario {
            habits,
            ..dying(fault_profile)
        };
        scenario.holds("abandoned_transactions_leave_nothing");
    }
}

/// One seed gives one trace.
#[test]
fn one_seed_of_transactions_gives_one_trace() {
    for seed in seeds().take(10) {
        let scenario = dying(FaultProfile::Stormy);
        assert_eq!(
            scenario.run(seed).trace_hash,
            scenario.run(seed).trace_hash,
            "seed {seed}"
        );
    }
}

/// With no transaction open, an hour passes without a call to any port.
#[test]
fn an_hour_without_transactions_costs_nothing() {
    for seed in seeds().take(20) {
        let outcome = dying(FaultProfile::Slow).run(seed);
        assert_eq!(outcome.idle_port_calls, 0, "seed {seed}");
    }
}
