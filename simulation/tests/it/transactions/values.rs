//! T1 to T7, T9, P6: values so large that they lie in chunks, and buffers so small that values are
//! spilled early, on nodes that die at any point; each rule with the mutant that drops it.

use simulation::{
    faults::FaultProfile,
    transactions::{
        scenario::{Disaster, Scenario},
        workload::Mix,
    },
};
use transactions::broken::Broken;

use super::{SEEDS_UNTIL_CAUGHT, replaced, small};

/// Transactions whose values go into two chunks or into their items, by the length of their ids,
/// and are spilled once there is more than one. Keys are overwritten within a transaction.
fn large(fault_profile: FaultProfile) -> Scenario {
    let mut scenario = small(fault_profile);
    scenario.mix.functions = 3;
    scenario.mix.keys = 3;
    scenario.mix.transactions = 18;
    with_small_limits(scenario)
}

pub(super) fn with_small_limits(mut scenario: Scenario) -> Scenario {
    scenario.config.inline_bytes_max = 50;
    scenario.config.chunk_bytes_max = 40;
    scenario.config.attempt_buffer_bytes_max = 60;
    scenario.config.data_cache_bytes_max = 0;
    scenario
}

fn dying(fault_profile: FaultProfile) -> Scenario {
    use Disaster::{Everything, Node, Store};
    Scenario {
        disasters: vec![Node, Everything, Node, Store],
        ..large(fault_profile)
    }
}

/// T1 to T5: with any interleaving.
#[test]
fn large_values_keep_the_promises() {
    for fault_profile in [
        FaultProfile::Calm,
        FaultProfile::Slow,
        FaultProfile::Stormy,
        FaultProfile::Paused,
    ] {
        large(fault_profile).holds("large_values_keep_the_promises");
    }
}

/// T4, T5, T7, T9: with any death of the node, or of its store with it.
#[test]
fn large_values_come_whole_or_not_at_all_on_nodes_that_die() {
    for fault_profile in [FaultProfile::Slow, FaultProfile::Stormy] {
        dying(fault_profile).holds("large_values_come_whole_or_not_at_all_on_nodes_that_die");
    }
}

/// T4, T9: a node that is considered dead keeps spilling values for a while.
#[test]
fn values_spilled_by_a_replaced_node_are_removed() {
    let mut scenario = with_small_limits(replaced());
    scenario.mix.transactions /= 2;
    scenario.holds("values_spilled_by_a_replaced_node_are_removed");
}

/// T6, T9: with windows that pass while transactions run.
#[test]
fn chunks_are_collected_while_others_read() {
    let mut scenario = dying(FaultProfile::Slow);
    scenario.config.retry_window = std::time::Duration::from_secs(1);
    scenario.holds("chunks_are_collected_while_others_read");
}

/// T4, T7, T9: nodes that shut down at any moment, and for whose remains no search runs.
#[test]
fn nodes_that_leave_in_order_leave_nothing_unnamed() {
    departing().holds("nodes_that_leave_in_order_leave_nothing_unnamed");
}

fn departing() -> Scenario {
    let scenario = large(FaultProfile::Slow);
    let mix = Mix {
        clients: 6,
        transactions: 18,
        ..scenario.mix
    };
    Scenario {
        mix,
        disasters: vec![Disaster::Departure; 3],
        ..scenario
    }
}

/// T9, broken.
#[test]
fn leaving_before_all_is_done_is_caught() {
    departing()
        .without(Broken::LeavesAtOnce)
        .is_caught("leftover", SEEDS_UNTIL_CAUGHT);
}

/// P6, broken.
#[test]
fn writing_the_record_before_the_chunks_is_caught() {
    large(FaultProfile::Slow)
        .without(Broken::RecordBeforeChunks)
        .is_caught("record", SEEDS_UNTIL_CAUGHT);
}

/// T7, broken.
#[test]
fn spilling_without_a_log_entry_is_caught() {
    dying(FaultProfile::Slow)
        .without(Broken::SpillsUnlogged)
        .is_caught("leftover: write", SEEDS_UNTIL_CAUGHT);
}

/// T9, broken.
#[test]
fn a_collector_that_forgets_chunks_is_caught() {
    large(FaultProfile::Slow)
        .without(Broken::ForgetsChunks)
        .is_caught("leftover: write", SEEDS_UNTIL_CAUGHT);
}

/// T9, broken.
#[test]
fn keeping_replaced_chunks_is_caught() {
    let scenario = large(FaultProfile::Slow).without(Broken::KeepsReplacedChunks);
    scenario.is_caught("leftover: write", SEEDS_UNTIL_CAUGHT);
}
